"""Navigation as MiniGrid environments, and rooms with moving obstacles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from minigrid.core.world_object import WorldObj

from torchrl_dceo.envs.grid.layouts import Layout, parse_layout
from torchrl_dceo.envs.grid.maps import four_rooms, grid_maze, maze, nine_rooms, rooms
from torchrl_dceo.envs.minigrid.base import MiniGridMapEnv, step_limit
from torchrl_dceo.envs.minigrid.cells import KIND, Obstacle

__all__ = [
    "FourRooms",
    "GridMaze",
    "Maze",
    "NavigationEnv",
    "NineRooms",
    "RoomsWithObstacles",
]


class NavigationEnv(MiniGridMapEnv):
    """Any map of :mod:`torchrl_dceo.envs.grid.layouts` as a MiniGrid environment with four moves.

    It has the same states, moves, rewards and pixels as ``GridWorldEnv`` over the same map.

    Args:
        layout (str, Path or Layout): the map.

    Keyword Args:
        max_steps (int): step limit. Default: 100.
        **kwargs: the other arguments of :class:`MiniGridMapEnv`.

    Examples:
        >>> from torchrl_dceo.envs.minigrid.rooms import NavigationEnv
        >>> env = NavigationEnv("S.#\\n#.#\\n#.G", slip=0.0)
        >>> _ = env.reset(seed=0)
        >>> [env.step(action)[1] for action in (1, 2, 2, 1)]
        [0.0, 0.0, 0.0, 1.0]
    """

    def __init__(self, layout: str | Path | Layout, *, max_steps: int = 100, **kwargs: Any) -> None:
        self.layout = parse_layout(layout)
        super().__init__(str(self.layout).split("\n"), max_steps=max_steps, **kwargs)


class NineRooms(NavigationEnv):
    """Nine Rooms, see :func:`~torchrl_dceo.envs.grid.maps.nine_rooms`.

    Keyword Args:
        room_size (int): cells along a room's side. Default: 5.
        **kwargs: the arguments of :class:`NavigationEnv` but its map.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import NineRooms
        >>> NineRooms().num_states, NineRooms(room_size=3).num_states
        (237, 93)
    """

    def __init__(self, *, room_size: int = 5, **kwargs: Any) -> None:
        super().__init__(nine_rooms(room_size), **kwargs)


class FourRooms(NavigationEnv):
    """Four Rooms, see :func:`~torchrl_dceo.envs.grid.maps.four_rooms`.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import FourRooms
        >>> FourRooms().num_states
        104
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(four_rooms(), **kwargs)


class Maze(NavigationEnv):
    """The Maze, see :func:`~torchrl_dceo.envs.grid.maps.maze`.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import Maze
        >>> len(Maze().layout.goals)
        2
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(maze(), **kwargs)


class GridMaze(NavigationEnv):
    """GridMaze, see :func:`~torchrl_dceo.envs.grid.maps.grid_maze`.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import GridMaze
        >>> GridMaze().reset(seed=0)[0]["pixels"].shape
        (3, 19, 19)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(grid_maze(), **kwargs)


_COLLISION = (-1.0, True)


_FLOOR = KIND["floor"]


_KINDS = {-1: KIND["obstacle"], 1: KIND["obstacle_down"]}


