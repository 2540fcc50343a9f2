"""Network outputs for every state of an environment, and the climb of options."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_dceo.envs import SwitchingGridWorldEnv, TableEnv
from torchrl_dceo.modules import EigenReward

__all__ = [
    "OptionClimb",
    "find_table_env",
    "followed_eigenfunctions",
    "greedy_path",
    "option_climb",
    "reachable_states",
    "solved_option_values",
    "state_values",
]

# Large enough for speed, small enough for the memory of a large environment's images.
_STATES_PER_PASS = 1024


def find_table_env(env: EnvBase) -> TableEnv | None:
    """Returns the base environment if it is table-driven, else ``None``.

    For a switching environment it is the stationary environment of the map of its last step.

    Args:
        env (EnvBase): any environment.

    Examples:
        >>> from torchrl_dceo.analysis import find_table_env
        >>> from torchrl_dceo.envs import make_env
        >>> find_table_env(make_env("NineRooms")).num_states
        237
        >>> find_table_env(make_env("EscapeRoom")) is None
        True
    """
    while isinstance(env, TransformedEnv):
        env = env.base_env
    if isinstance(env, SwitchingGridWorldEnv):
        return env.stationary_env(int(env.map_index.max()))
    return env if isinstance(env, TableEnv) else None


@torch.no_grad()
def state_values(
    module: TensorDictModuleBase, env: EnvBase, *, out_key: NestedKey | None = None
) -> Tensor:
    """Evaluates an encoder or an actor in every state of an environment, without gradient.

    The module's input is :meth:`~torchrl_dceo.envs.TableEnv.observe`; transforms that change the
    observation are not applied. No random numbers are used.

    Args:
        module (TensorDictModuleBase): reads the environment's observation, and optionally ``state_id``.
        env (EnvBase): a table-driven environment, with any transforms; see :func:`find_table_env`.

    Keyword Args:
        out_key (NestedKey, optional): the output to return. Default: the module's first.

    Returns:
        Tensor: ``[S, ...]``, one row per state.

    Examples:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.analysis import state_values
        >>> from torchrl_dceo.envs import make_env
        >>> encoder = TensorDictModule(torch.nn.Linear(2, 3), in_keys=["observation"], out_keys=["representation"])
        >>> state_values(encoder, make_env("FourRooms", observation="xy")).shape
        torch.Size([104, 3])
    """
    table_env = find_table_env(env)
    if table_env is None:
        raise ValueError(
            f"only an environment with a transition table can list its states, got "
            f"{type(env).__name__}: use a grid or the cube"
        )
    entries = {table_env._observation_key, "state_id"}
    missing = [key for key in module.in_keys if key not in entries]
    if missing:
        raise KeyError(
            f"the module reads {missing}, but the environment has only {sorted(entries)}"
        )
    key = module.out_keys[0] if out_key is None else out_key
    device = next((p.device for p in module.parameters()), table_env.device)
    parts = []
    for states in torch.arange(table_env.num_states, device=table_env.device).split(
        _STATES_PER_PASS
    ):
        entry = {table_env._observation_key: table_env.observe(states), "state_id": states}
        shown = TensorDict(entry, batch_size=states.shape).to(device)
        parts.append(module(shown).get(key).to(table_env.device))
    return torch.cat(parts)


def followed_eigenfunctions(reward: EigenReward, representation: Tensor) -> Tensor:
    r"""Returns the function that each option follows, sign included: its differences are the option's reward.

    Args:
        reward (EigenReward): the options' reward, which defines their first eigenfunction and their signs.
        representation (Tensor): :math:`f`, ``[*, d]``.

    Returns:
        Tensor: ``[*, N]``, or ``[*, 2N]`` with both signs.

    Examples:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.analysis import followed_eigenfunctions
        >>> from torchrl_dceo.modules import EigenReward
        >>> encoder = TensorDictModule(torch.nn.Linear(2, 4), in_keys=["observation"], out_keys=["representation"])
        >>> reward = EigenReward(encoder, num_options=2, signs="both")
        >>> followed_eigenfunctions(reward, torch.tensor([[1.0, 2.0, 3.0, 4.0]])).tolist()
        [[2.0, 3.0, -2.0, -3.0]]
    """
    first = int(reward.skip_first)
    followed = representation[..., first : first + reward.num_options]
    if reward.signs == "-":
        return -followed
    return torch.cat([followed, -followed], -1) if reward.signs == "both" else followed


def reachable_states(next_state: Tensor, starts: Tensor) -> Tensor:
    """Returns which states can be reached from any of the starts, bool ``[S]``.

    Args:
        next_state (Tensor): the table of moves, ``[S, A]``.
        starts (Tensor): state ids.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis import reachable_states
        >>> reachable_states(torch.tensor([[1], [0], [2]]), torch.tensor([0])).tolist()
        [True, True, False]
    """
    reached = torch.zeros(next_state.shape[0], dtype=torch.bool, device=next_state.device)
    frontier = starts
    while frontier.numel():
        reached[frontier] = True
        following = next_state[frontier].unique()
        frontier = following[~reached[following]]
    return reached


class OptionClimb(NamedTuple):
    """The result of :func:`option_climb`, for every start state and every option, ``[S, N]`` each.

    Attributes:
        score (Tensor): the share of the range above the start state that the option has climbed at its end, in [-1, 1];
            NaN if the start is (almost) at the maximum.
        best_score (Tensor): the same for the highest state on its path, in [0, 1].
        gain (Tensor): the difference between end and start, the undiscounted return.
    """

    score: Tensor
    best_score: Tensor
    gain: Tensor

    def mean(self) -> Tensor:
        """Each option's score from random states, ``[N]``: the mean over the states with a score."""
        return self.score.nanmean(0)

    def at(self, starts: Tensor) -> Tensor:
        """Each option's score from the given states, ``[N]``; NaN if none of them has a score."""
        return self.score[starts.reshape(-1)].nanmean(0)


