"""Eigenfunctions over an agent's positions, and before and after events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchrl_dceo.analysis.figures import (
    colormap,
    explain,
    grid_of_axes,
    need,
    new_figure,
    styled,
)
from torchrl_dceo.analysis.figures.maps import show_map
from torchrl_dceo.envs.grid.layouts import Layout, parse_layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "PositionValues",
    "Separation",
    "draw_object_eigenfunctions",
    "draw_position_values",
    "object_layout",
    "position_values",
    "separation",
]


class PositionValues(NamedTuple):
    """The result of :func:`position_values`.

    Attributes:
        positions (Tensor): the distinct positions, int64 ``[P, 2]``, as (x, y).
        means (Tensor): the mean of each function there, ``[P, d]``.
        counts (Tensor): the number of samples at each position, int64 ``[P]``.
    """

    positions: Tensor
    means: Tensor
    counts: Tensor


def position_values(positions: Tensor, values: Tensor) -> PositionValues:
    """Averages functions of the state over all samples at the same position.

    Args:
        positions (Tensor): integers ``[N, 2]``.
        values (Tensor): d functions of each sample's state, ``[N, d]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.figures.positions import position_values
        >>> places = torch.tensor([[5, 1], [2, 1], [5, 1]])
        >>> result = position_values(places, torch.tensor([[1.0], [7.0], [3.0]]))
        >>> result.positions.tolist(), result.means.flatten().tolist(), result.counts.tolist()
        ([[2, 1], [5, 1]], [7.0, 2.0], [1, 2])
    """
    if positions.ndim != 2 or positions.shape[1] != 2 or values.shape[:1] != positions.shape[:1]:
        raise ValueError(
            f"positions must be [N, 2] and values [N, d], got {list(positions.shape)} and {list(values.shape)}"
        )
    places, which, counts = positions.unique(dim=0, return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(places), values.shape[1]).index_add_(0, which, values)
    return PositionValues(places, sums / counts.unsqueeze(-1), counts)


@styled
def draw_position_values(
    image: Tensor,
    pixels: Tensor,
    values: Tensor,
    path: str | Path,
    *,
    titles: Sequence[str],
    title: str | None = None,
    columns: int = 3,
    size: float = 7.0,
) -> Path:
    """Draws each function as coloured dots over an image: blue where it is lowest, red where it is highest.

    The colours span the middle 98% of a function's values, so that outliers do not dominate, with white
    at its median.

    Args:
        image (Tensor): RGB, uint8 ``[H, W, 3]``.
        pixels (Tensor): the pixel of each position on the image, (column, row), ``[P, 2]``.
        values (Tensor): ``[P, d]``.
        path (str or Path): the PNG to write.

    Keyword Args:
        titles (Sequence[str]): one per function.
        title (str, optional): over all of them.
        columns (int): panels per row. Default: 3.
        size (float): of a dot. Default: 7.

    Examples:
        >>> import tempfile, torch
        >>> from torchrl_dceo.analysis.figures.positions import draw_position_values
        >>> screen = torch.zeros(210, 160, 3, dtype=torch.uint8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = draw_position_values(
        ...         screen, torch.tensor([[80, 80], [90, 80]]), torch.rand(2, 1), f"{folder}/f.png", titles=["f2"]
        ...     )
        ...     path.stat().st_size > 0
        True
    """
    count = values.shape[1]
    if len(titles) != count:
        raise ValueError(f"{count} functions need as many titles, got {len(titles)}")
    height, width = image.shape[:2]
    rows = -(-count // min(columns, count))
    # Atari's pixels are wider than tall.
    panel = 3.4 if width > height else 3.4 * 0.85
    figure = new_figure(3.4 * min(columns, count), panel * rows + 0.5, title)
    for i, axes in enumerate(grid_of_axes(figure, count, columns)):
        axes.imshow((image.float() * 0.55).to(torch.uint8).numpy(), aspect="auto")
        one = values[:, i].double()
        low, middle, high = torch.quantile(one, torch.tensor([0.01, 0.5, 0.99]).double()).tolist()
        spread = max(high - middle, middle - low, 1e-12)
        # The extremes on top, because dots of single pixels overlap.
        order = (one - middle).abs().argsort()
        axes.scatter(
            pixels[order, 0],
            pixels[order, 1],
            c=one[order],
            s=size,
            cmap=colormap("signed"),
            vmin=middle - spread,
            vmax=middle + spread,
            linewidths=0,
        )
        axes.set_title(titles[i], loc="left")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    explain(figure, "a dot is a place of the player; blue is low, white the median, red high")
    path = Path(path)
    figure.savefig(path)
    return path


class Separation(NamedTuple):
    """The separation of two sets of states by a function, see :func:`separation`.

    Attributes:
        auc (float): the share of pairs, one state of each set, that it orders the same way (the better of the two
            orders; a tie counts half): 1 if a threshold separates the sets, 0.5 if it carries no information.
        distance (float): the difference of the means in units of the (pooled) standard deviation.
        opposite (float): the share of states on their set's side of zero, for the better of the two signs.
    """

    auc: float
    distance: float
    opposite: float


def separation(before: Tensor, after: Tensor) -> Separation:
    """Measures the separation of states before and after an event by the sign or the level of a function.

    Args:
        before (Tensor): its values in the states before, ``[n]``.
        after (Tensor): those after, ``[m]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.figures.positions import separation
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
    """The map of an environment with objects; objects and the door count as floor, as in its position indices.

    Examples:
        >>> from torchrl_dceo.analysis.figures.positions import object_layout
        >>> len(object_layout(["#####", "#KBSD", "#####"]).cells)
        4
    """
    return parse_layout("\n".join("".join("." if c in "KDB" else c for c in row) for row in rows))


@styled
def draw_object_eigenfunctions(
    layout: Layout,
    panels: Sequence[tuple[str, Sequence[tuple[str, Tensor]]]],
    image: Tensor,
    title: str,
    note: str = "",
) -> Figure:
    """Draws one row of maps for each function, one scale per row, and an image of the environment next to the first.

    Args:
        layout (Layout): from :func:`object_layout`.
        panels (sequence): for each function its name and the maps, each with a title and a value per position ``[P]``,
            NaN for positions that do not occur.
        image (Tensor): the environment for people, uint8 ``[H, W, 3]``.
        title (str): of the figure.
        note (str, optional): below it.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.figures.positions import draw_object_eigenfunctions, object_layout
        >>> layout = object_layout(["#####", "#K SD", "#####"])
        >>> maps = [("before", torch.arange(4.0)), ("after", -torch.arange(4.0))]
        >>> image = torch.zeros(3, 5, 3, dtype=torch.uint8)
        >>> figure = draw_object_eigenfunctions(layout, [("exact", maps)], image, "A corridor")
        >>> [axes.get_title() for axes in figure.axes][:3]
        ['exact · before', 'after', 'environment']
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
            mappable = show_map(axes, layout, values, cmap=colormap("signed"), norm=norm)
            axes.set_title(f"{name} · {label}" if i == 0 else label, pad=3)
        bar = figure.colorbar(mappable, ax=own[len(maps) - 1], shrink=0.85, pad=0.03)
        bar.outline.set_visible(False)
        for axes in own[len(maps) :]:
            axes.axis("off")
        if row == 0:
            own[-1].imshow(image.numpy(), interpolation="nearest")
            own[-1].set_title("environment", pad=3)
    if note:
        explain(figure, note)
    return figure
