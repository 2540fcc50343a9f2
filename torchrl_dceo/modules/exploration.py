"""Exploration with options: the behaviour of the paper's Algorithm 1, per environment of the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data import TensorSpec

from torchrl_dceo.modules.temporally_extended import (
    NO_OPTION,
    TemporallyExtendedExploration,
    check_probability,
)

__all__ = [
    "OptionExplorationModule",
    "uniform_selection",
    "value_termination",
]

Selection = Callable[[TensorDictBase, int], Tensor]
Termination = Callable[[TensorDictBase, Tensor], Tensor]


def uniform_selection(tensordict: TensorDictBase, num_options: int) -> Tensor:
    """Draws an option uniformly for every environment: Algorithm 1's choice.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.modules.exploration import uniform_selection
        >>> uniform_selection(TensorDict({"option": torch.full((3,), -1)}, [3]), num_options=10).shape
        torch.Size([3])
    """
    return torch.randint(num_options, tensordict.shape, device=tensordict.device)


def value_termination(
    tensordict: TensorDictBase, option: Tensor, action_value_key: NestedKey = "option_action_value"
) -> Tensor:
    """Ends an option where no action has a positive value, as covering eigenoptions do with exact values.

    Pass it as ``termination`` to :class:`OptionExplorationModule` instead of the geometric length.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.modules.exploration import value_termination
        >>> values = torch.tensor([[[-1.0, 0.0], [0.5, -1.0]]])  # one environment, two options, two actions
        >>> td = TensorDict({"option_action_value": values}, [1])
        >>> value_termination(td, torch.tensor([0])), value_termination(td, torch.tensor([1]))
        (tensor([True]), tensor([False]))
    """
    return _values_of(tensordict.get(action_value_key), option).amax(-1) <= 0


def _values_of(option_action_value: Tensor, option: Tensor) -> Tensor:
    """Selects the action values ``[*, A]`` of one option per environment (of any option where there is none)."""
    index = option.clamp(min=0)[..., None, None]
    return option_action_value.take_along_dim(index, dim=-2).squeeze(-2)


class OptionExplorationModule(TemporallyExtendedExploration):
    r"""Explores with options: the paper's Algorithm 1, for each environment of the batch.

    At every step an option that is active ends with probability 1/D, and always with its episode. Where none is active
    the agent explores with probability ε: with probability μ it starts an option, chosen uniformly, which then acts
    greedily in its own values until it ends; otherwise it takes one uniformly random action. Where the agent does not
    explore, the action that the main learner wrote stays. Under a deterministic
    :func:`~torchrl.envs.utils.set_exploration_type` the main learner's action always stays.

    Reads ``action`` (of the main learner), ``option_action_value``, ``option`` and ``is_init``; writes ``action``,
    ``option`` and ``("next", "option")`` (the option that acts, -1 for none) and ``option_start`` (true on an option's
    first step). The environment needs :class:`~torchrl.envs.InitTracker` and :meth:`make_tensordict_primer`.

    Args:
        spec (TensorSpec): the action spec, unbatched or batched.

    Keyword Args:
        num_options (int): number of options, N.
        eps_init (float, optional): ε before annealing. Default: ``1.0``.
        eps_end (float, optional): ε after annealing. Default: ``0.1``.
        annealing_num_steps (int, optional): frames over which ε falls linearly; call :meth:`step` as they are
            collected. Default: ``1000``.
        annealing_start (int, optional): frames before ε begins to fall, e.g. a discovery phase. Default: ``0``.
        option_prob (float, optional): μ, the probability that exploring starts an option. Default: ``0.9``.
        option_duration (float, optional): D, the mean number of steps of an option. Default: ``10``.
        option_eps (float, optional): probability of a uniformly random action inside an option. Default: ``0.0``.
        across_episodes (bool, optional): whether an option goes on in the next episode, as in the authors' released
            code, instead of ending with its own. Default: ``False``, as in the paper.
        selection (callable, optional): ``selection(tensordict, num_options)`` returns the option to start in each
            environment. Default: :func:`uniform_selection`.
        termination (callable, optional): ``termination(tensordict, option)`` returns for each environment the
            probability that its option ends before this step (booleans count as 0 and 1). Default: the constant 1/D.
        action_key, option_key, is_init_key, action_value_key (NestedKey, optional): the names of the entries.

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
        across_episodes: bool = False,
        selection: Selection | None = None,
        termination: Termination | None = None,
        action_key: NestedKey = "action",
        option_key: NestedKey = "option",
        is_init_key: NestedKey = "is_init",
        action_value_key: NestedKey = "option_action_value",
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
            across_episodes=across_episodes,
        )
        if num_options < 1:
            raise ValueError(f"num_options must be at least 1, got {num_options}")
        if option_duration < 1:
            raise ValueError(f"option_duration must be at least 1 step, got {option_duration}")
        check_probability("option_eps", option_eps)
        self.num_options = num_options
        self.option_duration = option_duration
        self.option_eps = option_eps
        self.selection = uniform_selection if selection is None else selection
        self.termination = termination
        self.action_value_key = action_value_key
        self.in_keys = [action_key, action_value_key, option_key, is_init_key]
        self.out_keys = [action_key, option_key, unravel_key(("next", option_key)), self._start_key]

    def _state(self) -> dict[NestedKey, tuple[int, int, int]]:
        return {self.option_key: (NO_OPTION, self.num_options - 1, NO_OPTION)}

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
        return self.selection(tensordict, self.num_options)

    def _option_action(
        self, tensordict: TensorDictBase, option: Tensor, random_action: Tensor
    ) -> Tensor:
        action = _values_of(tensordict.get(self.action_value_key), option).argmax(-1)
        if self.option_eps == 0:
            return action
        randomly = torch.rand(option.shape, device=option.device) < self.option_eps
        return torch.where(randomly, random_action, action)
