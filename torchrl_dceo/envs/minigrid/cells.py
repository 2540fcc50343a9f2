"""The cells of object environments, and their rendering."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from minigrid.core.world_object import Ball, Door, Goal, Key, Wall, WorldObj
from minigrid.minigrid_env import MiniGridEnv

from torchrl_dceo.envs.grid.grid_world import TILE_KINDS, tile_set

__all__ = [
    "KIND",
    "SYMBOLS",
    "BreakableWall",
    "Obstacle",
    "TileCanvas",
    "kind_of",
    "make_object",
]

KIND: dict[str, int] = {kind: index for index, kind in enumerate(TILE_KINDS)}


"""The integer of each tile kind, as in :attr:`MiniGridMapEnv.cells`."""


SYMBOLS: dict[str, str] = {
    "#": "wall",
    " ": "floor",
    ".": "floor",
    "S": "floor",
    "G": "goal",
    "K": "key",
    "D": "door_locked",
    "B": "breakable",
    "X": "wall",
}


"""The kind of cell of each character of an object map."""


_KEY_COLOUR = "yellow"  # MiniGrid's doors open with a key of their colour


_WALL = Wall()  # never changes, so one object is shared by all walls of all environments


class BreakableWall(Wall):
    """A tile of the blue wall; a toggle turns it into floor.

    Examples:
        >>> from torchrl_dceo.envs.minigrid.cells import BreakableWall
        >>> BreakableWall().color, BreakableWall().can_overlap()
        ('blue', False)
    """

    def __init__(self) -> None:
        super().__init__("blue")

    def toggle(self, env: MiniGridEnv, pos: tuple[int, int]) -> bool:
        """Breaks the tile."""
        env.grid.set(pos[0], pos[1], None)
        return True


class Obstacle(Ball):
    """A ball that moves up and down its column; ``step`` is -1 upwards and +1 downwards.

    Examples:
        >>> from torchrl_dceo.envs.minigrid.cells import Obstacle
        >>> Obstacle(step=-1).can_pickup()
        False
    """

    def __init__(self, step: int) -> None:
        super().__init__("blue" if step < 0 else "purple")  # MiniGrid's views distinguish them too
        self.step = step

    def can_pickup(self) -> bool:
        """An obstacle cannot be carried away."""
        return False


# Obstacles differ only in their direction, so two objects are enough for all cells.
_OBSTACLES = (Obstacle(step=-1), Obstacle(step=1))


_MAKERS: dict[int, Callable[[], WorldObj | None]] = {
    KIND["floor"]: lambda: None,
    KIND["wall"]: lambda: _WALL,
    KIND["goal"]: Goal,
    KIND["key"]: lambda: Key(_KEY_COLOUR),
    KIND["door_locked"]: lambda: Door(_KEY_COLOUR, is_locked=True),
    KIND["door_closed"]: lambda: Door(_KEY_COLOUR),
    KIND["door_open"]: lambda: Door(_KEY_COLOUR, is_open=True),
    KIND["breakable"]: BreakableWall,
    KIND["obstacle"]: lambda: _OBSTACLES[0],
    KIND["obstacle_down"]: lambda: _OBSTACLES[1],
}


def make_object(kind: int) -> WorldObj | None:
    """Returns the MiniGrid object of a tile kind, ``None`` for floor; :func:`kind_of` is its inverse.

    Examples:
        >>> from torchrl_dceo.envs.minigrid.cells import KIND, kind_of, make_object
        >>> door = make_object(KIND["door_locked"])
        >>> door.is_locked, kind_of(door) == KIND["door_locked"]
        (True, True)
    """
    if kind not in _MAKERS:
        raise ValueError(f"no MiniGrid object is drawn with the tile {TILE_KINDS[kind]!r}")
    return _MAKERS[kind]()


def kind_of(thing: WorldObj | None) -> int:
    """Returns the tile kind that a cell's MiniGrid object is drawn with.

    Examples:
        >>> from torchrl_dceo.envs.minigrid.cells import kind_of
        >>> from torchrl_dceo.envs.grid.grid_world import TILE_KINDS
        >>> TILE_KINDS[kind_of(None)]
        'floor'
    """
    if thing is None:
        return KIND["floor"]
    if isinstance(thing, Door):
        if thing.is_open:
            return KIND["door_open"]
        return KIND["door_locked" if thing.is_locked else "door_closed"]
    if isinstance(thing, Obstacle):
        return KIND["obstacle" if thing.step < 0 else "obstacle_down"]
    return KIND["breakable" if isinstance(thing, BreakableWall) else thing.type]


class TileCanvas:
    """The image of a grid of tiles; changing a cell copies one cached tile.

    Args:
        height (int): rows of cells.
        width (int): columns of cells.
        tile_size (int): side of a cell in pixels. Default: 1.
        hidden (tuple of str): tile kinds that are drawn as floor.

    Attributes:
        pixels (np.ndarray): ``uint8`` of shape ``[3, height * tile_size, width * tile_size]``; written
            in place, so copy it to keep it.

    Examples:
        >>> import numpy as np
        >>> from torchrl_dceo.envs.minigrid.cells import TileCanvas
        >>> from torchrl_dceo.envs.grid.grid_world import TILE_KINDS
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
