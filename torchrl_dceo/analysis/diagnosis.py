"""Compares exploration with learned options and with exact parts: options, representation, data and behaviour."""

from __future__ import annotations

import copy
import csv
import functools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torchrl.data import Unbounded
from torchrl.envs import Compose, InitTracker, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_dceo.analysis.figures import COLOURS, new_figure, styled
from torchrl_dceo.analysis.spectra.exact import exact_eigenfunctions
from torchrl_dceo.analysis.spectra.options import (
    followed_eigenfunctions,
    reachable_states,
    solved_option_values,
)
from torchrl_dceo.envs import TableEnv
from torchrl_dceo.modules import DirectedSelection, EigenReward, OptionExplorationModule
from torchrl_dceo.modules.exploration import value_termination
from torchrl_dceo.tabular import TabularConfig, run_tabular

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "PARTS",
    "Diagnosis",
    "OptionTables",
    "diagnose",
    "draw_diagnosis",
    "explored",
    "option_tables",
    "read_diagnosis",
]

PARTS = {
    "random": "random walk",
    "learned": "(a) learned f, learned options",
    "solved": "(b) learned f, exact options",
    "visited": "(c) exact f of what was visited, exact options",
    "exact": "(d) exact f of the whole graph, exact options",
    "ceo": "(e) tabular CEO",
}
"""The compared parts, from nothing learned to everything exact, with their labels in tables and figures."""

# The loss between one part and the next.
_LOSSES = {
    "options": ("learned", "solved"),
    "representation": ("solved", "visited"),
    "data": ("visited", "exact"),
    "behaviour": ("exact", "ceo"),
}
_MEASURES = ("goals", "states")


class OptionTables(NamedTuple):
    """An option set as tables over all states of an environment.

    Attributes:
        values (Tensor): the options' action values, ``[S, N, A]``.
        known (Tensor): bool ``[S, N]``; if false the option takes a uniformly random action.
    """

    values: Tensor
    known: Tensor


@torch.no_grad()
def option_tables(
    table_env: TableEnv,
    reward: EigenReward,
    representation: Tensor,
    option_values: Tensor,
    visits: Tensor,
    *,
    gamma: float | None = None,
    reward_free: bool = False,
    weighted: bool = False,
) -> dict[str, OptionTables]:
    r"""Returns the compared option sets: learned, and with more and more exact parts.

    Exact options are solved on the true dynamics, slips included, for single steps, with the agent's discount and the
    reward :math:`f_i(s') - f_i(s)`; the modes ``"telescoped"`` and ``"potential"`` have the same policies. Where
    options learn over n steps, these are the options of the same reward for single steps. Reaching a goal
    ends them, unless they were learned without reward.

    The visited graph consists of the states with ``visits > 0``: a move out of it counts as staying, and in a state
    outside an option takes a uniformly random action.

    Args:
        table_env (TableEnv): the environment.
        reward (EigenReward): the agent's reward, which defines the eigenfunctions of the options and their discount.
        representation (Tensor): the learned f, ``[S, d]``.
        option_values (Tensor): the learned values, ``[S, N, A]``.
        visits (Tensor): the number of visits of each state, ``[S]``.

    Keyword Args:
        gamma (float, optional): the options' discount. Default: that of ``reward``.
        reward_free (bool): options were learned without reward, so goals do not end them. Default: ``False``.
        weighted (bool): weight the states by their visits in (c), instead of uniformly. Default:
            ``False``.

    Returns:
        The tables of ``random``, ``learned``, ``solved``, ``visited`` and ``exact``, in this order.

    Examples:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.analysis.diagnosis import option_tables
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> from torchrl_dceo.modules import EigenReward
        >>> table_env = GridWorldEnv("S...G")
        >>> encoder = TensorDictModule(torch.nn.Identity(), in_keys=["observation"], out_keys=["representation"])
        >>> reward = EigenReward(encoder, num_options=1, gamma=0.9)
        >>> visits = torch.tensor([5, 3, 1, 0, 0])
        >>> tables = option_tables(table_env, reward, torch.randn(5, 2), torch.randn(5, 1, 4), visits)
        >>> list(tables), tables["visited"].known.flatten().tolist()
        (['random', 'learned', 'solved', 'visited', 'exact'], [True, True, True, False, False])
    """
    gamma = reward.gamma if gamma is None else gamma
    moves, kept = table_env.next_state, reachable_states(table_env.next_state, table_env._starts)
    terminal = torch.zeros_like(table_env._is_goal) if reward_free else table_env._is_goal
    seen = visits.to(moves.device) > 0
    followed = followed_eigenfunctions(reward, representation).double()
    # Values Q + f(s): the gain of an action is Q.
    offset = followed.unsqueeze(-1) if reward.mode == "potential" else 0.0
    known = torch.ones_like(followed, dtype=torch.bool)

    def solved(f: Tensor, inside: Tensor) -> OptionTables:
        own = torch.arange(len(moves), device=moves.device).unsqueeze(-1)
        within = torch.where(inside[moves], moves, own)
        values = solved_option_values(
            f, within, gamma=gamma, slip=table_env.slip, terminal=terminal
        )
        # The graph has fewer eigenfunctions than options.
        return OptionTables(values, inside.unsqueeze(-1) & (f != 0).any(0))

    def exact(inside: Tensor, weights: Tensor) -> OptionTables:
        rho = torch.where(inside, weights, torch.zeros_like(weights)).double()
        width = reward.num_options + int(reward.skip_first)
        d = min(width, int((rho > 0).sum()))
        _, functions = exact_eigenfunctions(table_env, d, rho=rho)
        f = functions.new_zeros(len(moves), width)
        f[:, :d] = functions
        return solved(followed_eigenfunctions(reward, f), inside)

    alike = torch.ones_like(visits)
    everywhere = torch.ones_like(seen)
    return {
        "random": OptionTables(torch.zeros_like(option_values).double(), ~known),
        "learned": OptionTables(option_values.double() - offset, known),
        "solved": solved(followed, everywhere),
        "visited": exact(seen & kept, visits if weighted else alike),
        "exact": exact(kept, alike),
    }


