"""Common palette, style and helpers of all figures."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "agent_colours",
    "colormap",
    "describe",
    "explain",
    "grid_of_axes",
    "need",
    "new_figure",
    "save_rollout_gif",
    "styled",
]

_LONGEST_GIF = 120  # frames
_P = ParamSpec("_P")
_T = TypeVar("_T")

COLOURS = {
    "ink": "#2b2d42",
    "quiet": "#8d99ae",
    "wall": "#3a3f55",
    "unvisited": "#c9cdd6",
    "floor": "#ffffff",
    "first": "#2a6f97",
    "second": "#d1495b",
    "third": "#2a9d8f",
    "fourth": "#edae49",
}
"""The colours of all figures."""
_AGENTS = {
    "dceo": "#2a6f97",
    "dceo_two_phase": "#2a9d8f",
    "ddqn": "#3a3f55",
    "counts": "#edae49",
    "ez_greedy": "#d1495b",
    "rnd": "#8f5fa8",
    "diayn": "#e07a3f",
    "dco": "#7fa650",
    "cic": "#5fa8d3",
}
_OTHERS = ("#c77dab", "#6b705c", "#8c6d46", "#b8b042", "#5c5f9e", "#e5989b", "#3f7d5a", "#999999")

_COLORMAPS = {
    # The paper's state visitation: white to red, low to high.
    "visits": ("#ffffff", "#fdd5c4", "#f77f5f", "#d7263d", "#7a0019"),
    "signed": ("#1d4e89", "#6fa8d6", "#f7f7f7", "#ee8a6f", "#a4133c"),
    "values": ("#fbfaf5", "#d6ecdf", "#8ccfc3", "#3d9fae", "#23648c"),
}
_SETTINGS = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.edgecolor": COLOURS["quiet"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.titlecolor": COLOURS["ink"],
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["ink"],
    "ytick.color": COLOURS["ink"],
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
}
_DPI = 150


def need(module: str, extra: str = "analysis") -> Any:
    """Imports an optional package, or raises an error that names its extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        package = {"PIL": "pillow"}.get(package, package)
        what = {"analysis": "figures need", "report": "intervals over seeds need"}[extra]
        raise ImportError(f"{what} {package}: pip install 'torchrl-dceo[{extra}]'") from error


def new_figure(width: float, height: float, title: str | None = None) -> Figure:
    """An empty figure in the common style, without pyplot: no global state and no window."""
    figure = need("matplotlib.figure").Figure(
        figsize=(width, height), dpi=_DPI, layout="constrained"
    )
    if title is not None:
        figure.suptitle(title, fontsize=11, fontweight="bold", color=COLOURS["ink"])
    return figure


def styled(draw: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorator: draws in the common style, without changing the user's settings."""

    @functools.wraps(draw)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with need("matplotlib").rc_context(_SETTINGS):
            return draw(*args, **kwargs)

    return wrapped


def explain(figure: Figure, text: str) -> None:
    """A caption below the panels that explains their symbols."""
    figure.supxlabel(text, fontsize=8, color=COLOURS["quiet"])


def grid_of_axes(figure: Figure, count: int, columns: int) -> list[Axes]:
    """The requested number of axes, row by row; the rest of the last row is blank."""
    columns = min(columns, count)
    axes = figure.subplots(-(-count // columns), columns, squeeze=False).flatten().tolist()
    for blank in axes[count:]:
        blank.set_axis_off()
    return axes[:count]


def colormap(name: str) -> Colormap:
    """One of the palette's colormaps: ``visits``, ``signed`` or ``values``."""
    return need("matplotlib.colors").LinearSegmentedColormap.from_list(name, _COLORMAPS[name])


def agent_colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each agent: fixed ones for the agents of the package, then the next free ones."""
    names = set(names)
    own = {name: colour for name, colour in _AGENTS.items() if name in names}
    return own | dict(zip(sorted(names - set(own)), itertools.cycle(_OTHERS), strict=False))


def describe(axes: Axes, x: str, y: str, title: str) -> None:
    """Labels a panel of curves and removes unneeded parts of its frame."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.xaxis.set_major_formatter(need("matplotlib.ticker").EngFormatter(sep=""))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=COLOURS["unvisited"], linewidth=0.6, alpha=0.6)
    axes.set_axisbelow(True)


def save_rollout_gif(
    file: str | os.PathLike[str], frames: Sequence[Any], *, seconds_per_step: float = 0.15
) -> Path:
    """Writes the frames of a rollout as a looping GIF with a pause at its end.

    Args:
        file (path-like): where to.
        frames (sequence of arrays): from :func:`rollout_frames`; at most the first 120 are written.

    Keyword Args:
        seconds_per_step (float): Default: 0.15.

    Examples:
        >>> import pathlib, tempfile
        >>> from torchrl_dceo.analysis import rollout_frames, save_rollout_gif
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = save_rollout_gif(pathlib.Path(folder) / "a.gif", rollout_frames(parse_layout("S.."), [0, 1]))
        ...     file.read_bytes()[:3]
        b'GIF'
    """
    if not frames:
        raise ValueError("a GIF needs at least one frame, got none")
    pictures = [need("PIL.Image").fromarray(frame) for frame in frames[:_LONGEST_GIF]]
    step = round(1000 * seconds_per_step)
    durations = [step] * (len(pictures) - 1) + [step + 1200]
    path = Path(file)
    pictures[0].save(
        path,
        format="GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=durations,
        loop=0,
        optimize=True,
    )
    return path
