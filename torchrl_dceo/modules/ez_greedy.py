"""Exploration with repeated actions: εz-greedy."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data import TensorSpec

from torchrl_dceo.modules.temporally_extended import (
    NO_OPTION,
    EpsPer,
    TemporallyExtendedExploration,
)

__all__ = ["EZGreedyModule"]


class EZGreedyModule(TemporallyExtendedExploration):
    r"""εz-greedy (Dabney, Ostrovski & Barreto 2021): exploration repeats random actions, with zeta-distributed lengths.

    With probability ε the agent explores: with probability μ it draws a uniformly random action and repeats it for
    :math:`n \sim \mathrm{zeta}(k)` steps, :math:`P(n) \propto n^{-k}`; otherwise it takes a single uniformly random
    action. Its options are the repeated actions; everything else is as in
    :class:`~torchrl_dceo.modules.OptionExplorationModule`. Zeta lengths are not memoryless, so the number of remaining
    steps is a second entry of the state, ``option_remaining``.

    Args:
        spec (TensorSpec): the action spec, unbatched or batched.

    Keyword Args:
        eps_init, eps_end, annealing_num_steps, annealing_start: as in
            :class:`~torchrl_dceo.modules.OptionExplorationModule`.
        option_prob (float, optional): μ, the probability that exploring repeats an action. ``1.0`` is the published
            εz-greedy. Default: ``1.0``.
        zeta_exponent (float, optional): k > 1. Default: ``2.0``, the best of Dabney et al.
        max_duration (int, optional): the zeta distribution is truncated here. Default: ``10_000``.
        eps_per, wait_for_reward, reward_patience: as in :class:`~torchrl_dceo.modules.OptionExplorationModule`.
        action_key, option_key, is_init_key (NestedKey, optional): the names of the entries.
        action_mask_key (NestedKey, optional): the mask of allowed actions, bool ``[*, A]``: random actions are
            among them, and a repetition ends where its action is not. Default: ``None``, no mask.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl_dceo.modules import EZGreedyModule
        >>> explore = EZGreedyModule(Categorical(4))
        >>> td = TensorDict({"action": torch.zeros(5, dtype=torch.int64), "option": torch.full((5,), -1),
        ...     "option_remaining": torch.zeros(5, dtype=torch.int64),
        ...     "is_init": torch.ones(5, 1, dtype=torch.bool)}, [5])
        >>> td = explore(td)
        >>> bool((td["option"] == td["action"]).all())
        True
    """

    def __init__(
        self,
        spec: TensorSpec,
        *,
        eps_init: float = 1.0,
        eps_end: float = 0.1,
        annealing_num_steps: int = 1000,
        annealing_start: int = 0,
        option_prob: float = 1.0,
        zeta_exponent: float = 2.0,
        max_duration: int = 10_000,
        eps_per: EpsPer = "decision",
        wait_for_reward: bool = False,
        reward_patience: int | None = None,
        action_key: NestedKey = "action",
        option_key: NestedKey = "option",
        is_init_key: NestedKey = "is_init",
        action_mask_key: NestedKey | None = None,
    ) -> None:
        super().__init__(
            spec,
            eps_init=eps_init,
            eps_end=eps_end,
            annealing_num_steps=annealing_num_steps,
            annealing_start=annealing_start,
            option_prob=option_prob,
            action_key=action_key,
            option_key=option_key,
            is_init_key=is_init_key,
            action_mask_key=action_mask_key,
            eps_per=eps_per,
            wait_for_reward=wait_for_reward,
            reward_patience=reward_patience,
        )
        if zeta_exponent <= 1:
            raise ValueError(f"zeta_exponent must be greater than 1, got {zeta_exponent}")
        if max_duration < 1:
            raise ValueError(f"max_duration must be at least 1, got {max_duration}")
        self.zeta_exponent = zeta_exponent
        self.max_duration = max_duration
        self.remaining_key = self._sibling_key("remaining")
        lengths = torch.arange(1, max_duration + 1, dtype=torch.float64)
        weights = lengths**-zeta_exponent
        self._mean = float((weights * lengths).sum() / weights.sum())
        self._count_steps()
        # Not saved: it is computed from the arguments.
        self.register_buffer("_cdf", weights.cumsum(0) / weights.sum(), persistent=False)
        self.in_keys = [action_key, option_key, self.remaining_key, is_init_key]
        if action_mask_key is not None:
            self.in_keys.append(action_mask_key)
        self.out_keys = [
            action_key,
            option_key,
            self.remaining_key,
            unravel_key(("next", option_key)),
            unravel_key(("next", self.remaining_key)),
            self._start_key,
        ]

    def _state(self) -> dict[NestedKey, tuple[int, int, int]]:
        return {
            self.option_key: (NO_OPTION, self.num_actions - 1, NO_OPTION),
            self.remaining_key: (0, self.max_duration - 1, 0),
        }

    def _mean_length(self) -> float:
        return self._mean

    def _ends(self, tensordict: TensorDictBase, option: Tensor) -> Tensor:
        ends = tensordict.get(self.remaining_key) == 0
        mask = self._mask(tensordict)
        if mask is None:
            return ends
        # An action that is no longer allowed cannot be repeated.
        return ends | ~mask.gather(-1, option.clamp(min=0).unsqueeze(-1)).squeeze(-1)

    def _start(self, tensordict: TensorDictBase) -> Tensor:
        return self._random_action(tensordict, tensordict.shape, self._cdf.device)

    def _option_action(
        self, tensordict: TensorDictBase, option: Tensor, random_action: Tensor
    ) -> Tensor:
        return option

    def _draw_durations(self, shape: torch.Size) -> Tensor:
        draws = torch.rand(shape, dtype=torch.float64, device=self._cdf.device)
        return torch.searchsorted(self._cdf, draws, right=True).clamp(max=self.max_duration - 1) + 1

    def _write(self, tensordict: TensorDictBase, option: Tensor, starts: Tensor | None) -> None:
        remaining = tensordict.get(self.remaining_key) - 1
        if starts is not None:
            remaining = torch.where(starts, self._draw_durations(option.shape) - 1, remaining)
        remaining = torch.where(option == NO_OPTION, 0, remaining)
        tensordict.set(self.remaining_key, remaining)
        tensordict.set(unravel_key(("next", self.remaining_key)), remaining)
        super()._write(tensordict, option, starts)
