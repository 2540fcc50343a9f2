"""When an option ends: where its values say that nothing is gained, and at its top (the paper's is 1/D)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor, nn

from torchrl_dceo.modules.rewards import EigenReward

__all__ = ["Termination", "TopTermination", "value_termination"]

Termination = Callable[[TensorDictBase, Tensor], Tensor]


def value_termination(
    tensordict: TensorDictBase,
    option: Tensor,
    action_value_key: NestedKey = "option_action_value",
    *,
    reward: EigenReward | None = None,
) -> Tensor:
    """Ends an option where no action has a positive value, as covering eigenoptions do with exact values.

    Pass it as ``termination`` to :class:`OptionExplorationModule` instead of the geometric length. Options that learned
    from an :class:`~torchrl_dceo.modules.EigenReward` in its mode ``"potential"`` have values Q + f(s), which are
    compared with f(s): pass that module, ``functools.partial(value_termination, reward=eigen_reward)``.

    Args:
        tensordict (TensorDictBase): contains the values ``[*, N, A]`` and, with ``reward``, the encoder's entries.
        option (Tensor): the option of each environment.
        action_value_key (NestedKey, optional): the entry of the values. Default: ``"option_action_value"``.

    Keyword Args:
        reward (EigenReward, optional): the module that the options learned from. Default: ``None``: their values are
            plain returns.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.modules.termination import value_termination
        >>> values = torch.tensor([[[-1.0, 0.0], [0.5, -1.0]]])  # one environment, two options, two actions
        >>> td = TensorDict({"option_action_value": values}, [1])
        >>> value_termination(td, torch.tensor([0])), value_termination(td, torch.tensor([1]))
        (tensor([True]), tensor([False]))
    """
    best = values_of(tensordict.get(action_value_key), option).amax(-1)
    if reward is None:
        return best <= 0
    offset = reward.value_offset(tensordict)
    return best <= offset.gather(-1, option.clamp(min=0).unsqueeze(-1)).squeeze(-1)


class TopTermination(nn.Module):
    r"""Ends an option at its top, and otherwise with probability 1/D.

    Covering eigenoptions end where no action has a positive value (Algorithm 2); deep ones after a geometric length
    (Algorithm 1), because learned values are never exactly 0. Then an option that has reached the top of its
    eigenfunction stays there for the rest of its length. This does both: where :math:`\max_a q(s, a) \le 0` the option
    ends, and elsewhere with probability 1/D, so that errors of the values cannot make it endless.

    Pass it as ``termination`` to :class:`~torchrl_dceo.modules.OptionExplorationModule`. It is a module, so the
    encoder's weights, which it needs in the mode ``"potential"``, are sent to worker processes with the policy.

    Args:
        reward (EigenReward, optional): what the options learned from. Default: ``None``: their values are plain
            returns.

    Keyword Args:
        duration (float, optional): D, an option's mean length where it does not reach its top. Default: ``10``.
        action_value_key (NestedKey, optional): the entry of the values. Default: ``"option_action_value"``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.modules import TopTermination
        >>> values = torch.tensor([[[-1.0, 0.0], [0.5, -1.0]]])  # one environment, two options, two actions
        >>> td = TensorDict({"option_action_value": values}, [1])
        >>> ends = TopTermination(duration=4)
        >>> ends(td, torch.tensor([0])), ends(td, torch.tensor([1]))
        (tensor([1.]), tensor([0.2500]))
    """

    def __init__(
        self,
        reward: EigenReward | None = None,
        *,
        duration: float = 10.0,
        action_value_key: NestedKey = "option_action_value",
    ) -> None:
        super().__init__()
        if duration < 1:
            raise ValueError(f"duration must be at least 1 step, got {duration}")
        self.reward = reward
        self.duration = duration
        self.action_value_key = action_value_key

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase, option: Tensor) -> Tensor:
        """The probability that each environment's option ends before this step."""
        top = value_termination(tensordict, option, self.action_value_key, reward=self.reward)
        return torch.where(top, 1.0, 1 / self.duration)


def values_of(option_action_value: Tensor, option: Tensor) -> Tensor:
    """Selects the action values ``[*, A]`` of one option per environment (of any option where there is none)."""
    index = option.clamp(min=0)[..., None, None]
    return option_action_value.take_along_dim(index, dim=-2).squeeze(-2)
