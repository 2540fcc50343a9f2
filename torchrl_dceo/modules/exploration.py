"""Temporally extended exploration: with options (Algorithm 1), and with repeated actions (ez-greedy)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal, get_args

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data import Bounded, OneHot, TensorSpec
from torchrl.envs import TensorDictPrimer
from torchrl.envs.utils import ExplorationType, exploration_type

from torchrl_dceo.modules.option_actor import action_leaf
from torchrl_dceo.modules.rewards import EigenReward
from torchrl_dceo.modules.selection import DirectedSelection, Selection, uniform_selection

__all__ = [
    "NO_OPTION",
    "EZGreedyModule",
    "OptionExplorationModule",
    "TemporallyExtendedExploration",
    "value_termination",
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


class TemporallyExtendedExploration(TensorDictModuleBase):
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
        self.eps.copy_(torch.lerp(self.eps_init, self.eps_end, self._progress()))

    def _progress(self) -> Tensor:
        """The progress of the annealing, from 0 to 1."""
        start = self.began.clamp(min=self.annealing_start)
        return ((self.frames - start) / self.annealing_num_steps).clamp_(0, 1)

    def _exploring_length(self) -> float:
        """The mean number of steps L of a decision to explore: μ E[length] + 1 − μ."""
        return self.option_prob * self._mean_length() + 1 - self.option_prob

    def _decision_probability(self, eps: float) -> float:
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
    def _mean_length(self) -> float:
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
        >>> from torchrl_dceo.modules.exploration import value_termination
        >>> values = torch.tensor([[[-1.0, 0.0], [0.5, -1.0]]])  # one environment, two options, two actions
        >>> td = TensorDict({"option_action_value": values}, [1])
        >>> value_termination(td, torch.tensor([0])), value_termination(td, torch.tensor([1]))
        (tensor([True]), tensor([False]))
    """
    best = _values_of(tensordict.get(action_value_key), option).amax(-1)
    if reward is None:
        return best <= 0
    offset = reward.value_offset(tensordict)
    return best <= offset.gather(-1, option.clamp(min=0).unsqueeze(-1)).squeeze(-1)


def _values_of(option_action_value: Tensor, option: Tensor) -> Tensor:
    """Selects the action values ``[*, A]`` of one option per environment (of any option where there is none)."""
    index = option.clamp(min=0)[..., None, None]
    return option_action_value.take_along_dim(index, dim=-2).squeeze(-2)


