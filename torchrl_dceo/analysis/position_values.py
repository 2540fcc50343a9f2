"""Numbers at the places where a player was, averaged and drawn over a picture of the room."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchrl_dceo.analysis.style import colormap, explain, grid_of_axes, new_figure, styled

__all__ = ["PositionValues", "draw_position_values", "position_values"]


class PositionValues(NamedTuple):
    """What :func:`position_values` returns.

    Attributes:
        positions (Tensor): the different places, int64 ``[P, 2]``, as (x, y).
        means (Tensor): the mean of each function there, ``[P, d]``.
        counts (Tensor): how many samples that is the mean of, int64 ``[P]``.
    """

    positions: Tensor
    means: Tensor
    counts: Tensor


def position_values(positions: Tensor, values: Tensor) -> PositionValues:
    """Averages functions of the state over all samples at the same place.

    Args:
        positions (Tensor): integers ``[N, 2]``.
        values (Tensor): d functions of each sample's state, ``[N, d]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.position_values import position_values
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
    picture: Tensor,
    pixels: Tensor,
    values: Tensor,
    path: str | Path,
    *,
    titles: Sequence[str],
    title: str | None = None,
    columns: int = 3,
    size: float = 7.0,
) -> Path:
    """Draws each function as coloured dots over a picture: blue where it is lowest, red where it is highest.

    The colours span the middle 98% of a function's values, so that one odd place does not pale the others, with white
    at its median.

    Args:
        picture (Tensor): RGB, uint8 ``[H, W, 3]``.
        pixels (Tensor): where each place is on the picture, (column, row), ``[P, 2]``.
        values (Tensor): ``[P, d]``.
        path (str or Path): the PNG to write.

    Keyword Args:
        titles (Sequence[str]): one a function.
        title (str, optional): over all of them.
        columns (int): panels a row. Default: 3.
        size (float): of a dot. Default: 7.

    Examples:
        >>> import tempfile, torch
        >>> from torchrl_dceo.analysis.position_values import draw_position_values
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
    height, width = picture.shape[:2]
    rows = -(-count // min(columns, count))
    # Atari's pixels are wider than tall.
    panel = 3.4 if width > height else 3.4 * 0.85
    figure = new_figure(3.4 * min(columns, count), panel * rows + 0.5, title)
    for i, axes in enumerate(grid_of_axes(figure, count, columns)):
        axes.imshow((picture.float() * 0.55).to(torch.uint8).numpy(), aspect="auto")
        one = values[:, i].double()
        low, middle, high = torch.quantile(one, torch.tensor([0.01, 0.5, 0.99]).double()).tolist()
        spread = max(high - middle, middle - low, 1e-12)
        # The extremes on top: dots of single pixels lie close.
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
