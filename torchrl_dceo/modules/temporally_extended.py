"""The base of temporally extended exploration: the decision to explore, its duration, and the annealing of ε."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, get_args

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data import Bounded, OneHot, TensorSpec
from torchrl.envs import TensorDictPrimer
from torchrl.envs.utils import ExplorationType, exploration_type

from torchrl_dceo._fast.actors import ReadsLess
from torchrl_dceo.modules.option_actor import action_leaf

__all__ = [
    "NO_OPTION",
    "CarriedPrimer",
    "EpsPer",
    "TemporallyExtendedExploration",
    "check_probability",
]

NO_OPTION = -1

EpsPer = Literal["decision", "step"]

_NEVER = torch.iinfo(torch.int64).max


class CarriedPrimer(TensorDictPrimer):
    """A primer whose entries are kept across episodes."""

    # From the step before a reset, which TorchRL's reset does not receive. Both run in one call of the environment, so
    # checkpoints do not need it.
    _last: TensorDictBase | None = None

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        out = super()._step(tensordict, next_tensordict)
        self._last = out.select(*self.primers.keys(True, True))
        return out

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        # The mask of environments to reset exists only at the end of an episode.
        ended = tensordict.get(self.reset_key, None) is not None
        if ended and self._last is not None:
            return tensordict_reset.update(self._last)
        return super()._reset(tensordict, tensordict_reset)


class TemporallyExtendedExploration(ReadsLess, TensorDictModuleBase):
    """Base of the exploration modules: the decision to explore, its duration, and the annealing of ε.

    A subclass defines how an option starts, whether it ends, and its action; see
    :class:`OptionExplorationModule` for the meaning of the arguments.
    """

    unrewarded: Tensor | None

    def __init__(
        self,
        spec: TensorSpec,
        *,
        eps_init: float,
        eps_end: float,
        annealing_num_steps: int,
        annealing_start: int,
        option_prob: float,
        action_key: NestedKey,
        option_key: NestedKey,
        is_init_key: NestedKey,
        action_mask_key: NestedKey | None = None,
        across_episodes: bool = False,
        eps_per: EpsPer = "decision",
        wait_for_reward: bool = False,
        reward_patience: int | None = None,
    ) -> None:
        super().__init__()
        if eps_per not in get_args(EpsPer):
            raise ValueError(f"eps_per must be one of {get_args(EpsPer)}, got {eps_per!r}")
        for name, value in (
            ("eps_init", eps_init),
            ("eps_end", eps_end),
            ("option_prob", option_prob),
        ):
            check_probability(name, value)
        if eps_end > eps_init:
            raise ValueError(f"eps_end must not exceed eps_init, got {eps_end} > {eps_init}")
        if annealing_num_steps < 1:
            raise ValueError(f"annealing_num_steps must be at least 1, got {annealing_num_steps}")
        if annealing_start < 0:
            raise ValueError(f"annealing_start must not be negative, got {annealing_start}")
        if reward_patience is not None and not wait_for_reward:
            raise ValueError(
                f"reward_patience={reward_patience} has no effect without wait_for_reward=True"
            )
        if reward_patience is not None and reward_patience < 1:
            raise ValueError(
                f"reward_patience must be at least 1 frame, got {reward_patience}: None waits for ever"
            )
        leaf = action_leaf(spec, action_key)
        self.num_actions = int(leaf.space.n)
        self._one_hot_dtype = leaf.dtype if isinstance(leaf, OneHot) else None
        self.annealing_num_steps = annealing_num_steps
        self.annealing_start = annealing_start
        self.option_prob = option_prob
        self.action_key = action_key
        self.option_key = option_key
        self.is_init_key = is_init_key
        self.action_mask_key = action_mask_key
        self.across_episodes = across_episodes
        self.eps_per = eps_per
        self.reward_patience = reward_patience
        self.wait_for_reward = wait_for_reward
        # Buffers, so that they are saved with the policy and sent to worker processes with its weights.
        self.register_buffer("eps_init", torch.tensor(float(eps_init)))
        self.register_buffer("eps_end", torch.tensor(float(eps_end)))
        self.register_buffer("eps", torch.tensor(float(eps_init)))
        self.register_buffer("frames", torch.tensor(0))
        # The frame at which the annealing of ε starts: that of the first reward, if it waits for one.
        self.register_buffer("began", torch.tensor(_NEVER if wait_for_reward else 0))
        # Greedy steps since the last reward, for reward_patience; None is not saved.
        since = None if reward_patience is None else torch.tensor(0.0)
        self.register_buffer("unrewarded", since)

    @property
    def waits_for_reward(self) -> bool:
        """Whether :meth:`step` has to be told of rewards: ε waits for one, or returns to its start without."""
        return self.wait_for_reward and (
            self.reward_patience is not None or bool(self.began == _NEVER)
        )

    def step(self, frames: int = 1, *, rewarded: bool = False) -> None:
        """Anneals ε linearly by a number of collected frames, from ``annealing_start`` on.

        Args:
            frames (int): the number of collected frames.

        Keyword Args:
            rewarded (bool): whether any of them had a reward, for ``wait_for_reward`` and ``reward_patience``.
        """
        # The buffers are written in place, because collectors hold references to them.
        self.frames.add_(frames)
        if rewarded:
            torch.minimum(self.began, self.frames, out=self.began)
        if self.unrewarded is not None and self.reward_patience is not None:
            # Only greedy steps count: while ε is near 1, nothing was tried that could have failed.
            self.unrewarded.add_(frames * self._greedy_share()).mul_(not rewarded)
            lapsed = self.unrewarded > self.reward_patience
            self.began.masked_fill_(lapsed, _NEVER)
            self.unrewarded.masked_fill_(lapsed, 0.0)
        self._anneal()

    def _anneal(self) -> None:
        self.eps.copy_(torch.lerp(*self._annealed(), self._progress()))

    def _annealed(self) -> tuple[Tensor, Tensor]:
        """The probability of exploring at a decision, before and after annealing."""
        return self.eps_init, self.eps_end

    def _progress(self) -> Tensor:
        """The progress of the annealing, from 0 to 1."""
        start = self.began.clamp(min=self.annealing_start)
        return ((self.frames - start) / self.annealing_num_steps).clamp_(0, 1)

    def _exploring_length(self) -> float | Tensor:
        """The mean number of steps L of a decision to explore: μ E[length] + 1 − μ."""
        return self.option_prob * self._mean_length() + 1 - self.option_prob

    def _decision_probability(self, eps: float | Tensor) -> float | Tensor:
        """The probability p of exploring at a decision, for a share ε of exploratory steps.

        A decision to explore takes L steps, any other takes one: p L / (p L + 1 − p) = ε.
        """
        return eps / (eps + (1 - eps) * self._exploring_length())

    def _greedy_share(self) -> Tensor:
        """The share of greedy steps, (1 − p) / (p L + 1 − p), at the current probability p of exploring."""
        greedy = 1 - self.eps
        return greedy / (self.eps * self._exploring_length() + greedy)

    def _count_steps(self) -> None:
        """Converts ε per step to ε per decision; subclasses call it once the durations are known."""
        if self.eps_per == "step":
            for eps in (self.eps_init, self.eps_end, self.eps):
                eps.fill_(self._decision_probability(float(eps)))

    @property
    def greedy_in_keys(self) -> list[NestedKey]:
        """The entries that it reads under deterministic exploration."""
        own = type(self).forward is not TemporallyExtendedExploration.forward
        return list(self.in_keys) if own else [self.action_key, self.option_key]

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """Returns the transform that adds the module's state to the environment's tensordict, and resets it."""
        specs, defaults = {}, {}
        for key, (low, high, default) in self._state().items():
            specs[key] = Bounded(low, high, shape=(), dtype=torch.int64)
            defaults[key] = default
        primer = CarriedPrimer if self.across_episodes else TensorDictPrimer
        return primer(specs, default_value=defaults, expand_specs=True)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replaces the greedy action in environments that explore, and writes the module's state."""
        option = tensordict.get(self.option_key, None)
        if option is None:
            raise KeyError(
                f"{type(self).__name__} reads its state under {self.option_key!r}, which is not in the "
                "tensordict: append make_tensordict_primer() to the environment's transforms"
            )
        if exploration_type() not in (ExplorationType.RANDOM, None):
            self._write(tensordict, torch.full_like(option, NO_OPTION), None)
            return tensordict
        # Algorithm 1, vectorised: every branch is computed, masks select.
        continues = (option != NO_OPTION) & ~self._ends(tensordict, option)
        if not self.across_episodes:
            continues &= ~self._is_init(tensordict).view(option.shape)
        explore_draw, start_draw = torch.rand((2, *option.shape), device=option.device).unbind()
        explores = (explore_draw < self.eps) & ~continues
        starts = explores & (start_draw < self.option_prob)
        option = torch.where(continues, option, NO_OPTION)
        option = torch.where(starts, self._start(tensordict), option)
        random_action = self._random_action(tensordict, option.shape, option.device)
        action = torch.where(explores, random_action, self._action_index(tensordict))
        option_action = self._option_action(tensordict, option, random_action)
        action = torch.where(option != NO_OPTION, option_action, action)
        self._set_action(tensordict, action)
        self._write(tensordict, option, starts)
        return tensordict

    def _mask(self, tensordict: TensorDictBase) -> Tensor | None:
        """The mask of allowed actions, bool ``[*, A]``; ``None`` if there is no mask."""
        key = self.action_mask_key
        if key is None:
            return None
        mask = tensordict.get(key, None)
        if mask is None:
            raise KeyError(
                f"{type(self).__name__} reads {key!r}, which is not in the tensordict: append TorchRL's ActionMask() "
                "to the environment's transforms, or leave out action_mask_key"
            )
        shape = (*tensordict.get(self.option_key).shape, self.num_actions)
        if mask.shape != shape or mask.dtype != torch.bool:
            raise ValueError(
                f"the action mask {key!r} must be boolean and of shape {shape}, got {mask.dtype} and "
                f"{tuple(mask.shape)}"
            )
        return mask

    def _random_action(
        self, tensordict: TensorDictBase, shape: torch.Size, device: torch.device
    ) -> Tensor:
        """A uniformly random action for every environment, among those allowed."""
        mask = self._mask(tensordict)
        if mask is None:
            return torch.randint(self.num_actions, shape, device=device)
        weights = mask.reshape(-1, self.num_actions).to(torch.float32)
        return torch.multinomial(weights, 1).view(shape)

    def _is_init(self, tensordict: TensorDictBase) -> Tensor:
        is_init = tensordict.get(self.is_init_key, None)
        if is_init is None:
            raise KeyError(
                f"{type(self).__name__} needs {self.is_init_key!r} to end options with their episode: append TorchRL's "
                "InitTracker() to the environment's transforms"
            )
        return is_init

    def _action_index(self, tensordict: TensorDictBase) -> Tensor:
        action = tensordict.get(self.action_key)
        return action if self._one_hot_dtype is None else action.to(torch.int64).argmax(-1)

    def _set_action(self, tensordict: TensorDictBase, action: Tensor) -> None:
        if self._one_hot_dtype is not None:
            action = torch.nn.functional.one_hot(action, self.num_actions).to(self._one_hot_dtype)
        tensordict.set(self.action_key, action)

    def _write(self, tensordict: TensorDictBase, option: Tensor, starts: Tensor | None) -> None:
        """Writes the active option, which is also the state for the next step."""
        if starts is None:
            starts = torch.zeros_like(option, dtype=torch.bool)
        tensordict.set(self.option_key, option)
        tensordict.set(unravel_key(("next", self.option_key)), option)
        tensordict.set(self._start_key, starts)

    def _sibling_key(self, suffix: str) -> NestedKey:
        """The option key with a suffix, in the same nested tensordict: ``option_start`` for ``option``."""
        *path, name = (self.option_key,) if isinstance(self.option_key, str) else self.option_key
        return unravel_key((*path, f"{name}_{suffix}"))

    @property
    def _start_key(self) -> NestedKey:
        return self._sibling_key("start")

    @abstractmethod
    def _state(self) -> dict[NestedKey, tuple[int, int, int]]:
        """Lowest, highest and reset value of each entry of the module's state."""

    @abstractmethod
    def _mean_length(self) -> float | Tensor:
        """The mean duration of an option in steps, ignoring the end of episodes."""

    @abstractmethod
    def _ends(self, tensordict: TensorDictBase, option: Tensor) -> Tensor:
        """The mask of environments whose active option ends before this step."""

    @abstractmethod
    def _start(self, tensordict: TensorDictBase) -> Tensor:
        """The option that would start in each environment."""

    @abstractmethod
    def _option_action(
        self, tensordict: TensorDictBase, option: Tensor, random_action: Tensor
    ) -> Tensor:
        """The action of the active option in each environment (arbitrary if there is none)."""


def check_probability(name: str, value: float) -> None:
    """Raises an error for a number outside [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
