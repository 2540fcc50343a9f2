"""One option at work: its greedy rollout as a strip of pictures and as a GIF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrl_dceo.analysis.figures.maps import map_image
from torchrl_dceo.analysis.figures.style import (
    COLOURS,
    colormap,
    grid_of_axes,
    need,
    new_figure,
    styled,
)
from torchrl_dceo.envs.grid.layouts import Layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_rollout", "rollout_frames"]

# Drawn larger and scaled down, so that round things look round.
_OVERSAMPLING = 3


def rollout_frames(
    layout: Layout, path: Sequence[int], values: Tensor | None = None, *, tile_size: int = 16
) -> list[Any]:
    """Draws each step of a rollout: the way so far, and where the option is.

    Args:
        layout (Layout): the map.
        path (sequence of int): the states visited, in order.
        values (Tensor, optional): what colours the floor, ``[S]``: the function that the option climbs.

    Keyword Args:
        tile_size (int): pixels along the side of a cell. Default: 16.

    Returns:
        list of numpy arrays, uint8 ``[H * tile_size, W * tile_size, 3]``.

    Examples:
        >>> from torchrl_dceo.analysis import rollout_frames
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
        >>> frames = rollout_frames(parse_layout("S..\\n..."), [0, 1, 2])
        >>> len(frames), frames[0].shape
        (3, (32, 48, 3))
    """
    image_module, draw_module = need("PIL.Image"), need("PIL.ImageDraw")
    numpy = need("numpy")
    size = tile_size * _OVERSAMPLING
    cells = _cell_colours(layout, values)
    large = cells.repeat_interleave(size, 0).repeat_interleave(size, 1)
    canvas = image_module.fromarray(large.numpy())
    centres = [((c + 0.5) * size, (r + 0.5) * size) for r, c in (layout.cells[s] for s in path)]
    pen = draw_module.Draw(canvas)
    frames = []
    for step, (x, y) in enumerate(centres):
        if step:
            pen.line([centres[step - 1], (x, y)], fill=COLOURS["ink"], width=max(1, size // 6))
        _disc(pen, x, y, size / 12, COLOURS["ink"])  # rounds the corners of the way
        frame = canvas.copy()
        top = draw_module.Draw(frame)
        _disc(top, x, y, 0.42 * size, "white")
        _disc(top, x, y, 0.34 * size, COLOURS["fourth"])
        shape = (layout.width * tile_size, layout.height * tile_size)
        frames.append(numpy.asarray(frame.resize(shape, image_module.Resampling.BOX)))
    return frames


@styled
def draw_rollout(
    layout: Layout,
    path: Sequence[int],
    values: Tensor | None = None,
    *,
    title: str = "Rollout of an option",
    pictures: int = 5,
) -> Figure:
    """Draws a rollout as a strip: its first step, its last, and some between.

    Args:
        layout (Layout): the map.
        path (sequence of int): the states visited, in order.
        values (Tensor, optional): what colours the floor, ``[S]``.

    Keyword Args:
        title (str): of the strip.
        pictures (int): how many at most. Default: 5.

    Examples:
        >>> from torchrl_dceo.analysis import draw_rollout
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
        >>> figure = draw_rollout(parse_layout("S....\\n....."), [0, 1, 2, 3, 4], pictures=3)
        >>> [axes.get_title() for axes in figure.axes]
        ['step 0', 'step 2', 'step 4']
    """
    count = min(pictures, len(path))
    last = len(path) - 1
    steps = [round(i * last / max(1, count - 1)) for i in range(count)]
    frames = rollout_frames(layout, path, values)
    width = 1.9
    height = width * layout.height / layout.width + 0.5
    figure = new_figure(max(width * count, 3.6), height, title)
    for axes, step in zip(grid_of_axes(figure, count, count), steps, strict=True):
        axes.imshow(frames[step])
        axes.set_axis_off()
        axes.set_title(f"step {step}", pad=3)
    return figure




def _cell_colours(layout: Layout, values: Tensor | None) -> Tensor:
    rgb = need("matplotlib.colors").to_rgb
    heights = torch.zeros(len(layout.cells)) if values is None else values
    image = map_image(layout, heights)
    is_floor = ~image.isnan()
    limit = max(float(image[is_floor].abs().max()), 1e-12)
    if values is None:
        floor = torch.tensor(rgb(COLOURS["floor"])).expand(*image.shape, 3)
    else:
        shade = colormap("signed")(((image / limit + 1) / 2).nan_to_num().numpy())
        floor = torch.from_numpy(shade)[..., :3].float()
    wall = torch.tensor(rgb(COLOURS["wall"]))
    return (torch.where(is_floor.unsqueeze(-1), floor, wall) * 255).round().to(torch.uint8)


def _disc(pen: Any, x: float, y: float, radius: float, colour: str) -> None:
    pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour)
