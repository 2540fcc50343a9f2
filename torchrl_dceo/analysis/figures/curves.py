"""The curves of a run, from its log."""

from __future__ import annotations

import csv
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchrl_dceo.analysis.figures import COLOURS, describe, grid_of_axes, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Progress",
    "draw_learning_curve",
    "draw_option_use",
    "draw_similarity_curves",
    "draw_visit_curve",
    "mark_switch",
    "option_starts",
    "read_progress",
    "switch_places",
]

PROGRESS_FILE = "progress.csv"
"""The log's name in the run directory."""
Progress = dict[str, list[float]]
_LINES = ("first", "second", "third", "fourth", "ink", "quiet")
_LEARNED = {
    "option_climb": ("options climb, random states", "first", "-"),
    "option_climb_start": ("options climb, start", "third", "-"),
    "cosine_similarity": ("|cos| of eigenfunctions", "fourth", "-"),
    "subspace_similarity": ("… of their subspaces", "second", "-"),
}


def read_progress(path: str | os.PathLike[str]) -> Progress:
    """Reads a run's log: every column as numbers, NaN where a row has none.

    Args:
        path (path-like): the CSV file, or the run directory that holds it as ``progress.csv``.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is empty, or no log of a run.

    Examples:
        >>> import pathlib, tempfile
        >>> from torchrl_dceo.analysis import read_progress
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "progress.csv"
        ...     _ = file.write_text("frames,eval_return\\n100,\\n200,0.5\\n")
        ...     read_progress(folder)
        {'frames': [100.0, 200.0], 'eval_return': [nan, 0.5]}
    """
    path = Path(path)
    path = path / PROGRESS_FILE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"there is no log at {path}")
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = list(csv.DictReader(file))
    if not rows or "frames" not in rows[0]:
        raise ValueError(f"{path} is not the log of a run: it has no rows with a column 'frames'")
    return {name: [_number(row[name], name, path) for row in rows] for name in rows[0] if name}


@styled
def draw_learning_curve(progress: Progress, num_states: int | None = None) -> Figure:
    """Draws returns and ε, coverage, and the quality of eigenfunctions and options, if the log has them.

    Args:
        progress (Progress): from :func:`read_progress`.
        num_states (int, optional): the number of states to cover.

    Examples:
        >>> from torchrl_dceo.analysis import draw_learning_curve
        >>> figure = draw_learning_curve({"frames": [0, 10], "eval_return": [0, 1], "coverage": [1, 5]})
        >>> [axes.get_title(loc="left") for axes in figure.axes]
        ['Return', 'Coverage']
    """
    has_return = any(_points(progress, name)[0] for name in ("train_return", "eval_return"))
    panels = [_returns] if has_return else []
    if _points(progress, "coverage")[0]:
        panels.append(lambda axes, progress: _coverage(axes, progress, num_states))
    if any(_points(progress, name)[0] for name in _LEARNED):
        panels.append(_learned)
    panels = panels or [_returns]
    figure = new_figure(3.4 * len(panels) + 0.4, 2.8)
    for axes, draw in zip(grid_of_axes(figure, len(panels), len(panels)), panels, strict=True):
        draw(axes, progress)
        _phases(axes, progress)
        _switches(axes, progress)
    return figure


def _returns(axes: Axes, progress: Progress) -> None:
    describe(axes, "frames", "return", "Return")
    frames, values = _points(progress, "train_return")
    if frames:
        axes.plot(frames, values, color=COLOURS["first"], linewidth=0.8, alpha=0.3)
        axes.plot(
            frames,
            _smooth_stretches(progress, frames, values),
            color=COLOURS["first"],
            label="training",
            marker="o" if len(frames) == 1 else None,  # a line with one point is invisible
            markersize=2.5,
        )
    frames, values = _points(progress, "eval_return")
    if frames:
        (line,) = axes.plot(frames, values, color=COLOURS["second"], label="evaluation")
        line.set(marker="o", markersize=2.5)
    low = min(
        0.0,
        *(
            v
            for name in ("train_return", "eval_return")
            for v in _points(progress, name)[1] or [0.0]
        ),
    )
    axes.set_ylim(low * 1.05 - 0.03, None if axes.get_ylim()[1] > 1.05 else 1.05)
    frames, values = _points(progress, "eps")
    handles, labels = axes.get_legend_handles_labels()
    if frames:
        twin = axes.twinx()
        (dots,) = twin.plot(frames, values, color=COLOURS["quiet"], linestyle=":", linewidth=1.4)
        twin.set_ylim(-0.03, 1.05)
        twin.tick_params(axis="y", colors=COLOURS["quiet"], labelsize=8)
        twin.spines[["top", "left"]].set_visible(False)
        twin.spines["right"].set_color(COLOURS["quiet"])
        handles, labels = [*handles, dots], [*labels, "ε (right)"]
    if handles:
        # Above the panel, because inside it would overlap the curves.
        axes.legend(
            handles,
            labels,
            frameon=False,
            loc="lower right",
            bbox_to_anchor=(1.1, 0.98),
            ncols=len(handles),
            handlelength=1.1,
            columnspacing=0.9,
        )


