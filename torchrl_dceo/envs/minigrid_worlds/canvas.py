"""A picture of a grid that is kept up to date cell by cell."""

from __future__ import annotations

import numpy as np

from torchrl_dceo.envs.tiles import TILE_KINDS, tile_set

__all__ = ["TileCanvas"]


class TileCanvas:
    """The pixels of a grid of tiles; changing a cell copies one cached tile.

    Args:
        height (int): rows of cells.
        width (int): columns of cells.
        tile_size (int): side of a cell in pixels. Default: 1.
        hidden (tuple of str): tile kinds that are drawn as floor.

    Attributes:
        pixels (np.ndarray): ``uint8`` of shape ``[3, height * tile_size, width * tile_size]``; written
            in place, so copy it before you keep it.

    Examples:
        >>> import numpy as np
        >>> from torchrl_dceo.envs.minigrid_worlds.canvas import TileCanvas
        >>> from torchrl_dceo.envs.tiles import TILE_KINDS
        >>> canvas = TileCanvas(1, 2, tile_size=2)
        >>> canvas.fill(np.zeros((1, 2), dtype=np.uint8))
        >>> canvas.draw(1, 0, TILE_KINDS.index("agent"))
        >>> canvas.pixels[0].tolist()
        [[0, 0, 255, 255], [0, 0, 255, 255]]
    """

    def __init__(
        self, height: int, width: int, *, tile_size: int = 1, hidden: tuple[str, ...] = ()
    ) -> None:
        self._tiles = tile_set(tile_size).numpy().copy()
        for kind in hidden:
            self._tiles[TILE_KINDS.index(kind)] = self._tiles[TILE_KINDS.index("floor")]
        self._size = tile_size
        self.pixels = np.zeros((3, height * tile_size, width * tile_size), dtype=np.uint8)

    def draw(self, x: int, y: int, kind: int) -> None:
        """Draws one cell, given by column and row."""
        size = self._size
        self.pixels[:, y * size : (y + 1) * size, x * size : (x + 1) * size] = self._tiles[kind]

    def fill(self, cells: np.ndarray) -> None:
        """Draws all cells, given as tile kinds of shape ``[height, width]``."""
        tiles = self._tiles[cells].transpose(2, 0, 3, 1, 4)  # channel, row, y, column, x
        self.pixels[:] = tiles.reshape(self.pixels.shape)
