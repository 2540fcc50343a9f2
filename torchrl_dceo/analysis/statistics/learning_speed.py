"""How soon an agent learns, and how soon it adapts after a change."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchrl_dceo.analysis.figures.curves import Progress, switch_places
from torchrl_dceo.analysis.statistics import Aggregate, aggregate, common_grid, on_grid

if TYPE_CHECKING:
    from torchrl_dceo.analysis.statistics.comparison import AgentRuns

__all__ = [
    "Adaptation",
    "AgentCurve",
    "SampleEfficiency",
    "adaptations",
    "option_overlap",
    "sample_efficiency",
]

_LATE = 0.2  # of a stretch: its end


_STARTS = re.compile(r"option_starts_\d+")


@dataclass(frozen=True)
class Adaptation:
    """One change of the environment in one run, in the paper's non-stationary tasks.

    Attributes:
        switch (float): the frames before the change.
        before (float): mean return over the last fifth of the stretch before it; NaN if there is none.
        after (float): the same for the stretch after it.
        area_after (float): mean return over that whole stretch, by trapezoids, from the first row in it.
        recovery (float): frames from the change to the first row with half of ``before``; infinity if there is none,
            NaN if there was nothing to recover (``before`` is not above 0).
        train_after (float): as ``after``, of training: what the agent earned while it explored.
        goal_again (float): frames from the change to the first row with a training return above 0; else infinity.
        overlap (float): how much alike the options are used before and after, see :func:`option_overlap`; NaN for
            agents without options.
        reused (float): the share of the options used before the change that are used after it; NaN likewise.
    """

    switch: float
    before: float
    after: float
    area_after: float
    recovery: float
    train_after: float
    goal_again: float
    overlap: float
    reused: float


def adaptations(progress: Progress, metric: str = "eval_return") -> list[Adaptation]:
    """Measures every change of the environment in a run.

    A stretch ends with the next change, or with the run. A row belongs to the stretch of the frames that it is about:
    the row at the very frame of the change is the last of the old stretch.

    Args:
        progress (Progress): from :func:`~torchrl_dceo.analysis.read_progress`.
        metric (str, optional): the return to look at. Default: ``"eval_return"``, of the greedy main learner.

    Examples:
        >>> from torchrl_dceo.analysis.statistics.learning_speed import adaptations
        >>> run = {
        ...     "frames": [10.0, 20.0, 30.0, 40.0, 50.0, 60.0],
        ...     "map": [0.0, 0.0, 0.0, 1.0, 1.0, 1.0],
        ...     "eval_return": [0.0, 0.5, 0.8, 0.0, 0.4, 0.9],
        ... }
        >>> (change,) = adaptations(run)
        >>> change.switch, change.before, change.after, change.recovery
        (30.0, 0.8, 0.9, 20.0)
    """
    frames = progress["frames"]
    ends = [*(frames.index(place) for place in switch_places(progress)), len(frames) - 1]
    stretches = [range(a + 1, b + 1) for a, b in itertools.pairwise([-1, *ends])]
    return [_adaptation(progress, metric, old, new) for old, new in itertools.pairwise(stretches)]


def option_overlap(before: list[float], after: list[float]) -> float:
    r"""How much of two distributions over the options is common, :math:`\sum_i \min(p_i, q_i)`; NaN if one is empty.

    1 is the same use of every option, 0 that no option of the one is in the other.

    Args:
        before (list of float): how often each option began.
        after (list of float): the same at another time.

    Examples:
        >>> from torchrl_dceo.analysis.statistics.learning_speed import option_overlap
        >>> option_overlap([5, 5, 0], [10, 0, 10])
        0.5
    """
    totals = sum(before), sum(after)
    if not all(totals):
        return math.nan
    return sum(min(p / totals[0], q / totals[1]) for p, q in zip(before, after, strict=True))


def _adaptation(progress: Progress, metric: str, old: range, new: range) -> Adaptation:
    frames = progress["frames"]
    switch = frames[old[-1]]
    began = frames[old[0] - 1] if old[0] else 0.0
    earlier, later = _rows(progress, metric, old), _rows(progress, metric, new)
    before = _late(earlier, began, switch)
    starts = [
        (_sum(column, old), _sum(column, new))
        for name, column in progress.items()
        if _STARTS.fullmatch(name)
    ]
    used = [after for first, after in starts if first]
    back = _first(later, before / 2) - switch
    train = _rows(progress, "train_return", new)
    return Adaptation(
        switch=switch,
        before=before,
        after=_late(later, switch, frames[new[-1]]),
        area_after=_area(later, frames[new[-1]]),
        recovery=back if before > 0 else math.nan,
        train_after=_late(train, switch, frames[new[-1]]),
        goal_again=_first(train, 0.0, strict=True) - switch,
        overlap=option_overlap([a for a, _ in starts], [b for _, b in starts]),
        reused=sum(count > 0 for count in used) / len(used) if used else math.nan,
    )


def _rows(progress: Progress, metric: str, stretch: range) -> list[tuple[float, float]]:
    column = progress.get(metric, [])
    rows = [(progress["frames"][i], column[i]) for i in stretch if i < len(column)]
    return [(frame, value) for frame, value in rows if math.isfinite(value)]


def _late(rows: list[tuple[float, float]], begin: float, end: float) -> float:
    """The mean over the end of a stretch; its last number if there is none so late."""
    if not rows:
        return math.nan
    late = [value for frame, value in rows if frame > end - _LATE * (end - begin)]
    return sum(late) / len(late) if late else rows[-1][1]


def _area(rows: list[tuple[float, float]], end: float) -> float:
    """The mean of the curve from its first row to the end of the stretch, where it is as at the last row."""
    if not rows:
        return math.nan
    points = [*rows, (end, rows[-1][1])]
    width = end - rows[0][0]
    if not width:
        return rows[0][1]
    return sum((b - a) * (x + y) / 2 for (a, x), (b, y) in itertools.pairwise(points)) / width


def _first(rows: list[tuple[float, float]], threshold: float, strict: bool = False) -> float:
    for frame, value in rows:
        if value > threshold or (value == threshold and not strict):
            return frame
    return math.inf


def _sum(column: list[float], stretch: range) -> float:
    return sum(column[i] for i in stretch if math.isfinite(column[i]))


Array = NDArray[np.float64]


@dataclass(frozen=True)
class AgentCurve:
    """The curves of one agent.

    Attributes:
        runs (dict of int to ndarray): of each seed, ``[P]``; NaN where it does not have the point.
        over_seeds (Aggregate): interquartile mean with its interval, mean and standard deviation, ``[P]`` each.
    """

    runs: dict[int, Array]
    over_seeds: Aggregate


@dataclass(frozen=True)
class SampleEfficiency:
    """What :func:`sample_efficiency` returns.

    Attributes:
        grid (ndarray): the points, ``[P]``; none if no run has the metric.
        agents (dict of str to AgentCurve): each agent of which a run has the metric.
    """

    grid: Array
    agents: dict[str, AgentCurve]


def sample_efficiency(
    agents: Sequence[AgentRuns],
    metric: str = "eval_return",
    x: str = "frames",
    *,
    num_points: int = 60,
    repetitions: int = 2000,
) -> SampleEfficiency:
    """Puts the runs of several agents in an environment on one grid and aggregates them over seeds at each point.

    Unfinished runs count as far as they have come.

    Args:
        agents (sequence of AgentRuns): from :func:`~torchrl_dceo.analysis.statistics.comparison.read_study`.
        metric (str, optional): a column of the logs. Default: ``"eval_return"``.
        x (str, optional): the column along which. Default: ``"frames"``.

    Keyword Args:
        num_points (int, optional): how many points the grid has at most. Default: ``60``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.

    Examples:
        >>> from torchrl_dceo.analysis.statistics.learning_speed import sample_efficiency
        >>> from torchrl_dceo.analysis.statistics.comparison import AgentRuns
        >>> seeds = {k: {"frames": [10.0, 20.0], "eval_return": [0.0, 0.5 + k / 4]} for k in (0, 1)}
        >>> curves = sample_efficiency([AgentRuns("dceo", seeds, 20)], repetitions=200)
        >>> curves.grid.tolist(), curves.agents["dceo"].over_seeds.iqm.tolist()
        ([10.0, 20.0], [0.0, 0.625])
    """
    logs = [run for agent in agents for run in agent.seeds.values()]
    grid = common_grid(logs, metric, x, num_points)
    curves = {}
    for agent in agents:
        runs = {seed: on_grid(run, metric, grid, x) for seed, run in agent.seeds.items()}
        if any(np.isfinite(curve).any() for curve in runs.values()):
            over_seeds = aggregate(np.array(list(runs.values())), repetitions=repetitions)
            curves[agent.name] = AgentCurve(runs, over_seeds)
    return SampleEfficiency(grid, curves)