class RoomsWithObstacles(MiniGridMapEnv):
    """The paper's Rooms with obstacles: +1 at the goal, -1 for a collision; both end the episode.

    Three rooms in a row, the start in one corner and the goal in the opposite one. At each reset
    the obstacles appear in distinct columns between the two, in a random cell of the column, going
    up or down at random. After the agent's action each of them moves one cell and turns
    round at a wall. A collision occurs if the agent moves into an obstacle or an obstacle into the agent; agent
    and obstacle then stay where they are. An obstacle has one colour on its way up and
    another on its way down, so that one image determines its next move. In coverage mode obstacles
    only block the way, and turn round at the agent as at a wall.

    ``state_id`` is the agent's **position alone**, the cells that are no wall counted row by row:
    there are too many configurations of obstacles. The layout, the number of obstacles and the step
    limit are not from the paper, which shows only an image. In 5% of the episodes (with the defaults) obstacles
    block every path.

    Keyword Args:
        room_size (int): cells along a room's side, at least 4. Default: 5.
        num_obstacles (int, optional): Default: ``room_size - 1``.
        max_steps (int, optional): step limit. Default: :func:`step_limit` of the shortest path.
        goal_visible (bool): Default: ``True``.
        **kwargs: the other arguments of :class:`MiniGridMapEnv`.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import RoomsWithObstacles
        >>> env = RoomsWithObstacles()
        >>> env.reset(seed=0)[0]["pixels"].shape, env.num_states, env.plan_length, env.max_steps
        ((3, 7, 19), 77, 20, 200)
        >>> len(env.obstacles())
        4
    """

    def __init__(
        self,
        *,
        room_size: int = 5,
        num_obstacles: int | None = None,
        max_steps: int | None = None,
        goal_visible: bool = True,
        **kwargs: Any,
    ) -> None:
        if room_size < 4:
            # In a column of three an obstacle is in the middle, where the hallways are, at every other step.
            raise ValueError(
                f"room_size must be at least 4, got {room_size}: in smaller rooms an obstacle beside a hallway lets "
                "nobody through"
            )
        start, goal = (1, 1), (room_size, 3 * (room_size + 1) - 1)
        layout = parse_layout(rooms(1, 3, room_size, start=start, goal=goal))
        rows = str(layout).split("\n")
        self.room_size = room_size
        # The column next to the start stays free, so that no episode is lost at its first step.
        self._columns = [x for x in range(3, len(rows[0]) - 2) if x % (room_size + 1)]
        self.num_obstacles = room_size - 1 if num_obstacles is None else num_obstacles
        if not 0 <= self.num_obstacles <= len(self._columns):
            raise ValueError(
                f"num_obstacles must lie in [0, {len(self._columns)}], got {num_obstacles}"
            )
        self.plan_length = layout.distances(start)[goal]
        super().__init__(
            rows,
            max_steps=step_limit(self.plan_length) if max_steps is None else max_steps,
            goal_visible=goal_visible,
            **{"mission": "reach the goal, avoid the obstacles", **kwargs},
        )

    def _gen_grid(self, width: int, height: int) -> None:
        super()._gen_grid(width, height)
        columns = self.np_random.permutation(self._columns)[: self.num_obstacles]
        for x in columns.tolist():
            y = 1 + int(self.np_random.integers(self.room_size))
            step = -1 if self.np_random.random() < 0.5 else 1
            self._set_kind(x, y, _KINDS[step])
            self._obstacles.append((x, y, step))

    def _put_cells(self, cells: np.ndarray) -> None:
        super()._put_cells(cells)
        self._obstacles = [
            (x, y, step)
            for step, kind in _KINDS.items()
            for y, x in np.argwhere(cells == kind).tolist()
        ]

    def obstacles(self) -> list[tuple[int, int, int]]:
        """Returns ``(x, y, step)`` of each obstacle; step is -1 upwards, +1 downwards."""
        return list(self._obstacles)

    def _bump(self, thing: WorldObj) -> tuple[float, bool]:
        hit = isinstance(thing, Obstacle) and not self.coverage
        return _COLLISION if hit else super()._bump(thing)

    def _advance(self) -> tuple[float, bool]:
        outcome = (0.0, False)
        for i, (x, y, step) in enumerate(self._obstacles):
            if self._blocks(x, y + step):
                step = -step
            row = y if self._blocks(x, y + step) else y + step
            if (x, row) == self.agent_pos:
                outcome, row = _COLLISION, y
            if row != y:
                self._set_kind(x, y, _FLOOR)
            self._set_kind(x, row, _KINDS[step])
            self._obstacles[i] = (x, row, step)
        return outcome

    def _blocks(self, x: int, y: int) -> bool:
        """Whether an obstacle has to turn round there; there is one obstacle per column."""
        if (x, y) == self.agent_pos:
            return self.coverage
        return self.grid.grid[y * self.width + x] is not None
