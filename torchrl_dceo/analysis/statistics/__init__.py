"""Interquartile means and other aggregates over seeds, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchrl_dceo.analysis.figures.curves import Progress

__all__ = [
    "Aggregate",
    "Estimate",
    "aggregate",
    "bootstrap_interval",
    "common_grid",
    "interquartile_mean",
    "on_grid",
]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number, or several, with an interval.

    Attributes:
        value (ndarray): of the runs that there are.
        low (ndarray): lower end of the interval; NaN where there are too few runs for one.
        high (ndarray): upper end.
    """

    value: Array
    low: Array
    high: Array


def bootstrap_interval(
    scores: Array | Sequence[Array],
    statistic: Callable[..., Array],
    *,
    confidence: float = 0.95,
    repetitions: int = 2000,
    seed: int = 0,
) -> tuple[Array, Array]:
    """The stratified bootstrap's percentile interval of any statistic of runs.

    Runs are drawn with replacement, for each environment (and whatever other entries a run has) by itself.

    Args:
        scores (ndarray or sequence of them): ``[R, T, …]``, R runs in each of T environments; several arrays are
            drawn from independently, each with as many runs as it has.
        statistic (callable): of one array, or of as many as there are; returns ``[P]``.

    Keyword Args:
        confidence (float, optional): of the interval. Default: ``0.95``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.
        seed (int, optional): of the draws. Default: ``0``.

    Returns:
        tuple of ndarray: the lower and the upper ends, ``[P]`` each.

    Examples:
        >>> import numpy as np
        >>> from torchrl_dceo.analysis.statistics import bootstrap_interval
        >>> low, high = bootstrap_interval(np.array([[0.0], [1.0]]), lambda drawn: drawn.mean(axis=0))
        >>> low.tolist(), high.tolist()
        ([0.0], [1.0])
    """
    arrays = [scores] if isinstance(scores, np.ndarray) else list(scores)
    # The draws of rliable with numpy's seed, in its order: published intervals can be made again with either.
    random = np.random.RandomState(seed)
    others = [
        np.ix_(*(np.arange(size) for size in array.shape))[1:] if array.ndim > 1 else ()
        for array in arrays
    ]
    drawn = [
        statistic(
            *(
                array[(random.choice(len(array), array.shape, replace=True), *rest)]
                for array, rest in zip(arrays, others, strict=True)
            )
        )
        for _ in range(repetitions)
    ]
    ends = [50 * (1 - confidence), 50 * (1 + confidence)]
    low, high = np.percentile(np.asarray(drawn), ends, axis=0)
    return low, high


_NOISY = ("train_return", "loss_")
"""Columns whose rows are averaged over a cell of the grid; others are read off at its end."""


@dataclass(frozen=True)
class Aggregate:
    """What :func:`aggregate` returns: an array of one entry a point for each field.

    Attributes:
        iqm (ndarray): interquartile mean over the runs; NaN where there are none.
        low (ndarray): lower end of its interval; NaN where there are fewer than two runs.
        high (ndarray): upper end.
        mean (ndarray): mean over the runs.
        std (ndarray): their sample standard deviation (ddof 1); NaN where there are fewer than two runs.
        num_runs (ndarray): how many runs have the point.
    """

    iqm: Array
    low: Array
    high: Array
    mean: Array
    std: Array
    num_runs: NDArray[np.int64]


