"""Distributions of returns over fixed atoms: the layers, and the option actor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.data import TensorSpec

from torchrl_dceo._fast.actors import expected_value
from torchrl_dceo.modules.option_actor import OptionHead, OptionQValueActor

__all__ = ["DuelingDistribution", "OptionDistributionalQValueActor", "make_support"]


def make_support(num_atoms: int = 51, v_max: float = 10.0, v_min: float | None = None) -> Tensor:
    r"""The atoms :math:`z_1, \dots, z_K` of a distribution of returns, evenly spaced.

    Args:
        num_atoms (int, optional): K. Default: ``51``.
        v_max (float, optional): the largest one. Default: ``10``.
        v_min (float, optional): the smallest one. Default: ``-v_max``.

    Examples:
        >>> from torchrl_dceo.modules.distributional import make_support
        >>> make_support(5, 1.0)
        tensor([-1.0000, -0.5000,  0.0000,  0.5000,  1.0000])
    """
    v_min = -v_max if v_min is None else v_min
    if num_atoms < 2:
        raise ValueError(f"a distribution needs at least 2 atoms, got num_atoms={num_atoms}")
    if not v_min < v_max:
        raise ValueError(f"v_min must be smaller than v_max, got {v_min} and {v_max}")
    return torch.linspace(v_min, v_max, num_atoms)


class DuelingDistribution(nn.Module):
    r"""Turns a network's outputs into log-probabilities of returns with dueling streams: the last layer of Rainbow.

    The network outputs for each atom a value and an advantage per action; the logits are

    .. math:: \ell_k(a) = v_k + A_k(a) - \tfrac1{|\mathcal A|} \sum_{a'} A_k(a')

    and the distribution of action a is their softmax over the atoms k (`Hessel et al., 2018
    <https://arxiv.org/abs/1710.02298>`_). Both streams are linear in the last hidden layer of the network, as in the
    DCEO authors' code: the 512 units of the Nature network serve both.

    Args:
        num_atoms (int): K.
        num_actions (int): A.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules.distributional import DuelingDistribution
        >>> dueling = DuelingDistribution(num_atoms=51, num_actions=18)
        >>> dueling.num_inputs
        969
        >>> log_probabilities = dueling(torch.randn(32, dueling.num_inputs))
        >>> log_probabilities.shape, bool(log_probabilities.exp().sum(-2).allclose(torch.ones(32, 18)))
        (torch.Size([32, 51, 18]), True)
    """

    def __init__(self, num_atoms: int, num_actions: int) -> None:
        super().__init__()
        self.num_atoms = num_atoms
        self.num_actions = num_actions

    @property
    def num_inputs(self) -> int:
        """The number of outputs of the network before it: K (A + 1)."""
        return self.num_atoms * (self.num_actions + 1)

    def forward(self, outputs: Tensor) -> Tensor:
        """Maps ``[*, K (A + 1)]`` to log-probabilities ``[*, K, A]``."""
        streams = outputs.unflatten(-1, (self.num_atoms, self.num_actions + 1))
        value, advantage = streams[..., :1], streams[..., 1:]
        logits = value + advantage - advantage.mean(-1, keepdim=True)
        return logits.log_softmax(-2)


class DistributionHead(OptionHead):
    """Runs a distributional option network, checks its output, and computes the expectation.

    Args:
        module (nn.Module): the network.
        num_options (int): N.
        num_actions (int): A.
        support (Tensor): the atoms.
    """

    support: Tensor

    def __init__(
        self, module: nn.Module, num_options: int, num_actions: int, support: Tensor
    ) -> None:
        super().__init__(module, num_options, num_actions)
        self.register_buffer("support", support.clone())

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the values ``[*, N, A]`` and the log-probabilities ``[*, N, K, A]``."""
        log_probabilities = self._checked(
            self.module(*observations),
            (self.num_options, self.support.numel(), self.num_actions),
            "options, atoms, actions",
            "end it in a DuelingDistribution behind a MultiHeadNet or StackedNet",
        )
        return expected_value(log_probabilities, self.support), log_probabilities


class OptionDistributionalQValueActor(OptionQValueActor):
    r"""The distributions of returns of all N options in one pass, and the expected action values.

    The option actor of ``rainbow_dceo``: categorical distributions over fixed atoms (C51, `Bellemare et al., 2017
    <https://arxiv.org/abs/1707.06887>`_), one head per option. It writes the log-probabilities ``option_action_dist``
    of shape ``[*, N, atoms, A]`` and their expectation ``option_action_value`` ``[*, N, A]``,
    :math:`Q_o(s, a) = \sum_k z_k p_k(s, a; o)`, which :class:`~torchrl_dceo.modules.OptionExplorationModule` reads.

    Args:
        module (nn.Module): maps observations to log-probabilities ``[*, N, atoms, A]``: a
            :class:`~torchrl_dceo.modules.networks.MultiHeadNet` (or
            :class:`~torchrl_dceo.modules.networks.StackedNet`) and a
            :class:`~torchrl_dceo.modules.distributional.DuelingDistribution` after it.

    Keyword Args:
        num_options (int): number of options, N.
        support (Tensor): the atoms; see :func:`~torchrl_dceo.modules.distributional.make_support`.
        in_keys (sequence of NestedKey): the observations that the module reads.
        spec (TensorSpec): the action spec, unbatched or batched.
        action_value_key (NestedKey, optional): where the values are written. Default: ``"option_action_value"``.
        action_dist_key (NestedKey, optional): where the log-probabilities are written. Default:
            ``"option_action_dist"``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl_dceo.modules import OptionDistributionalQValueActor
        >>> from torchrl_dceo.modules.distributional import DuelingDistribution, make_support
        >>> from torchrl_dceo.modules.networks import MultiHeadNet, mlp_net
        >>> dueling = DuelingDistribution(num_atoms=51, num_actions=4)
        >>> heads = MultiHeadNet(lambda out: mlp_net(6, out), num_heads=3, head_shape=dueling.num_inputs)
        >>> actor = OptionDistributionalQValueActor(
        ...     torch.nn.Sequential(heads, dueling), num_options=3, support=make_support(51, 10.0),
        ...     in_keys=["observation"], spec=Categorical(4)
        ... )
        >>> td = actor(TensorDict({"observation": torch.zeros(5, 6)}, [5]))
        >>> td["option_action_dist"].shape, td["option_action_value"].shape
        (torch.Size([5, 3, 51, 4]), torch.Size([5, 3, 4]))
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        num_options: int,
        support: Tensor,
        in_keys: Sequence[NestedKey],
        spec: TensorSpec,
        action_value_key: NestedKey = "option_action_value",
        action_dist_key: NestedKey = "option_action_dist",
    ) -> None:
        super().__init__(
            module,
            num_options=num_options,
            in_keys=in_keys,
            spec=spec,
            action_value_key=action_value_key,
            head=partial(DistributionHead, support=support),
            further_keys=[action_dist_key],
        )

    @property
    def support(self) -> Tensor:
        """The atoms."""
        return self.module.support
