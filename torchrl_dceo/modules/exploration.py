"""Exploration with options (Algorithm 1), and when they end."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data import TensorSpec

from torchrl_dceo.modules.ez_greedy import EZGreedyModule
from torchrl_dceo.modules.rewards import EigenReward
from torchrl_dceo.modules.selection import DirectedSelection, Selection, uniform_selection
from torchrl_dceo.modules.temporally_extended import (
    NO_OPTION,
    EpsPer,
    TemporallyExtendedExploration,
    check_probability,
)

__all__ = [
    "NO_OPTION",
    "EZGreedyModule",
    "OptionExplorationModule",
    "TemporallyExtendedExploration",
    "Termination",
    "value_termination",
]

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