@torch.no_grad()
def option_climb(
    option_values: Tensor, eigenfunctions: Tensor, next_state: Tensor, *, min_range: float = 0.05
) -> OptionClimb:
    r"""Measures the share of its eigenfunction's range that each option's greedy policy climbs.

    From every state :math:`s` the greedy policy of option i is followed in the table, without slips and
    without a limit of steps. It must return to a visited state, and from then on it repeats a cycle (of length 1
    against a wall): there the option ends, and its value is the mean of :math:`f_i` over the cycle. The
    score is

    .. math:: \frac{f_i(\text{end}) - f_i(s)}{\max_{s'} f_i(s') - f_i(s)}

    with the maximum over all states that can be reached from :math:`s`: 1 if the option ends at the maximum, 0 if it
    ends at the same value, negative if lower; clamped at -1. If less than ``min_range`` of the function's
    range is above :math:`s`, the score is NaN.

    Args:
        option_values (Tensor): :math:`Q_i(s, a)`, ``[S, N, A]``.
        eigenfunctions (Tensor): the function that each option climbs, sign included, ``[S, N]``; see
            :func:`~torchrl_dceo.analysis.followed_eigenfunctions`.
        next_state (Tensor): the table of moves, ``[S, A]``.

    Keyword Args:
        min_range (float): the share of the whole range that must be left above a state. Default: 0.05.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis import option_climb
        >>> corridor = torch.tensor([[0, 1], [0, 2], [1, 2]])  # left and right
        >>> right, left = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
        >>> values = torch.stack([right.expand(3, 2), left.expand(3, 2)], dim=1)
        >>> heights = torch.tensor([[0.0], [1.0], [2.0]]).expand(3, 2)  # both should go right
        >>> option_climb(values, heights, corridor).score.T.tolist()
        [[1.0, 1.0, nan], [0.0, -1.0, nan]]
    """
    _check(option_values, eigenfunctions, next_state)
    f = eigenfunctions.double()
    following = next_state.gather(1, option_values.argmax(-1))
    end, best = _walk(f, following)
    top = _highest_reachable(f, next_state)
    left = top - f
    worth = left > min_range * (f.amax(0) - f.amin(0))
    unit = left.where(worth, torch.nan)
    score = ((end - f) / unit).clamp(-1, 1)
    return OptionClimb(score, ((best - f) / unit).clamp(max=1), end - f)


def greedy_path(action_values: Tensor, next_state: Tensor, start: int) -> list[int]:
    """Returns the states that a greedy policy visits from a start, without slips, until it repeats one.

    Args:
        action_values (Tensor): Q(s, a), ``[S, A]``.
        next_state (Tensor): the table of moves, ``[S, A]``.
        start (int): the start state.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis import greedy_path
        >>> corridor = torch.tensor([[0, 1], [0, 2], [1, 2]])
        >>> greedy_path(torch.tensor([[0.0, 1.0]]).expand(3, 2), corridor, start=0)
        [0, 1, 2]
    """
    following = next_state.gather(1, action_values.argmax(-1, keepdim=True)).squeeze(-1).tolist()
    path, seen, state = [start], {start}, following[start]
    while state not in seen:
        path.append(state)
        seen.add(state)
        state = following[state]
    return path