class OptionExplorationModule(TemporallyExtendedExploration):
    r"""Explores with options: the paper's Algorithm 1, for each environment of the batch.

    An active option ends at every step with probability 1/D, and always with its episode. Without an active option the
    agent explores with probability ε: with probability μ it starts an option, chosen uniformly, which then acts
    greedily in its own values until it ends; otherwise it takes one uniformly random action. The main learner's action
    is kept where the agent does not explore, and always under a deterministic
    :func:`~torchrl.envs.utils.set_exploration_type`.

    Reads ``action`` (of the main learner), ``option_action_value``, ``option`` and ``is_init``; writes ``action``,
    ``option`` and ``("next", "option")`` (the option that acts, -1 for none) and ``option_start`` (true on an option's
    first step). The environment needs :class:`~torchrl.envs.InitTracker` and :meth:`make_tensordict_primer`.

    Args:
        spec (TensorSpec): the action spec, unbatched or batched.

    Keyword Args:
        num_options (int): number of options, N.
        eps_init (float, optional): ε before annealing. Default: ``1.0``.
        eps_end (float, optional): ε after annealing. Default: ``0.1``.
        annealing_num_steps (int, optional): frames over which ε decays linearly; call :meth:`step` as they are
            collected. Default: ``1000``.
        annealing_start (int, optional): frames before ε starts to decay, e.g. a discovery phase. Default: ``0``.
        option_prob (float, optional): μ, the probability that exploring starts an option. Default: ``0.9``.
        option_duration (float, optional): D, the mean number of steps of an option. Default: ``10``.
        option_eps (float, optional): probability of a uniformly random action inside an option. Default: ``0.0``.
        option_eps_init (float, optional): that probability before annealing; it decays to ``option_eps``
            along with ε. Default: ``None``: constant.
        eps_per (str, optional): ``"decision"``: at each decision, where no option is active, the agent explores with
            probability ε, as in the paper; options last, so that at ε = 0.1, μ = 0.8, D = 10 nearly half of all steps
            explore. ``"step"``: ``eps_init`` and ``eps_end`` are shares of steps, as for an agent with single random
            actions; they are converted to probabilities of decisions, between which ε decays linearly, so that most of
            the annealing explores as in the paper and its end does not. At ε = 1 both are the same. Default:
            ``"decision"``.
        wait_for_reward (bool, optional): whether ε starts to decay only when :meth:`step` was called with
            ``rewarded=True``: until then there is nothing to exploit. Default: ``False``.
        reward_patience (int, optional): with ``wait_for_reward``, ε returns to ``eps_init`` after this many greedy
            steps (frames times their expected share at the current ε) without a reward, and waits for the next one:
            what was learned is of no use any more, as after a change of the environment. Default: ``None``, never.
        across_episodes (bool, optional): whether an option continues in the next episode, as in the authors' released
            code, instead of ending with its own. Default: ``False``, as in the paper.
        selection (callable, optional): ``selection(tensordict, num_options)`` returns the option to start in each
            environment. Default: :func:`~torchrl_dceo.modules.selection.uniform_selection`.
        termination (callable, optional): ``termination(tensordict, option)`` returns for each environment the
            probability that its option ends before this step (booleans count as 0 and 1). Default: the constant 1/D.
        action_key, option_key, is_init_key, action_value_key (NestedKey, optional): the names of the entries.
        action_mask_key (NestedKey, optional): the mask of allowed actions, bool ``[*, A]``, as in TorchRL's
            ``EGreedyModule``: random actions and those of options are then among them. Default: ``None``, no mask.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl_dceo.modules import OptionExplorationModule
        >>> explore = OptionExplorationModule(Categorical(4), num_options=3, option_prob=1.0)
        >>> td = TensorDict({"action": torch.zeros(5, dtype=torch.int64), "option_action_value": torch.randn(5, 3, 4),
        ...     "option": torch.full((5,), -1), "is_init": torch.ones(5, 1, dtype=torch.bool)}, [5])
        >>> td = explore(td)  # ε = 1 and μ = 1: every environment starts an option
        >>> bool((td["option"] >= 0).all()), bool(td["option_start"].all())
        (True, True)
    """

    annealed_option_eps: Tensor | None

    def __init__(
        self,
        spec: TensorSpec,
        *,
        num_options: int,
        eps_init: float = 1.0,
        eps_end: float = 0.1,
        annealing_num_steps: int = 1000,
        annealing_start: int = 0,
        option_prob: float = 0.9,
        option_duration: float = 10,
        option_eps: float = 0.0,
        option_eps_init: float | None = None,
        eps_per: EpsPer = "decision",
        wait_for_reward: bool = False,
        reward_patience: int | None = None,
        across_episodes: bool = False,
        selection: Selection | None = None,
        termination: Termination | None = None,
        action_key: NestedKey = "action",
        option_key: NestedKey = "option",
        is_init_key: NestedKey = "is_init",
        action_value_key: NestedKey = "option_action_value",
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
            across_episodes=across_episodes,
            eps_per=eps_per,
            wait_for_reward=wait_for_reward,
            reward_patience=reward_patience,
        )
        if num_options < 1:
            raise ValueError(f"num_options must be at least 1, got {num_options}")
        if option_duration < 1:
            raise ValueError(f"option_duration must be at least 1 step, got {option_duration}")
        if eps_per == "step" and termination is not None:
            raise ValueError(
                "eps_per='step' needs the duration of options, which is unknown with a custom termination: set "
                "eps_per='decision' with it"
            )
        check_probability("option_eps", option_eps)
        if option_eps_init is not None:
            check_probability("option_eps_init", option_eps_init)
            if option_eps > option_eps_init:
                raise ValueError(
                    f"option_eps must not exceed option_eps_init, got {option_eps} > {option_eps_init}"
                )
        self.num_options = num_options
        self.option_duration = option_duration
        self._count_steps()
        self.option_eps = option_eps
        self.option_eps_init = option_eps_init
        # A buffer for the same reasons as ε; None is not saved.
        annealed = None if option_eps_init is None else torch.tensor(float(option_eps_init))
        self.register_buffer("annealed_option_eps", annealed)
        self.selection = uniform_selection if selection is None else selection
        self.termination = termination
        self.action_value_key = action_value_key
        self.in_keys = [action_key, action_value_key, option_key, is_init_key]
        if action_mask_key is not None:
            self.in_keys.append(action_mask_key)
        self.out_keys = [action_key, option_key, unravel_key(("next", option_key)), self._start_key]

    def step(self, frames: int = 1, *, rewarded: bool = False) -> None:
        """Anneals ε and, with ``option_eps_init``, that inside options, by a number of collected frames."""
        super().step(frames, rewarded=rewarded)
        if self.annealed_option_eps is not None and self.option_eps_init is not None:
            progress = self._progress()
            eps = (1 - progress) * self.option_eps_init + progress * self.option_eps
            self.annealed_option_eps.copy_(eps)

    def _state(self) -> dict[NestedKey, tuple[int, int, int]]:
        return {self.option_key: (NO_OPTION, self.num_options - 1, NO_OPTION)}

    def _mean_length(self) -> float:
        return self.option_duration

    def _ends(self, tensordict: TensorDictBase, option: Tensor) -> Tensor:
        probability: Tensor | float = 1 / self.option_duration
        if self.termination is not None:
            probability = self.termination(tensordict, option)
            if probability.shape != option.shape:
                raise ValueError(
                    f"termination must return one probability per environment, shape {tuple(option.shape)}, got "
                    f"{tuple(probability.shape)}"
                )
        return torch.rand(option.shape, device=option.device) < probability

    def _start(self, tensordict: TensorDictBase) -> Tensor:
        option = self.selection(tensordict, self.num_options)
        shape = tensordict.get(self.option_key).shape
        if option.shape != shape or option.dtype != torch.int64:
            raise ValueError(
                f"selection must return one int64 option per environment, shape {tuple(shape)}, got {option.dtype} of "
                f"shape {tuple(option.shape)}"
            )
        # Reading the values synchronises an accelerator, so our own selections are not checked.
        own = self.selection is uniform_selection or isinstance(self.selection, DirectedSelection)
        if not own:
            low, high = int(option.min()), int(option.max())
            if low < 0 or high >= self.num_options:
                raise ValueError(
                    f"selection must return options from 0 to {self.num_options - 1}, got {low} to {high}"
                )
        return option

    def _option_action(
        self, tensordict: TensorDictBase, option: Tensor, random_action: Tensor
    ) -> Tensor:
        values = _values_of(tensordict.get(self.action_value_key), option)
        mask = self._mask(tensordict)
        if mask is not None:
            values = values.masked_fill(~mask, -torch.inf)
        action = values.argmax(-1)
        annealed = self.annealed_option_eps
        if annealed is None and self.option_eps == 0:
            return action
        eps = self.option_eps if annealed is None else annealed
        randomly = torch.rand(option.shape, device=option.device) < eps
        return torch.where(randomly, random_action, action)


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
