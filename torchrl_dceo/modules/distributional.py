"""Distributions of returns over fixed atoms: the layer that makes them, and the greedy actor that reads them."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, dispatch
from torch import Tensor, nn
from torchrl.data import Categorical, TensorSpec
from torchrl.modules import DistributionalQValueActor

from torchrl_dceo._fast.parameters import output_of

__all__ = ["DistributionalGreedyActor", "DuelingDistribution", "expected_value", "make_support"]


def make_support(num_atoms: int = 51, v_max: float = 10.0, v_min: float | None = None) -> Tensor:
    r"""The returns :math:`z_1, \dots, z_K` that a distribution can put its mass on, evenly spaced.

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


def expected_value(log_probabilities: Tensor, support: Tensor) -> Tensor:
    r"""The action values :math:`Q(a) = \sum_k z_k p_k(a)` of log-probabilities ``[*, K, A]``, as ``[*, A]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules.distributional import expected_value
        >>> probabilities = torch.tensor([[0.5, 1.0], [0.5, 0.0]])  # two atoms, two actions
        >>> expected_value(probabilities.log(), torch.tensor([0.0, 2.0]))
        tensor([1., 0.])
    """
    return torch.einsum("...ka,k->...a", log_probabilities.exp(), support)


class DuelingDistribution(nn.Module):
    r"""Makes log-probabilities of returns from a network's outputs, by dueling streams: the last layer of Rainbow.

    The network gives each atom a value and one advantage an action; their logits are

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
        """How many outputs the network before it must have: K (A + 1)."""
        return self.num_atoms * (self.num_actions + 1)

    def forward(self, outputs: Tensor) -> Tensor:
        """Maps ``[*, K (A + 1)]`` to log-probabilities ``[*, K, A]``."""
        streams = outputs.unflatten(-1, (self.num_atoms, self.num_actions + 1))
        value, advantage = streams[..., :1], streams[..., 1:]
        logits = value + advantage - advantage.mean(-1, keepdim=True)
        return logits.log_softmax(-2)


class DistributionalGreedyActor(DistributionalQValueActor):
    """A :class:`~torchrl.modules.DistributionalQValueActor` that keeps to one device.

    The same entries with the same values: the action of the largest expected return, and under ``action_value`` the
    log-probabilities ``[*, atoms, A]``. TorchRL's actor asks at every call whether any of them is positive, for which
    an accelerator has to stop and answer, and normalises them a second time if it does not know that they are.

    Args:
        module (nn.Module): maps an observation to log-probabilities ``[*, atoms, A]``, e.g. a network that ends in a
            :class:`DuelingDistribution`.

    Keyword Args:
        support (Tensor): the atoms; see :func:`make_support`.
        in_keys (sequence of NestedKey): what the module reads.
        spec (TensorSpec): the action spec, categorical.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl_dceo.modules import DistributionalGreedyActor
        >>> from torchrl_dceo.modules.distributional import DuelingDistribution, make_support
        >>> net = torch.nn.Sequential(torch.nn.Linear(6, 51 * 5), DuelingDistribution(51, 4))
        >>> actor = DistributionalGreedyActor(net, support=make_support(), in_keys=["observation"], spec=Categorical(4))
        >>> td = actor(TensorDict({"observation": torch.randn(3, 6)}, [3]))
        >>> td["action"].shape, td["action_value"].shape
        (torch.Size([3]), torch.Size([3, 51, 4]))
    """

    def __init__(
        self, module: nn.Module, *, support: Tensor, in_keys: list[str], spec: TensorSpec
    ) -> None:
        if not isinstance(spec, Categorical):
            raise TypeError(
                f"DistributionalGreedyActor writes categorical actions, got a spec of type {type(spec).__name__}"
            )
        super().__init__(
            module, support=support, in_keys=in_keys, spec=spec, make_log_softmax=False
        )

    @dispatch(auto_batch_size=False)
    def forward(
        self,
        tensordict: TensorDictBase,
        tensordict_out: TensorDictBase | None = None,
        **kwargs: Any,
    ) -> TensorDictBase:
        """Writes the greedy action and the log-probabilities."""
        if tensordict_out is not None or kwargs or self._select_before_return:
            return super().forward(tensordict, tensordict_out, **kwargs)
        network: TensorDictModule = self.module[0]
        log_probabilities = output_of(network, tensordict, self.action_value_key)
        values = expected_value(log_probabilities, self.support)
        tensordict.set("action", values.argmax(-1))
        tensordict.set(self.action_value_key, log_probabilities)
        return tensordict