@torch.no_grad()
def solved_option_values(
    eigenfunctions: Tensor,
    next_state: Tensor,
    *,
    gamma: float,
    slip: float = 0.0,
    terminal: Tensor | None = None,
    tolerance: float = 1e-9,
) -> Tensor:
    r"""Returns the values of optimal options, by value iteration, as a reference for learned ones.

    Option i has the reward :math:`f_i(s') - f_i(s)` without termination, discounted by :math:`\gamma`, with slips. With
    :func:`option_climb` they measure how much of a function *can* be climbed: with a discount too small for the path
    through a valley, an option stays at a local maximum.

    Args:
        eigenfunctions (Tensor): the function that each option climbs, sign included, ``[S, N]``.
        next_state (Tensor): the table of moves, ``[S, A]``.

    Keyword Args:
        gamma (float): the options' discount, below 1.
        slip (float): the probability that a move is replaced by a random one. Default: 0.
        terminal (Tensor, optional): bool ``[S]``: the states that end an option on arrival, with the reward of
            that step as its last. Default: none.
        tolerance (float): precision, in units of the function's range. Default: 1e-9.

    Returns:
        :math:`Q_i(s, a)`, float64 ``[S, N, A]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis import option_climb, solved_option_values
        >>> corridor = torch.tensor([[0, 1], [0, 2], [1, 3], [2, 3]])
        >>> two_hills = torch.tensor([[0.5], [0.0], [0.0], [1.0]])
        >>> for gamma in (0.5, 0.9):  # only far-sighted options leave the lower hill
        ...     values = solved_option_values(two_hills, corridor, gamma=gamma)
        ...     option_climb(values, two_hills, corridor).score[0].tolist()
        [0.0]
        [1.0]
    """
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma must lie in [0, 1), got {gamma}")
    f = eigenfunctions.double()
    scale = float((f.amax(0) - f.amin(0)).max().clamp(min=1e-300))
    best = torch.zeros_like(f)
    ends = 0.0 if terminal is None else terminal.to(f).unsqueeze(-1)
    while True:
        paid = (f + gamma * (1 - ends) * best)[next_state] - f.unsqueeze(1)  # [S, A, N]
        paid = (1 - slip) * paid + slip * paid.mean(1, keepdim=True)
        before, best = best, paid.amax(1)
        if float((best - before).abs().max()) <= tolerance * (1 - gamma) * scale:
            return paid.transpose(1, 2)


def _check(option_values: Tensor, eigenfunctions: Tensor, next_state: Tensor) -> None:
    if option_values.ndim != 3 or next_state.ndim != 2:
        raise ValueError(
            "option_values must be [S, N, A] and next_state [S, A], got "
            f"{list(option_values.shape)} and {list(next_state.shape)}"
        )
    num_states, num_options, num_actions = option_values.shape
    if eigenfunctions.shape != (num_states, num_options):
        raise ValueError(
            f"eigenfunctions must hold one column for each option, [{num_states}, {num_options}], got "
            f"{list(eigenfunctions.shape)}"
        )
    if next_state.shape != (num_states, num_actions):
        raise ValueError(
            f"next_state must be [{num_states}, {num_actions}], got {list(next_state.shape)}"
        )


def _walk(f: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of f over the cycle in which the walk from each state ends, and the maximum of f on the path.

    By doubling: 2^(k+1) steps are 2^k steps, twice. So S steps need log2(S) gathers, for all
    states and options at once.
    """
    num_states = f.shape[0]
    # After k rounds: the state after 2^k steps, the highest f and the smallest state id of the first 2^k states.
    jump, best, lowest = following, f, _ids(f)
    for _ in range(math.ceil(math.log2(max(num_states, 2)))):
        best = torch.maximum(best, best.gather(0, jump))
        lowest = torch.minimum(lowest, lowest.gather(0, jump))
        jump = jump.gather(0, jump)
    # After S steps every walk is on its cycle, and each state of a cycle is reached by some walk (its own).
    # There the smallest id is that of the cycle and identifies it.
    on_circle = torch.zeros_like(f).scatter_(0, jump, 1.0)
    total = torch.zeros_like(f).scatter_add_(0, lowest, f * on_circle)
    length = torch.zeros_like(f).scatter_add_(0, lowest, on_circle)
    name = lowest.gather(0, jump)
    return total.gather(0, name) / length.gather(0, name), best


def _ids(f: Tensor) -> Tensor:
    return torch.arange(f.shape[0], device=f.device).unsqueeze(-1).expand_as(f)


def _highest_reachable(f: Tensor, next_state: Tensor) -> Tensor:
    """The largest f that any policy can reach from each state."""
    highest = f
    for _ in range(f.shape[0]):
        higher = torch.maximum(highest, highest[next_state].amax(1))
        if torch.equal(higher, highest):
            break
        highest = higher
    return highest
