"""What every option-driven explorer shares: when to explore, for how long, and how the option in charge travels.

The option that acts is an entry of the tensordict, carried from step to step by the environment's
:class:`~torchrl.envs.TensorDictPrimer`, and never an attribute of the module. One policy therefore serves a single
environment, batched environments and any number of worker processes.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data import Bounded, OneHot, TensorSpec
from torchrl.envs import TensorDictPrimer
from torchrl.envs.utils import ExplorationType, exploration_type

from torchrl_dceo.modules.option_actor import action_leaf

__all__ = ["NO_OPTION", "TemporallyExtendedExploration", "check_probability"]

NO_OPTION = -1


class CarriedPrimer(TensorDictPrimer):
    """A primer whose entries outlive their episode: what an episode ends with is what the next one begins with."""

    # Of the step before a reset; TorchRL shows a reset nothing of it. Both happen in one call of the environment, so
    # there is nothing here to be saved.
    _last: TensorDictBase | None = None

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        out = super()._step(tensordict, next_tensordict)
        self._last = out.select(*self.primers.keys(True, True))
        return out

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        # Only the end of an episode says which environments to reset.
        ended = tensordict.get(self.reset_key, None) is not None
        if ended and self._last is not None:
            return tensordict_reset.update(self._last)
        return super()._reset(tensordict, tensordict_reset)


class TemporallyExtendedExploration(TensorDictModuleBase):
    """What every option-driven explorer shares: when to explore, for how long, and how ε decays.

    A subclass says how an option starts, whether it ends here, and which action it takes; see
    :class:`OptionExplorationModule` for the meaning of the arguments.
    """

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
        across_episodes: bool = False,
    ) -> None:
        super().__init__()
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
        leaf = action_leaf(spec, action_key)
        self.num_actions = int(leaf.space.n)
        self._one_hot_dtype = leaf.dtype if isinstance(leaf, OneHot) else None
        self.annealing_num_steps = annealing_num_steps
        self.annealing_start = annealing_start
        self.option_prob = option_prob
        self.action_key = action_key
        self.option_key = option_key
        self.is_init_key = is_init_key
        self.across_episodes = across_episodes
        # Buffers, so that they are saved with the policy and sent to worker processes with its weights.
        self.register_buffer("eps_init", torch.tensor(float(eps_init)))
        self.register_buffer("eps_end", torch.tensor(float(eps_end)))
        self.register_buffer("eps", torch.tensor(float(eps_init)))
        self.register_buffer("frames", torch.tensor(0))

    def step(self, frames: int = 1) -> None:
        """Anneals ε by a number of collected frames: linearly, from ``annealing_start`` on."""
        # The buffers are written in place: collectors hold references to them.
        self.frames.add_(frames)
        progress = (self.frames - self.annealing_start) / self.annealing_num_steps
        self.eps.copy_(torch.lerp(self.eps_init, self.eps_end, progress.clamp_(0, 1)))

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """Returns the transform that makes the environment carry the explorer's state, and reset it if need be."""
        specs, defaults = {}, {}
        for key, (low, high, default) in self._state().items():
            specs[key] = Bounded(low, high, shape=(), dtype=torch.int64)
            defaults[key] = default
        primer = CarriedPrimer if self.across_episodes else TensorDictPrimer
        return primer(specs, default_value=defaults, expand_specs=True)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replaces the greedy action where the environment explores, and writes the explorer's state."""
        option = tensordict.get(self.option_key, None)
        if option is None:
            raise KeyError(
                f"{type(self).__name__} reads its state under {self.option_key!r}, which is not in the "
                "tensordict: append make_tensordict_primer() to the environment's transforms"
            )
        if exploration_type() not in (ExplorationType.RANDOM, None):
            self._write(tensordict, torch.full_like(option, NO_OPTION), None)
            return tensordict
        # Algorithm 1, vectorised: every branch is computed, masks choose.
        goes_on = (option != NO_OPTION) & ~self._ends(tensordict, option)
        if not self.across_episodes:
            goes_on &= ~self._is_init(tensordict).view(option.shape)
        explore_draw, start_draw = torch.rand((2, *option.shape), device=option.device).unbind()
        explores = (explore_draw < self.eps) & ~goes_on
        starts = explores & (start_draw < self.option_prob)
        option = torch.where(goes_on, option, NO_OPTION)
        option = torch.where(starts, self._start(tensordict), option)
        random_action = torch.randint(self.num_actions, option.shape, device=option.device)
        action = torch.where(explores, random_action, self._action_index(tensordict))
        option_action = self._option_action(tensordict, option, random_action)
        action = torch.where(option != NO_OPTION, option_action, action)
        self._set_action(tensordict, action)
        self._write(tensordict, option, starts)
        return tensordict

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
        """Writes the option that acts now, which is also the state handed to the next step."""
        if starts is None:
            starts = torch.zeros_like(option, dtype=torch.bool)
        tensordict.set(self.option_key, option)
        tensordict.set(unravel_key(("next", self.option_key)), option)
        tensordict.set(self._start_key, starts)

    def _sibling_key(self, suffix: str) -> NestedKey:
        """The option key with a suffix, in the same place: ``option_start`` beside ``option``."""
        *path, name = (self.option_key,) if isinstance(self.option_key, str) else self.option_key
        return unravel_key((*path, f"{name}_{suffix}"))

    @property
    def _start_key(self) -> NestedKey:
        return self._sibling_key("start")

    @abstractmethod
    def _state(self) -> dict[NestedKey, tuple[int, int, int]]:
        """Lowest, highest and reset value of each entry of the explorer's state."""

    @abstractmethod
    def _ends(self, tensordict: TensorDictBase, option: Tensor) -> Tensor:
        """Where the running option ends before this step."""

    @abstractmethod
    def _start(self, tensordict: TensorDictBase) -> Tensor:
        """The option that would start in each environment."""

    @abstractmethod
    def _option_action(
        self, tensordict: TensorDictBase, option: Tensor, random_action: Tensor
    ) -> Tensor:
        """The action of the running option in each environment (anything where there is none)."""


def check_probability(name: str, value: float) -> None:
    """Refuses a number outside [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