def _coverage(axes: Axes, progress: Progress, num_states: int | None) -> None:
    describe(axes, "frames", "distinct states visited", "Coverage")
    frames, values = _points(progress, "coverage")
    axes.plot(frames, values, color=COLOURS["third"])
    axes.fill_between(frames, values, color=COLOURS["third"], alpha=0.12, linewidth=0)
    top = max(values)
    if num_states is not None:
        top = max(top, num_states)
        axes.axhline(num_states, color=COLOURS["quiet"], linestyle="--", linewidth=1)
        axes.annotate(
            f"all {num_states} states",
            (1, num_states),
            xycoords=("axes fraction", "data"),
            xytext=(-3, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8,
            color=COLOURS["quiet"],
        )
    axes.set_ylim(0, top * 1.12)


def _learned(axes: Axes, progress: Progress) -> None:
    describe(axes, "frames", "1 is perfect", "Eigenfunctions and options")
    low = 0.0
    for name in progress:
        if re.fullmatch(r"option_climb_\d+", name):  # each option, faint behind their mean
            frames, values = _points(progress, name)
            axes.plot(frames, values, color=COLOURS["first"], linewidth=0.6, alpha=0.25)
            low = min(low, *values, 0.0)
    for name, (label, colour, line) in _LEARNED.items():
        frames, values = _points(progress, name)
        if frames:
            axes.plot(frames, values, color=COLOURS[colour], linestyle=line, label=label)
            low = min(low, *values)
    # The legend fits above 1, where there are no curves.
    axes.set_ylim(low * 1.05, 1.05 + 0.42 * (1 - low))
    axes.set_yticks([tick for tick in axes.get_yticks() if low * 1.05 <= tick <= 1.001])
    axes.legend(frameon=False, loc="upper left", ncols=2, columnspacing=1.0, handlelength=1.5)


def _phases(axes: Axes, progress: Progress) -> None:
    """A dashed line at the end of a phase."""
    phases, frames = progress.get("phase", []), progress["frames"]
    for i in range(1, len(phases)):
        if phases[i] > phases[i - 1]:
            axes.axvline(frames[i - 1], color=COLOURS["quiet"], linestyle="--", linewidth=0.8)


def _switches(axes: Axes, progress: Progress) -> None:
    """A line at each change of the environment."""
    for place in switch_places(progress):
        mark_switch(axes, place)


def switch_places(progress: Progress, x: str = "frames") -> list[float]:
    """The changes of a run's environment, by the column ``map``: the last row of each map but the last.

    Examples:
        >>> from torchrl_dceo.analysis.figures.curves import switch_places
        >>> switch_places({"frames": [10.0, 20.0, 30.0], "map": [0.0, 0.0, 1.0]})
        [20.0]
    """
    maps = progress.get("map", [])
    return [progress[x][i - 1] for i in range(1, len(maps)) if maps[i] > maps[i - 1]]


def mark_switch(axes: Axes, place: float) -> None:
    """Draws a vertical line with its name at the bottom."""
    axes.axvline(place, color=COLOURS["second"], linestyle=(0, (4, 2)), linewidth=1, zorder=0.5)
    axes.annotate(
        "switch",
        (place, 0),
        xycoords=("data", "axes fraction"),
        xytext=(3, 3),
        textcoords="offset points",
        fontsize=8,
        color=COLOURS["second"],
        rotation=90,
        va="bottom",
    )


def _points(progress: Progress, name: str) -> tuple[list[float], list[float]]:
    """The rows that have the column."""
    pairs = zip(progress["frames"], progress.get(name, []), strict=False)
    kept = [(frame, value) for frame, value in pairs if math.isfinite(value)]
    return [frame for frame, _ in kept], [value for _, value in kept]


def _smooth_stretches(progress: Progress, frames: list[float], values: list[float]) -> list[float]:
    """Smooths each period between two changes separately, so that the return does not seem to fall before a change."""
    ends = [sum(frame <= place for frame in frames) for place in switch_places(progress)]
    cuts = [0, *ends, len(values)]
    return [v for a, b in itertools.pairwise(cuts) for v in _smooth(values[a:b])]


def _smooth(values: list[float]) -> list[float]:
    """Running mean over a tenth of the curve."""
    half = max(1, len(values) // 20)
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


@styled
def draw_visit_curve(counts: Tensor) -> Figure:
    """Draws the visits of each state in descending order, for environments without a map.

    Args:
        counts (Tensor): ``[S]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.figures.curves import draw_visit_curve
        >>> draw_visit_curve(torch.tensor([5, 0, 90])).get_suptitle()
        'State visitation · 2 states'
    """
    visits = counts[counts > 0].sort(descending=True).values.tolist()
    figure = new_figure(4.2, 2.8, f"State visitation · {len(visits)} states")
    axes = figure.subplots()
    describe(axes, "state, most visited first", "visits", "")
    axes.fill_between(range(1, len(visits) + 1), visits, step="mid", color="#f0b7a4", linewidth=0)
    axes.step(range(1, len(visits) + 1), visits, where="mid", color=COLOURS["second"])
    axes.set_yscale("log")
    axes.set_xlim(0.5, max(1, len(visits)) + 0.5)
    return figure


def option_starts(progress: Progress) -> list[float]:
    """The number of starts of each option in a run's log; empty if there are no options.

    Examples:
        >>> from torchrl_dceo.analysis.figures.curves import option_starts
        >>> option_starts({"frames": [1.0, 2.0], "option_starts_1": [2.0, 3.0], "option_starts_2": [0.0, 1.0]})
        [5.0, 1.0]
    """
    names = [name for name in progress if re.fullmatch(r"option_starts_\d+", name)]
    names.sort(key=lambda name: int(name.rpartition("_")[2]))
    return [sum(v for v in progress[name] if not math.isnan(v)) for name in names]


@styled
def draw_option_use(starts: Sequence[float]) -> Figure:
    """Draws the number of starts of each option.

    Args:
        starts (sequence of float): from :func:`option_starts`.

    Examples:
        >>> from torchrl_dceo.analysis.figures.curves import draw_option_use
        >>> len(draw_option_use([5, 1, 3]).axes[0].patches)
        3
    """
    figure = new_figure(max(3.4, 0.32 * len(starts) + 1.2), 2.8, "Options: how often each started")
    axes = figure.subplots()
    describe(axes, "option", "starts", "")
    places = range(1, len(starts) + 1)
    axes.bar(places, starts, color=COLOURS["first"], width=0.7)
    step = -(-len(starts) // 12)
    axes.set_xticks(places[::step], [str(place) for place in places[::step]])
    return figure


def _number(text: str | None, name: str, path: Path) -> float:
    if text is None or text == "":
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{path} holds {text!r} in the column {name!r}, which is no number"
        ) from None


@styled
def draw_similarity_curves(
    curves: Mapping[str, Sequence[Mapping[str, Sequence[float]]]],
    *,
    x: str = "step",
    columns: Sequence[str] = ("cosine", "span"),
    title: str | None = None,
) -> Figure:
    r"""Draws the similarity to the exact eigenfunctions over training: one panel per column, one line per objective.

    The line is the mean over the seeds, the band their range.

    Args:
        curves (mapping): for each objective the logs of its seeds, each a mapping from column to values, all with
            the same steps.

    Keyword Args:
        x (str): the column along the bottom. Default: ``"step"``.
        columns (sequence of str): the columns to draw. Default: ``("cosine", "span")``.
        title (str, optional): of the figure.

    Examples:
        >>> from torchrl_dceo.analysis.figures.curves import draw_similarity_curves
        >>> log = {"step": [1, 2], "cosine": [0.5, 0.9], "span": [0.9, 1.0]}
        >>> figure = draw_similarity_curves({"ALLO": [log, log]})
        >>> [axes.get_title(loc="left") for axes in figure.axes]
        ['Vectors: mean |cos|', 'Span: mean cosine of principal angles']
    """
    names = {
        "cosine": "Vectors: mean |cos|",
        "subspace_cosine": "Subspaces: mean cosine",
        "span": "Span: mean cosine of principal angles",
        "data_cosine": "Against the optimum on the data",
    }
    figure = new_figure(3.9 * len(columns), 3.1, title)
    for axes, column in zip(grid_of_axes(figure, len(columns), len(columns)), columns, strict=True):
        describe(axes, x, "", names.get(column, column))
        for (name, logs), colour in zip(curves.items(), _LINES, strict=False):
            values = torch.tensor([list(log[column]) for log in logs])
            along = [sum(at) / len(at) for at in zip(*(log[x] for log in logs), strict=True)]
            axes.plot(along, values.mean(0), color=COLOURS[colour], label=name)
            low, high = values.min(0).values, values.max(0).values
            axes.fill_between(along, low, high, color=COLOURS[colour], alpha=0.15, linewidth=0)
        axes.set_ylim(0, 1.02)
    # One for all panels, below them, because inside it would overlap the curves.
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure
