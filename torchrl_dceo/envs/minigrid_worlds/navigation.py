"""The navigation worlds in MiniGrid: twins of the torch-native grid worlds, over the same maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchrl_dceo.envs.layouts import Layout, parse_layout
from torchrl_dceo.envs.maps import four_rooms, grid_maze, maze, nine_rooms
from torchrl_dceo.envs.minigrid_worlds.base import MiniGridWorld

__all__ = ["FourRooms", "GridMaze", "Maze", "NavigationWorld", "NineRooms"]


class NavigationWorld(MiniGridWorld):
    """Any map of :mod:`torchrl_dceo.envs.layouts` as a MiniGrid environment with four moves.

    It has the same states, moves, rewards and pixels as ``GridWorldEnv`` over the same map.

    Args:
        layout (str, Path or Layout): the map.

    Keyword Args:
        max_steps (int): step limit. Default: 100.
        **kwargs: the other arguments of :class:`MiniGridWorld`.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_worlds.navigation import NavigationWorld
        >>> env = NavigationWorld("S.#\\n#.#\\n#.G", slip=0.0)
        >>> _ = env.reset(seed=0)
        >>> [env.step(action)[1] for action in (1, 2, 2, 1)]
        [0.0, 0.0, 0.0, 1.0]
    """

    def __init__(self, layout: str | Path | Layout, *, max_steps: int = 100, **kwargs: Any) -> None:
        self.layout = parse_layout(layout)
        super().__init__(str(self.layout).split("\n"), max_steps=max_steps, **kwargs)


class NineRooms(NavigationWorld):
    """Nine Rooms, see :func:`~torchrl_dceo.envs.maps.nine_rooms`.

    Keyword Args:
        room_size (int): cells along a room's side. Default: 5.
        **kwargs: the arguments of :class:`NavigationWorld` but its map.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_worlds import NineRooms
        >>> NineRooms().num_states, NineRooms(room_size=3).num_states
        (237, 93)
    """

    def __init__(self, *, room_size: int = 5, **kwargs: Any) -> None:
        super().__init__(nine_rooms(room_size), **kwargs)


class FourRooms(NavigationWorld):
    """Four Rooms, see :func:`~torchrl_dceo.envs.maps.four_rooms`.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_worlds import FourRooms
        >>> FourRooms().num_states
        104
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(four_rooms(), **kwargs)


class Maze(NavigationWorld):
    """The Maze, see :func:`~torchrl_dceo.envs.maps.maze`.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_worlds import Maze
        >>> len(Maze().layout.goals)
        2
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(maze(), **kwargs)


class GridMaze(NavigationWorld):
    """GridMaze, see :func:`~torchrl_dceo.envs.maps.grid_maze`.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_worlds import GridMaze
        >>> GridMaze().reset(seed=0)[0]["pixels"].shape
        (3, 19, 19)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(grid_maze(), **kwargs)
