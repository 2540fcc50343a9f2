"""What a cell can hold: the map's character, the tile it is drawn with and the MiniGrid object."""

from __future__ import annotations

from collections.abc import Callable

from minigrid.core.world_object import Ball, Door, Goal, Key, Wall, WorldObj
from minigrid.minigrid_env import MiniGridEnv

from torchrl_dceo.envs.tiles import TILE_KINDS

__all__ = ["KIND", "SYMBOLS", "BreakableWall", "Obstacle", "kind_of", "make_object"]

KIND: dict[str, int] = {kind: index for index, kind in enumerate(TILE_KINDS)}
"""The integer of each tile kind: what :attr:`MiniGridWorld.cells` holds."""

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
"""The characters of an object map and the kind of cell that each stands for."""

_KEY_COLOUR = "yellow"  # MiniGrid's doors open to a key of their own colour
_WALL = Wall()  # never changes, so one object serves every wall of every world


class BreakableWall(Wall):
    """A tile of the blue wall: a toggle turns it into floor.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_worlds.cells import BreakableWall
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
    """A ball that patrols its column; ``step`` is -1 on its way up and +1 on its way down.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_worlds.cells import Obstacle
        >>> Obstacle(step=-1).can_pickup()
        False
    """

    def __init__(self, step: int) -> None:
        super().__init__("blue" if step < 0 else "purple")  # MiniGrid's views tell them apart too
        self.step = step

    def can_pickup(self) -> bool:
        """An obstacle cannot be carried away."""
        return False


# The direction is all there is to an obstacle, so these two serve every place.
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
        >>> from torchrl_dceo.envs.minigrid_worlds.cells import KIND, kind_of, make_object
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
        >>> from torchrl_dceo.envs.minigrid_worlds.cells import kind_of
        >>> from torchrl_dceo.envs.tiles import TILE_KINDS
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
