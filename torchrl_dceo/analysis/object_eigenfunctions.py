"""An eigenfunction of a world with objects, over all positions of the agent, before and after something happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchrl_dceo.analysis.maps_drawing import show_map
from torchrl_dceo.analysis.style import colormap, explain, grid_of_axes, need, new_figure, styled
from torchrl_dceo.envs.layouts import Layout, parse_layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Separation", "draw_object_eigenfunctions", "object_layout", "separation"]


class Separation(NamedTuple):
    """How far a function tells two sets of states apart, see :func:`separation`.

    Attributes:
        auc (float): the share of pairs, one state of each set, that it orders the same way (the better of the two
            orders; a tie counts half): 1 if a threshold separates the sets, 0.5 if it tells nothing.
        distance (float): the difference of the means in units of the (pooled) standard deviation.
        opposite (float): the share of states on their set's side of zero, the better way round.
    """

    auc: float
    distance: float
    opposite: float


def separation(before: Tensor, after: Tensor) -> Separation:
    """Measures how well the sign or the level of a function separates states before an event from those after it.

    Args:
        before (Tensor): its values in the states before, ``[n]``.
        after (Tensor): those after, ``[m]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.object_eigenfunctions import separation
        >>> separation(torch.tensor([-2.0, -1.0]), torch.tensor([1.0, 2.0, -1.5])).auc
        0.8333333333333334
    """
    before, after = before.double(), after.double()
    ahead = (after > before.unsqueeze(-1)).double() + (after == before.unsqueeze(-1)).double() / 2
    auc = float(ahead.mean())
    pooled = torch.cat([before - before.mean(), after - after.mean()])
    deviation = (pooled.square().sum() / max(1, len(pooled) - 2)).sqrt().clamp(min=1e-12)
    side = float(torch.cat([before < 0, after > 0]).double().mean())
    return Separation(
        max(auc, 1 - auc),
        float((after.mean() - before.mean()).abs() / deviation),
        max(side, 1 - side),
    )


def object_layout(rows: Sequence[str]) -> Layout:
    """The map of an object world with its positions numbered as the world does: objects are floor, the door is too.

    Examples:
        >>> from torchrl_dceo.analysis.object_eigenfunctions import object_layout
        >>> len(object_layout(["#####", "#KBSD", "#####"]).cells)
        4
    """
    return parse_layout("\n".join("".join("." if c in "KDB" else c for c in row) for row in rows))


@styled
def draw_object_eigenfunctions(
    layout: Layout,
    panels: Sequence[tuple[str, Sequence[tuple[str, Tensor]]]],
    picture: Tensor,
    title: str,
    note: str = "",
) -> Figure:
    """Draws one row of maps for each function, all maps of a row on one scale, and the world beside the first row.

    Args:
        layout (Layout): from :func:`object_layout`.
        panels (sequence): for each function its name and the maps, each with a title and a value a position ``[P]``,
            NaN for positions that do not occur.
        picture (Tensor): the world for people, uint8 ``[H, W, 3]``.
        title (str): of the figure.
        note (str, optional): below it.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.object_eigenfunctions import draw_object_eigenfunctions, object_layout
        >>> layout = object_layout(["#####", "#K SD", "#####"])
        >>> maps = [("before", torch.arange(4.0)), ("after", -torch.arange(4.0))]
        >>> picture = torch.zeros(3, 5, 3, dtype=torch.uint8)
        >>> figure = draw_object_eigenfunctions(layout, [("exact", maps)], picture, "A corridor")
        >>> [axes.get_title() for axes in figure.axes][:3]
        ['exact · before', 'after', 'the world']
    """
    columns = max(len(maps) for _, maps in panels) + 1
    shape = layout.height / layout.width
    figure = new_figure(2.3 * columns, len(panels) * (2.3 * shape + 0.3) + 0.6, title)
    cells = grid_of_axes(figure, columns * len(panels), columns)
    normalize = need("matplotlib.colors").Normalize
    for row, (name, maps) in enumerate(panels):
        own = cells[row * columns : (row + 1) * columns]
        known = torch.cat([values[values.isfinite()] for _, values in maps])
        limit = max(float(known.abs().max()), 1e-12)
        for i, (axes, (label, values)) in enumerate(zip(own, maps, strict=False)):
            norm = normalize(vmin=-limit, vmax=limit)
            image = show_map(axes, layout, values, cmap=colormap("signed"), norm=norm)
            axes.set_title(f"{name} · {label}" if i == 0 else label, pad=3)
        bar = figure.colorbar(image, ax=own[len(maps) - 1], shrink=0.85, pad=0.03)
        bar.outline.set_visible(False)
        for axes in own[len(maps) :]:
            axes.axis("off")
        if row == 0:
            own[-1].imshow(picture.numpy(), interpolation="nearest")
            own[-1].set_title("the world", pad=3)
    if note:
        explain(figure, note)
    return figure