def interquartile_mean(scores: ArrayLike) -> Array:
    """The mean over the first axis without the lowest and the highest quarter.

    A quarter is rounded down, as in Agarwal et al. (2021): of three runs none is dropped, of four to seven one at
    either end.

    Args:
        scores (array-like): ``[R, …]``, without NaN.

    Examples:
        >>> from torchrl_dceo.analysis.statistics import interquartile_mean
        >>> float(interquartile_mean([0.0, 1.0, 2.0, 99.0]))
        1.5
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=0)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean(axis=0)


def aggregate(
    scores: ArrayLike, *, confidence: float = 0.95, repetitions: int = 2000, seed: int = 0
) -> Aggregate:
    """Interquartile mean with its stratified bootstrap interval, mean and standard deviation.

    Args:
        scores (array-like): ``[R, P]``, R runs at P points, NaN where a run does not have the point; or ``[R, T, P]``
            with R runs in each of T environments, without NaN: environments are the strata of the bootstrap, and all
            R·T scores make one mean.

    Keyword Args:
        confidence (float, optional): of the interval. Default: ``0.95``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.
        seed (int, optional): of the bootstrap; the global generator is left as it was. Default: ``0``.

    Examples:
        >>> from torchrl_dceo.analysis.statistics import aggregate
        >>> over_seeds = aggregate([[0.0, 0.5], [1.0, float("nan")]], repetitions=200)
        >>> over_seeds.iqm.tolist(), over_seeds.num_runs.tolist()
        ([0.5, 0.5], [2, 1])
    """
    values = np.asarray(scores, dtype=np.float64)
    values = values[:, None] if values.ndim == 2 else values
    if values.ndim != 3 or not values.size:
        raise ValueError(f"scores must be [R, P] or [R, T, P], got {list(np.shape(scores))}")
    if values.shape[1] > 1 and np.isnan(values).any():
        raise ValueError("scores of several environments must not contain NaN: leave the run out")
    num_points = values.shape[2]
    present = ~np.isnan(values).any(axis=1)
    result = {name: np.full(num_points, np.nan) for name in ("iqm", "low", "high", "mean", "std")}
    # Points that the same runs have are drawn from at once.
    for runs in np.unique(present, axis=1).T:
        points = np.flatnonzero((present == runs[:, None]).all(axis=0))
        chosen = values[runs][:, :, points]
        if not len(chosen):
            continue
        flat = chosen.reshape(-1, len(points))
        result["iqm"][points] = interquartile_mean(flat)
        result["mean"][points] = flat.mean(axis=0)
        if len(chosen) > 1:
            result["std"][points] = flat.std(axis=0, ddof=1)
            result["low"][points], result["high"][points] = bootstrap_interval(
                chosen,
                _over_environments,
                confidence=confidence,
                repetitions=repetitions,
                seed=seed,
            )
    return Aggregate(**result, num_runs=present.sum(axis=0))


def _over_environments(scores: Array) -> Array:
    return interquartile_mean(scores.reshape(-1, scores.shape[-1]))


def common_grid(
    runs: Sequence[Progress], metric: str, x: str = "frames", num_points: int = 60
) -> Array:
    """An even grid on which the curves of several runs can be put.

    Its step is the spacing of the rows in the run that has the metric least often, or a multiple of it, and its end
    that of the longest run.

    Args:
        runs (sequence of Progress): from :func:`~torchrl_dceo.analysis.read_progress`.
        metric (str): the column.
        x (str, optional): the column along which it is drawn. Default: ``"frames"``.
        num_points (int, optional): how many points it has at most. Default: ``60``.

    Returns:
        ndarray: the points, the first one a step from zero; empty if no run has the metric.

    Examples:
        >>> from torchrl_dceo.analysis.statistics import common_grid
        >>> often = {"frames": [5.0, 10.0, 15.0, 20.0], "eval_return": [0.0, 0.0, 1.0, 1.0]}
        >>> seldom = {"frames": [10.0, 20.0, 30.0], "eval_return": [0.0, 0.5, 1.0]}
        >>> common_grid([often, seldom], "eval_return").tolist()
        [10.0, 20.0, 30.0]
    """
    steps, ends = [0.0], [0.0]
    for run in runs:
        places = _known(run, metric, x)[0]
        if len(places):
            steps.append(float(np.median(np.diff(places))) if len(places) > 1 else float(places[0]))
            ends.append(_end(run, x))
    step, end = max(steps), max(ends)
    if step <= 0:
        return np.zeros(0)
    step *= max(1, int(np.ceil(end / step / num_points - 1e-9)))
    return step * np.arange(1, int(end / step + 0.5) + 1, dtype=np.float64)


def on_grid(progress: Progress, metric: str, grid: Array, x: str = "frames") -> Array:
    """The curve of one run on an even grid.

    Returns of training and losses are averaged over the rows of each cell (those with a number: a row in which no
    episode ended carries no information), and continued over cells without any. Other metrics are interpolated between
    the rows that have them, and continued to the end of the run. Before the first value of a metric,
    and more than half a cell after the end of an unfinished run, there is NaN.

    Args:
        progress (Progress): the run.
        metric (str): the column.
        grid (ndarray): from :func:`common_grid`.
        x (str, optional): the column along which it is drawn. Default: ``"frames"``.

    Examples:
        >>> from torchrl_dceo.analysis.statistics import common_grid, on_grid
        >>> run = {"frames": [10.0, 20.0], "coverage": [4.0, 8.0]}
        >>> on_grid(run, "coverage", common_grid([run], "coverage") * 1.5).tolist()
        [6.0, nan]
    """
    places, values = _known(progress, metric, x)
    if not len(places) or not len(grid):
        return np.full(len(grid), np.nan)
    step = grid[0]
    if metric.startswith(_NOISY):
        curve = _cell_means(places, values, grid)
    else:
        curve = np.interp(grid, places, values)
        curve[grid < places[0] - step / 2] = np.nan
    curve[grid > _end(progress, x) + step / 2] = np.nan
    return curve


def _cell_means(places: Array, values: Array, grid: Array) -> Array:
    curve, last = np.full(len(grid), np.nan), np.nan
    cells = np.searchsorted(grid, places - 1e-9 * grid[0])
    for cell in range(len(grid)):
        inside = values[cells == cell]
        last = inside.mean() if len(inside) else last
        curve[cell] = last
    return curve


def _known(progress: Progress, metric: str, x: str) -> tuple[Array, Array]:
    """The rows that have both columns."""
    if metric not in progress or x not in progress:
        return np.zeros(0), np.zeros(0)
    places, values = np.asarray(progress[x]), np.asarray(progress[metric])
    kept = np.isfinite(places) & np.isfinite(values)
    return places[kept], values[kept]


def _end(progress: Progress, x: str) -> float:
    places = np.asarray(progress[x])
    return float(places[np.isfinite(places)][-1])
