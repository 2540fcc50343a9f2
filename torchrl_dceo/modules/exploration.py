"""Exploration with options (Algorithm 1)."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data import TensorSpec

from torchrl_dceo.modules.ez_greedy import EZGreedyModule
from torchrl_dceo.modules.selection import DirectedSelection, Selection, uniform_selection
from torchrl_dceo.modules.temporally_extended import (
    NO_OPTION,
    EpsPer,
    TemporallyExtendedExploration,
    check_probability,
)
from torchrl_dceo.modules.termination import (
    Termination,
    TopTermination,
    value_termination,
    values_of,
)

__all__ = [
    "NO_OPTION",
    "EZGreedyModule",
    "OptionExplorationModule",
    "TemporallyExtendedExploration",
    "Termination",
    "TopTermination",
    "value_termination",
]

_HORIZON = 10_000  # frames, of the mean duration of options


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
            the annealing explores as in the paper and its end does not. At ε = 1 both are the same. With a
            ``termination`` the mean duration is not known but measured: pass every collected batch to :meth:`observe`.
            Default: ``"decision"``.
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
    option_steps: Tensor | None
    options_started: Tensor | None

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
        check_probability("option_eps", option_eps)
        if option_eps_init is not None:
            check_probability("option_eps_init", option_eps_init)
            if option_eps > option_eps_init:
                raise ValueError(
                    f"option_eps must not exceed option_eps_init, got {option_eps} > {option_eps_init}"
                )
        self.num_options = num_options
        self.option_duration = option_duration
        self.termination = termination
        # Steps of options and their number over the last frames, for their mean duration; None is not saved.
        measured = eps_per == "step" and termination is not None
        one = torch.tensor(1.0) if measured else None
        self.register_buffer("options_started", one)
        self.register_buffer("option_steps", None if one is None else one * option_duration)
        if not measured:
            self._count_steps()
        self.option_eps = option_eps
        self.option_eps_init = option_eps_init
        # A buffer for the same reasons as ε; None is not saved.
        annealed = None if option_eps_init is None else torch.tensor(float(option_eps_init))
        self.register_buffer("annealed_option_eps", annealed)
        self.selection = uniform_selection if selection is None else selection
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

    @property
    def measures_duration(self) -> bool:
        """Whether :meth:`observe` has to be called: ε counts steps and the mean duration of options is not known."""
        return self.option_steps is not None

    @torch.no_grad()
    def observe(self, tensordict: TensorDictBase) -> None:
        """Measures the mean duration of options over the last frames, for ``eps_per="step"`` with a ``termination``.

        Args:
            tensordict (TensorDictBase): a collected batch, with any batch shape.
        """
        if self.option_steps is None or self.options_started is None:
            return
        kept = (1 - 1 / _HORIZON) ** tensordict.numel()
        active = (tensordict.get(self.option_key) != NO_OPTION).sum()
        started = tensordict.get(self._start_key).sum()
        # In place, because collectors hold references to the buffers.
        self.option_steps.mul_(kept).add_(active.to(self.option_steps.device))
        self.options_started.mul_(kept).add_(started.to(self.options_started.device))
        self._anneal()

    def _annealed(self) -> tuple[Tensor, Tensor]:
        if not self.measures_duration:
            return super()._annealed()
        # ε_init and ε_end stay what was set, because a resumed run compares them: they are converted each time.
        first, last = (self._decision_probability(eps) for eps in (self.eps_init, self.eps_end))
        return torch.as_tensor(first), torch.as_tensor(last)

    def _mean_length(self) -> float | Tensor:
        if self.option_steps is None or self.options_started is None:
            return self.option_duration
        # An option takes at least one step; those that the last frames cut are counted where they are.
        return (self.option_steps / self.options_started).clamp(min=1.0)

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
        values = values_of(tensordict.get(self.action_value_key), option)
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
