"""The options as one multi-head actor over distributions of returns."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.data import TensorSpec

from torchrl_dceo.modules.distributional import expected_value
from torchrl_dceo.modules.option_actor import OptionQValueActor

__all__ = ["OptionDistributionalQValueActor"]


class _Distributions(nn.Module):
    """Runs the network, checks what it speaks of, and takes the expectation."""

    support: Tensor

    def __init__(self, module: nn.Module, shape: tuple[int, int], support: Tensor) -> None:
        super().__init__()
        self.module = module
        self.shape = (shape[0], support.numel(), shape[1])
        self.register_buffer("support", support.clone())

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        log_probabilities = self.module(*observations)
        if log_probabilities.shape[-3:] != self.shape:
            raise RuntimeError(
                f"the option network must end in (options, atoms, actions) = {self.shape}, got an output of shape "
                f"{tuple(log_probabilities.shape)}; end it in a DuelingDistribution behind a MultiHeadNet or StackedNet"
            )
        return expected_value(log_probabilities, self.support), log_probabilities


class OptionDistributionalQValueActor(OptionQValueActor):
    r"""All N options' distributions of returns in one pass, and the action values that they expect.

    The options of ``rainbow_dceo``: categorical distributions over fixed atoms (C51, `Bellemare et al., 2017
    <https://arxiv.org/abs/1707.06887>`_), one head an option. It writes the log-probabilities ``option_action_dist`` of
    shape ``[*, N, atoms, A]`` and their expectation ``option_action_value`` ``[*, N, A]``,
    :math:`Q_o(s, a) = \sum_k z_k p_k(s, a; o)`, which is all that
    :class:`~torchrl_dceo.modules.OptionExplorationModule` reads.

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
        )
        # The values first: they are what a reader of options expects of any option actor.
        self.out_keys = [action_value_key, action_dist_key]
        self.module = _Distributions(module, (num_options, self.num_actions), support)

    @property
    def support(self) -> Tensor:
        """The atoms."""
        return self.module.support
