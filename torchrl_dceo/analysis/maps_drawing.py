"""Numbers, marks and arrows on the map of a grid world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrl_dceo.analysis.style import COLOURS, need
from torchrl_dceo.envs.layouts import MOVES, Layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["map_image", "show_arrows", "show_map", "show_marks"]

# A world that starts anywhere would be all marks.
_MOST_STARTS = 4


def map_image(layout: Layout, values: Tensor) -> Tensor:
    """Puts one number a state where the state is: ``[H, W]``, NaN on walls and closed hallways.

    Args:
        layout (Layout): the map.
        values (Tensor): ``[S]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.maps_drawing import map_image
        >>> from torchrl_dceo.envs.layouts import parse_layout
        >>> map_image(parse_layout("S#.\\n..."), torch.arange(5)).tolist()
        [[0.0, nan, 1.0], [2.0, 3.0, 4.0]]
    """
    cells = layout.cells
    if values.shape != (len(cells),):
        raise ValueError(
            f"a map of {len(cells)} states needs as many values, got shape {list(values.shape)}"
        )
    image = torch.full((layout.height, layout.width), torch.nan, dtype=torch.float64)
    rows, columns = torch.tensor(cells).T
    image[rows, columns] = values.detach().cpu().double()
    for row, column in cells:
        if not layout.is_open(row, column):
            image[row, column] = torch.nan
    return image


def show_map(
    axes: Axes,
    layout: Layout,
    values: Tensor,
    *,
    cmap: Any,
    norm: Any = None,
    missing: str = COLOURS["unvisited"],
) -> AxesImage:
    """Draws a number a state on the map; walls are dark, a state whose number is NaN has the colour ``missing``."""
    rgb = need("matplotlib.colors").to_rgb
    image = map_image(layout, values)
    base = torch.tensor(rgb(COLOURS["wall"])).expand(layout.height, layout.width, 3).clone()
    for row, column in layout.cells:
        if layout.is_open(row, column):
            base[row, column] = torch.tensor(rgb(missing))
    axes.imshow(base.numpy(), interpolation="nearest")
    numpy = need("numpy")
    shown = numpy.ma.masked_invalid(image.numpy())
    drawn = axes.imshow(shown, cmap=cmap, norm=norm, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return drawn


def show_marks(axes: Axes, layout: Layout, size: float = 7.0) -> None:
    """Marks the starts with S and the goals with G."""
    starts = layout.starts if len(layout.starts) <= _MOST_STARTS else ()
    effects = need("matplotlib.patheffects")
    outline = [effects.withStroke(linewidth=size / 4, foreground="white")]
    for letter, cells in (("S", starts), ("G", layout.goals)):
        for row, column in cells:
            axes.text(
                column,
                row,
                letter,
                fontsize=size,
                fontweight="bold",
                color=COLOURS["ink"],
                ha="center",
                va="center_baseline",
                path_effects=outline,
            )


def show_arrows(axes: Axes, layout: Layout, actions: Tensor, moves: Tensor) -> None:
    """Draws a policy: an arrow for each move, a dot where it stays (against a wall).

    Args:
        axes (Axes): of a map.
        layout (Layout): the map.
        actions (Tensor): the action of each state, ``[S]``.
        moves (Tensor): whether it leads to another state, ``[S]``.
    """
    rows, columns = torch.tensor(layout.cells).T
    is_open = torch.tensor([layout.is_open(*cell) for cell in layout.cells])
    down, right = torch.tensor(MOVES)[actions].T
    arrows, stays = moves & is_open, ~moves & is_open
    axes.quiver(
        columns[arrows].numpy(),
        rows[arrows].numpy(),
        right[arrows].numpy(),
        down[arrows].numpy(),
        color=COLOURS["ink"],
        angles="xy",
        scale_units="xy",
        scale=1.45,
        pivot="mid",
        units="xy",
        width=0.13,
        headwidth=3.4,
        headlength=3.2,
        headaxislength=2.9,
    )
    axes.scatter(
        columns[stays].numpy(), rows[stays].numpy(), s=5, color=COLOURS["ink"], linewidths=0
    )
