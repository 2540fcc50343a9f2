"""Pictures of first-person worlds from above, and films of what an option sees."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchrl_dceo.analysis.birds_eye import BirdsEye, as_tensor
from torchrl_dceo.analysis.rollouts import save_rollout_gif
from torchrl_dceo.analysis.style import (
    COLOURS,
    colormap,
    explain,
    grid_of_axes,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_birds_eye", "draw_option_ways", "save_film"]


def _floor(axes: Axes, view: BirdsEye) -> None:
    for wall in view.walls:
        axes.plot(wall[:, 0], wall[:, 1], color=COLOURS["wall"], linewidth=1.2)
    axes.set_aspect("equal")
    # As on the map: z grows downwards.
    axes.invert_yaxis()
    axes.set_axis_off()


def _extent(view: BirdsEye) -> tuple[float, float, float, float]:
    low, high = view.positions.min(0), view.positions.max(0)
    half = _spacing(view) / 2
    return (low[0] - half, high[0] + half, high[1] + half, low[1] - half)


def _spacing(view: BirdsEye) -> float:
    x = np.unique(view.positions[:, 0])
    return float(np.diff(x).min()) if len(x) > 1 else 1.0


@styled
def draw_birds_eye(
    view: BirdsEye,
    *,
    first: int = 1,
    count: int = 2,
    notes: Sequence[str] = (),
    title: str = "Eigenfunctions from above",
) -> Figure:
    """Draws outputs of a representation over the floor plan, each centred on its mean.

    Args:
        view (BirdsEye): the values.

    Keyword Args:
        first (int): the first output to draw, from 0 on. Default: 1, the first that is not constant.
        count (int): how many. Default: 2.
        notes (sequence of str): a line more for each panel's title.
        title (str): of the picture.
    """
    count = min(count, view.values.shape[1] - first)
    image = as_tensor(view).numpy()
    rows = image.shape[2] / image.shape[1]
    figure = new_figure(3.2 * count + 0.3, 3.2 * rows + 1.0, title)
    # Rows and columns without any free point, cut off so that the picture fits its extent.
    used_x, used_z = view.free.any(1), view.free.any(0)
    for panel, axes in enumerate(grid_of_axes(figure, count, count)):
        values = image[first + panel][used_x][:, used_z].T
        values = values - np.nanmean(values)
        limit = float(np.nanmax(np.abs(values))) or 1.0
        axes.imshow(values, cmap=colormap("signed"), vmin=-limit, vmax=limit, extent=_extent(view))
        _floor(axes, view)
        note = f"\n{notes[panel]}" if panel < len(notes) else ""
        axes.set_title(f"f{first + panel + 1}{note}")
    x, z = math.cos(float(view.heading)), -math.sin(float(view.heading))
    sides = {(1, 0): "right", (-1, 0): "left", (0, 1): "down", (0, -1): "up"}
    looks = sides.get((round(x), round(z)), f"{math.degrees(float(view.heading)):.0f}° from right")
    explain(figure, f"the agent looks to the {looks}; blue below the mean, red above")
    return figure


@styled
def draw_option_ways(
    view: BirdsEye, *, first: int = 1, title: str = "Where options lead, greedily"
) -> Figure:
    """Draws the way of each option over the function that it climbs.

    Args:
        view (BirdsEye): with ``ways``. If there are as many outputs as ways from ``first`` on, they are the floor's
            colours.

    Keyword Args:
        first (int): the output that the first option climbs. Default: 1.
        title (str): of the picture.
    """
    if view.ways is None:
        raise ValueError("this view from above holds no ways of options")
    count = len(view.ways)
    image = as_tensor(view).numpy()
    rows = image.shape[2] / image.shape[1]
    figure = new_figure(2.4 * count + 0.3, 2.4 * rows + 1.0, title)
    used_x, used_z = view.free.any(1), view.free.any(0)
    climbs = image.shape[0] >= first + count
    for option, axes in enumerate(grid_of_axes(figure, count, count)):
        if climbs:
            values = image[first + option][used_x][:, used_z].T
            values = values - np.nanmean(values)
            limit = float(np.nanmax(np.abs(values))) or 1.0
            axes.imshow(
                values, cmap=colormap("signed"), vmin=-limit, vmax=limit, extent=_extent(view)
            )
        _floor(axes, view)
        way = view.ways[option]
        axes.plot(way[:, 0], way[:, 1], color=COLOURS["ink"], linewidth=1.6)
        axes.plot(*way[0], "o", color="white", markeredgecolor=COLOURS["ink"], markersize=5)
        axes.plot(
            *way[-1], "o", color=COLOURS["fourth"], markeredgecolor=COLOURS["ink"], markersize=6
        )
        axes.set_title(f"option {option + 1}", pad=3)
    explain(figure, f"white: start; yellow: after {view.ways.shape[1] - 1} steps")
    return figure


def save_film(
    file: str | os.PathLike[str], frames: Sequence[Any], *, frames_per_second: int = 15
) -> Path:
    """Writes frames as an mp4 where PyAV is installed (``pip install 'torchrl-dceo[video]'``), else as a GIF.

    Args:
        file (path-like): where to; the suffix is set by what is written.
        frames (sequence of arrays): ``uint8 [H, W, 3]``, of even width and height for an mp4.

    Keyword Args:
        frames_per_second (int): Default: 15.

    Returns:
        Path: the file.
    """
    if not len(frames):
        raise ValueError("a film needs at least one frame, got none")
    try:
        import av
    except ImportError:
        return save_rollout_gif(
            Path(file).with_suffix(".gif"), frames, seconds_per_step=1 / frames_per_second
        )
    path = Path(file).with_suffix(".mp4")
    height, width, _ = frames[0].shape
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=frames_per_second)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path
