"""The one palette that every grid world is drawn with.

A tile is a square of ``size`` x ``size`` pixels, ``uint8``, channels first. At ``size=1`` (what the
agents see) it is one pixel of the kind's colour; from ``size=8`` on, objects get a simple shape so
that people can read the picture. Tiles are cached: drawing a world is a gather of tiles, never a
rendering.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

__all__ = ["TILE_KINDS", "draw_tiles", "tile", "tile_set"]

# Index = the integer that a world's cell grid holds. All colours differ, also when shown as grey.
_COLOURS: dict[str, tuple[int, int, int]] = {
    "floor": (0, 0, 0),
    "wall": (100, 100, 100),
    "agent": (255, 0, 0),
    "goal": (0, 255, 0),
    "key": (255, 255, 0),
    "agent_with_key": (255, 160, 60),
    "door_locked": (160, 90, 200),
    "door_closed": (120, 60, 30),
    "door_open": (60, 30, 15),
    "obstacle": (0, 120, 255),
    "breakable": (40, 40, 200),
    "obstacle_down": (0, 230, 255),
}
TILE_KINDS: tuple[str, ...] = tuple(_COLOURS)
_SHAPED_FROM = 8


def _shape_mask(kind: str, size: int) -> Tensor:
    """Which pixels of a large tile carry the kind's colour; the rest is floor."""
    axis = (torch.arange(size) + 0.5) / size
    y, x = axis[:, None], axis[None, :]
    if kind in ("agent", "obstacle", "obstacle_down"):
        return (x - 0.5) ** 2 + (y - 0.5) ** 2 < 0.38**2
    if kind == "key":
        bow = (x - 0.5) ** 2 + (y - 0.3) ** 2 < 0.18**2
        blade = ((x - 0.5).abs() < 0.07) & (y > 0.3) & (y < 0.85)
        bit = (x > 0.5) & (x < 0.7) & (y > 0.7) & (y < 0.82)
        return bow | blade | bit
    if kind == "door_open":
        return (x < 0.2).expand(size, size)
    if kind in ("door_locked", "door_closed"):
        return (x > 0.05) & (x < 0.95) & (y > 0.05) & (y < 0.95)
    return torch.ones(size, size, dtype=torch.bool)


@cache
def tile(kind: str, size: int = 1) -> Tensor:
    """Returns the tile of one kind, ``uint8`` of shape ``[3, size, size]``.

    The tensor is shared: do not write into it.

    Examples:
        >>> from torchrl_dceo.envs.grid.tiles import tile
        >>> tile("agent").flatten().tolist()
        [255, 0, 0]
    """
    if kind not in _COLOURS:
        raise KeyError(f"unknown tile kind {kind!r}; the kinds are {', '.join(TILE_KINDS)}")
    if size < 1:
        raise ValueError(f"tile_size must be at least 1, got {size}")
    colour = torch.tensor(_COLOURS[kind], dtype=torch.uint8)[:, None, None]
    if size < _SHAPED_FROM:
        return colour.expand(3, size, size).contiguous()
    if kind == "agent_with_key":
        return torch.where(_shape_mask("key", size), tile("key", size), tile("agent", size))
    floor = torch.tensor(_COLOURS["floor"], dtype=torch.uint8)[:, None, None]
    picture = torch.where(_shape_mask(kind, size), colour, floor)
    if kind == "door_locked":  # a keyhole
        axis = (torch.arange(size) + 0.5) / size
        hole = (axis[None, :] - 0.5) ** 2 + (axis[:, None] - 0.5) ** 2 < 0.12**2
        picture = torch.where(hole, tile("key", 1).expand(3, size, size), picture)
    return picture.contiguous()


@cache
def tile_set(size: int = 1) -> Tensor:
    """Returns all tiles in the order of :data:`TILE_KINDS`, shape ``[kinds, 3, size, size]``.

    The tensor is shared: do not write into it.

    Examples:
        >>> from torchrl_dceo.envs.grid.tiles import TILE_KINDS, tile_set
        >>> tile_set(4).shape == (len(TILE_KINDS), 3, 4, 4)
        True
    """
    return torch.stack([tile(kind, size) for kind in TILE_KINDS])


def draw_tiles(kinds: Tensor, size: int = 1) -> Tensor:
    """Draws grids of tiles.

    Args:
        kinds (Tensor): indices into :data:`TILE_KINDS`, int64 of shape ``[*, H, W]``.
        size (int): pixels along the side of a tile.

    Returns:
        the pictures, ``uint8`` of shape ``[*, 3, H * size, W * size]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs.grid.tiles import draw_tiles
        >>> draw_tiles(torch.tensor([[0, 1]]))[0].tolist()  # the red channel of a floor and a wall
        [[0, 100]]
    """
    height, width = kinds.shape[-2:]
    flat = kinds.reshape(-1, height, width)
    tiles = tile_set(size).to(kinds.device)[flat]  # [N, H, W, 3, size, size]
    picture = tiles.permute(0, 3, 1, 4, 2, 5)
    return picture.reshape(*kinds.shape[:-2], 3, height * size, width * size)