class _Walk(TableEnv):
    """The states and moves of an environment, for any batch size, without images."""

    def __init__(self, table_env: TableEnv, batch_size: int, seed: int) -> None:
        super().__init__(
            table_env.next_state,
            table_env._starts.tolist(),
            table_env._is_goal.nonzero().flatten().tolist() or None,
            "observation",
            Unbounded((1,)),
            batch_size=[batch_size],
            slip=table_env.slip,
            max_steps=table_env.max_steps,
            seed=seed,
        )

    def observe(self, state_ids: Tensor) -> Tensor:
        """The observation: the index of the state."""
        return state_ids.unsqueeze(-1).float()


@torch.no_grad()
def explored(
    table_env: TableEnv,
    tables: Sequence[OptionTables],
    explorer: OptionExplorationModule,
    *,
    steps: int = 10_000,
    repeats: int = 10,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Explores an environment at ε = 1 with fixed option sets, all of them in one batch.

    Selection, termination, duration and the probability of options are those of ``explorer``, which is copied; a
    :class:`~torchrl_dceo.modules.DirectedSelection` becomes uniform, because it depends on the learned functions.

    Args:
        table_env (TableEnv): the environment; its batch size does not matter.
        tables (sequence of OptionTables): V option sets.
        explorer (OptionExplorationModule): the behaviour.

    Keyword Args:
        steps (int): of each walk. Default: 10,000.
        repeats (int): R, walks with each option set. Default: 10.
        seed (int): seed of the walks; the global generators are not changed. Default: 0.

    Returns:
        ``(goals, states)``, float64 ``[V, R]`` each: goals reached per 1,000 steps, and distinct states seen.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.diagnosis import OptionTables, explored
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> from torchrl_dceo.modules import OptionExplorationModule
        >>> table_env = GridWorldEnv("S...G", slip=0.0)
        >>> explorer = OptionExplorationModule(table_env.action_spec, num_options=1, option_prob=1.0)
        >>> right = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(5, 1, 4)
        >>> goals, states = explored(table_env, [OptionTables(right, torch.ones(5, 1, dtype=torch.bool))], explorer,
        ...     steps=40, repeats=1)
        >>> goals.tolist(), states.tolist()  # a goal every four steps
        ([[250.0]], [[5.0]])
    """
    for name, value in (("steps", steps), ("repeats", repeats)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    values = torch.stack([table.values for table in tables]).float().cpu()
    known = torch.stack([table.known for table in tables]).cpu()
    explorer = _at_eps_one(explorer)
    number = len(tables) * repeats
    which = torch.arange(len(tables)).repeat_interleave(repeats)
    each = torch.arange(number)
    walk = _Walk(table_env, number, seed)
    env = TransformedEnv(walk, Compose(InitTracker(), explorer.make_tensordict_primer()))
    seen = torch.zeros(number, table_env.num_states, dtype=torch.bool)
    goals = torch.zeros(number, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]), set_exploration_type(ExplorationType.RANDOM):
        torch.manual_seed(seed)
        step = env.reset()
        for _ in range(steps):
            state = step.get("state_id")
            seen[each, state] = True
            shown = values[which, state]
            guess = torch.rand_like(shown)
            shown = torch.where(known[which, state].unsqueeze(-1), shown, guess)
            step.set(explorer.action_value_key, shown)
            # At ε = 1 no action of a main learner is used.
            step.set(explorer.action_key, torch.zeros_like(state))
            now, step = env.step_and_maybe_reset(explorer(step))
            seen[each, now.get(("next", "state_id"))] = True
            goals += now.get(("next", "reward")).squeeze(-1)
    shape = (len(tables), repeats)
    return (goals * 1000 / steps).view(shape), seen.sum(-1).double().view(shape)


def _at_eps_one(explorer: OptionExplorationModule) -> OptionExplorationModule:
    explorer = copy.deepcopy(explorer).cpu()
    explorer.eps.fill_(1.0)
    ends = explorer.termination
    if isinstance(ends, functools.partial) and ends.func is value_termination:
        # The tables contain gains already, so nothing is subtracted.
        explorer.termination = value_termination
    if isinstance(explorer.selection, DirectedSelection):
        # Its probabilities belong to the learned functions; exact ones have other places and signs.
        explorer.selection.probabilities.fill_(1 / explorer.num_options)
    return explorer


def diagnose(
    table_env: TableEnv,
    explorer: OptionExplorationModule,
    reward: EigenReward,
    representation: Tensor,
    option_values: Tensor,
    visits: Tensor,
    *,
    gamma: float | None = None,
    reward_free: bool = False,
    weighted: bool = False,
    steps: int = 10_000,
    repeats: int = 10,
    seed: int = 0,
) -> Diagnosis:
    """Explores at ε = 1 with the learned options, and with parts replaced by exact ones, without further learning.

    In addition, tabular CEO explores for as many steps, from scratch, with its own settings
    (:class:`~torchrl_dceo.tabular.TabularConfig` at ε = 1).

    Args:
        table_env, reward, representation, option_values, visits: see :func:`option_tables`.
        explorer (OptionExplorationModule): the agent's behaviour.

    Keyword Args:
        gamma, reward_free, weighted: see :func:`option_tables`.
        steps, repeats, seed: see :func:`explored`.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.analysis import state_values, find_table_env
        >>> from torchrl_dceo.analysis.diagnosis import diagnose
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.probes import eigen_reward, option_actor
        >>> env = make_env("NineRooms", room_size=3, visits="counts")
        >>> agent, table_env = make_agent("dceo", env, num_options=2), find_table_env(env)
        >>> reward = eigen_reward(agent)
        >>> diagnosis = diagnose(table_env, agent.explorer, reward, state_values(reward.encoder, table_env),
        ...     state_values(option_actor(agent), table_env), visits=env.rollout(100)["state_id"].bincount(
        ...     minlength=table_env.num_states), steps=200, repeats=2)
        >>> list(diagnosis.states), diagnosis.states["exact"].shape
        (['random', 'learned', 'solved', 'visited', 'exact', 'ceo'], torch.Size([2]))
    """
    tables = option_tables(
        table_env,
        reward,
        representation,
        option_values,
        visits,
        gamma=gamma,
        reward_free=reward_free,
        weighted=weighted,
    )
    goals, states = explored(
        table_env, list(tables.values()), explorer, steps=steps, repeats=repeats, seed=seed
    )
    walk = _Walk(table_env, repeats, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = TabularConfig(total_steps=steps, eps=1.0, log_period=steps, eval_period=steps)
        counts = run_tabular("ceo", walk, config).get("counts")
    # No episode starts at a goal, so the visits of a goal are the times that it was reached.
    reached = counts[:, walk._is_goal].sum(-1).double() * 1000 / steps
    return Diagnosis(
        goals={**dict(zip(tables, goals, strict=True)), "ceo": reached},
        states={**dict(zip(tables, states, strict=True)), "ceo": (counts > 0).sum(-1).double()},
        steps=steps,
        num_states=int(reachable_states(table_env.next_state, table_env._starts).sum()),
        num_visited=int((visits > 0).sum()),
    )


@dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`diagnose`: one value of each metric for each repeat (or run) and part.

    Attributes:
        goals (mapping of str to Tensor): goals per 1,000 steps of each part, float64 ``[R]``.
        states (mapping of str to Tensor): distinct states seen, float64 ``[R]``.
        steps (int): of each walk.
        num_states (int): the number of reachable states.
        num_visited (int): the number of states visited in training.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.diagnosis import PARTS, Diagnosis
        >>> goals = dict(zip(PARTS, torch.tensor([[0.1], [0.2], [0.5], [2.0], [2.5], [3.0]]).double()))
        >>> print(Diagnosis(goals, goals, steps=1000, num_states=9, num_visited=5).sentence())
        Of 3.00 goals per 1,000 steps (tabular CEO) the learned options keep 0.20: the representation loses 1.50, ...
    """

    goals: Mapping[str, Tensor]
    states: Mapping[str, Tensor]
    steps: int
    num_states: int
    num_visited: int
    name: str = field(default="")

    @classmethod
    def pooled(cls, each: Sequence[Diagnosis], name: str = "") -> Diagnosis:
        """Combines the diagnoses of several runs; each run's value is the mean of its repeats."""
        if not each:
            raise ValueError("pooled needs at least one diagnosis, got none")
        means = [
            {
                part: torch.stack([getattr(one, measure)[part].mean() for one in each])
                for part in PARTS
            }
            for measure in _MEASURES
        ]
        visited = round(sum(one.num_visited for one in each) / len(each))
        return cls(means[0], means[1], each[0].steps, each[0].num_states, visited, name)

    def mean(self, part: str, measure: str = "goals") -> tuple[float, float]:
        """Returns the mean of a part and half the width of its 95 % interval (0 for a single value)."""
        return _mean(getattr(self, measure)[part])

    def loss(self, what: str, measure: str = "goals") -> tuple[float, float]:
        """Returns the loss due to ``"options"``, ``"representation"``, ``"data"`` or ``"behaviour"``, and its error.

        ``data`` is the loss due to unvisited parts of the graph, ``behaviour`` the gain of tabular CEO from
        updating its options while it explores.
        """
        low, high = (self.mean(part, measure) for part in _LOSSES[what])
        return high[0] - low[0], math.hypot(low[1], high[1])

    def table(self) -> str:
        """Returns one line per part: goals and states with their intervals, and the share of (c)."""
        width = max(map(len, PARTS.values()))
        lines = [f"{'':{width}}  goals per 1,000 steps    states of {self.num_states}"]
        for part, label in PARTS.items():
            (goals, goal_width), (states, width_of) = (self.mean(part, m) for m in _MEASURES)
            shares = [
                f"{value / of:4.0%}" if (of := self.mean("visited", m)[0]) else "    "
                for value, m in ((goals, "goals"), (states, "states"))
            ]
            lines.append(
                f"{label:{width}}  {goals:6.2f} ± {goal_width:4.2f}  {shares[0]}     "
                f"{states:6.1f} ± {width_of:4.1f}  {shares[1]}"
            )
        return "\n".join([*lines, f"(shares of (c); visited before: {self.num_visited} states)"])

    def sentence(self, measure: str = "goals") -> str:
        """Returns one sentence with the loss of each part, the largest first."""
        unit = "goals per 1,000 steps" if measure == "goals" else f"states in {self.steps:,} steps"
        digits = 2 if measure == "goals" else 0
        order = sorted(_LOSSES, key=lambda what: -self.loss(what, measure)[0])
        top, kept = (self.mean(part, measure)[0] for part in ("ceo", "learned"))
        named = {"options": "the learning of the options", "data": "what was not visited yet"}
        parts = []
        for what in order:
            lost, half = self.loss(what, measure)
            verb = "loses" if lost >= 0 else "gains"
            around = f" (± {half:.{digits}f})" if half else ""
            parts.append(f"{named.get(what, f'the {what}')} {verb} {abs(lost):.{digits}f}{around}")
        return (
            f"Of {top:.{digits}f} {unit} (tabular CEO) the learned options keep {kept:.{digits}f}: "
            f"{', '.join(parts)}."
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes a CSV with one row per part and value; :func:`read_diagnosis` reads it."""
        target = Path(path)
        with target.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(
                ["part", "repeat", "goals_per_1000", "states", "steps", "num_states", "num_visited"]
            )
            of_all = (self.steps, self.num_states, self.num_visited)
            for part in PARTS:
                pairs = zip(self.goals[part].tolist(), self.states[part].tolist(), strict=True)
                for repeat, (goals, states) in enumerate(pairs):
                    rows.writerow([part, repeat, f"{goals:.6g}", f"{states:.6g}", *of_all])
        return target


def _mean(values: Tensor) -> tuple[float, float]:
    half = 1.96 * float(values.std()) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return float(values.mean()), half


def read_diagnosis(path: str | os.PathLike[str]) -> Diagnosis:
    """Reads a file of :meth:`Diagnosis.write`.

    Examples:
        >>> import pathlib, tempfile, torch
        >>> from torchrl_dceo.analysis.diagnosis import PARTS, Diagnosis, read_diagnosis
        >>> values = {part: torch.tensor([1.0, 2.0]).double() for part in PARTS}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Diagnosis(values, values, 100, 9, 5).write(pathlib.Path(folder, "diagnosis.csv"))
        ...     read_diagnosis(path).mean("learned")[0]
        1.5
    """
    with Path(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or "goals_per_1000" not in rows[0]:
        raise ValueError(f"{path} holds no diagnosis: make one with `dceo diagnose`")
    columns: list[dict[str, Tensor]] = [
        {
            part: torch.tensor([float(row[name]) for row in rows if row["part"] == part]).double()
            for part in PARTS
        }
        for name in ("goals_per_1000", "states")
    ]
    steps, num_states, visited = (
        int(rows[0][name]) for name in ("steps", "num_states", "num_visited")
    )
    return Diagnosis(columns[0], columns[1], steps, num_states, visited)


@styled
def draw_diagnosis(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> Path:
    """Draws both metrics of all parts: every value as a dot, the mean as a bar with its interval.

    Args:
        diagnosis (Diagnosis): from :func:`diagnose`.
        path (path-like): the file, by its ending: png, pdf or svg.
    """
    figure: Figure = new_figure(9, 2.9, diagnosis.name or None)
    axes = figure.subplots(1, 2, sharey=True)
    titles = (
        "goals per 1,000 steps at ε = 1",
        f"states seen in {diagnosis.steps:,} steps at ε = 1",
    )
    colours = ("quiet", "second", "fourth", "first", "first", "third")
    for ax, measure, title in zip(axes, _MEASURES, titles, strict=True):
        for row, (part, colour) in enumerate(zip(PARTS, colours, strict=True)):
            mean, half = diagnosis.mean(part, measure)
            ax.barh(row, mean, xerr=half or None, color=COLOURS[colour], alpha=0.6, height=0.65)
            values = getattr(diagnosis, measure)[part].tolist()
            ax.plot(values, [row] * len(values), ".", color=COLOURS["ink"], markersize=3)
        ax.set_title(title)
        ax.spines[["top", "right"]].set_visible(False)
    axes[1].axvline(diagnosis.num_states, color=COLOURS["quiet"], linestyle=":")
    axes[1].axvline(diagnosis.num_visited, color=COLOURS["quiet"], linewidth=0.8)
    axes[1].set_xlabel(f"line: visited before; dots: all {diagnosis.num_states}")
    axes[0].set_yticks(range(len(PARTS)), list(PARTS.values()))
    axes[0].invert_yaxis()
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    return target
