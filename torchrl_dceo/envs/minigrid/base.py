"""A MiniGrid environment with cardinal moves, drawn with cached tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from minigrid.core.actions import Actions
from minigrid.core.constants import TILE_PIXELS
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import WorldObj
from minigrid.minigrid_env import MiniGridEnv

from torchrl_dceo.envs.env_state import pack_generator, unpack_generator
from torchrl_dceo.envs.grid.layouts import ACTIONS, MOVES
from torchrl_dceo.envs.minigrid.cells import KIND, SYMBOLS, TileCanvas, kind_of, make_object

__all__ = ["OBJECT_ACTIONS", "MiniGridMapEnv", "step_limit"]

OBJECT_ACTIONS: tuple[str, ...] = (*ACTIONS, "pickup", "toggle")
"""The actions of an object environment, in order: those of the grid environments, and two more."""

_VECTORS = tuple((column, row) for row, column in MOVES)  # MiniGrid's x comes first
_DIRECTIONS = (3, 0, 1, 2)  # MiniGrid's numbers of up, right, down and left
_PICKUP, _TOGGLE = OBJECT_ACTIONS.index("pickup"), OBJECT_ACTIONS.index("toggle")
_NO_OUTCOME = (0.0, False)


def step_limit(plan_length: int) -> int:
    """Returns the step limit of an object environment: six times its shortest plan, at least 200 steps.

    The paper's 100 steps are about three times the shortest path of its navigation environments. Tasks
    with objects are harder, so these environments get twice that.

    Examples:
        >>> from torchrl_dceo.envs.minigrid.base import step_limit
        >>> step_limit(16), step_limit(50)
        (200, 300)
    """
    return max(200, 6 * plan_length)


def _check_rows(rows: Sequence[str]) -> None:
    if len(rows) < 3 or len(rows[0]) < 3:
        raise ValueError(
            f"MiniGrid needs a map of at least 3 x 3 cells, got {len(rows)} x {len(rows[0])}"
        )
    for y, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"the map is ragged: row {y} has {len(row)} cells, row 0 has {len(rows[0])}"
            )
        for symbol in row:
            if symbol not in SYMBOLS:
                raise ValueError(
                    f"unknown character {symbol!r} in row {y} of the map: the characters are "
                    f"{' '.join(SYMBOLS)!r}"
                )


class MiniGridMapEnv(MiniGridEnv):
    """A MiniGrid environment over an ASCII map, with cardinal moves and fast pixels.

    A move turns the agent and moves it one cell in that direction, unless the cell is blocked. With
    probability ``slip`` the action is overwritten by a uniformly random one. Reaching a goal or
    entering an open exit door gives +1 and terminates; every other step gives 0. After
    ``max_steps`` steps the episode is truncated (also when its last step terminated it).

    ``pickup`` and ``toggle`` act on **all four neighbours** of the agent, not only on the cell in
    front of it. So the agent's direction has no effect on the dynamics: the
    state is position x objects, and the image, which does not show the direction,
    is Markov. MiniGrid's own rendering still shows the direction.

    The cells contain MiniGrid's objects, and ``render()`` is MiniGrid's. Its wrappers work:
    those that compute ``image`` (``RGBImgObsWrapper``, ``FullyObsWrapper``, …) directly, the
    others with ``observation="minigrid"``. So does its ``ManualControl``: a member of MiniGrid's
    ``Actions`` keeps its meaning (turn left, turn right, forward, …), an integer is an index of ``actions``.

    The map's characters: ``#`` wall, space or ``.`` floor, ``S`` start (several: one is drawn at each
    reset), ``G`` goal, ``X`` closed hallway, ``K`` key, ``D`` locked door, ``B`` breakable wall.

    Args:
        rows (Sequence[str]): the map, one string per row.

    Keyword Args:
        mission (str): MiniGrid's mission text.
        actions (Sequence[str]): :data:`~torchrl_dceo.envs.grid.layouts.ACTIONS` or :data:`OBJECT_ACTIONS`.
        max_steps (int): step limit.
        slip (float): probability that the action is overwritten. Default: 0.15.
        coverage (bool): no goal and no reward; only the step limit ends an episode.
            Default: ``False``.
        goal_visible (bool): draws the goal in ``pixels`` (MiniGrid's own views always do).
            Default: ``False``.
        tile_size (int): side of a cell in ``pixels``. Default: 1.
        observation (str): ``"pixels"`` for ``{"pixels": uint8 [3, H * tile_size, W * tile_size],
            "state_id": int64}``, ``"minigrid"`` for MiniGrid's ``{"image", "direction", "mission"}``.
            Default: ``"pixels"``.
        render_tile_size (int): side of a cell in ``render()``. Default: 32.
        **kwargs: the other arguments of ``MiniGridEnv``: ``render_mode``, ``screen_size``, ``highlight``, …

    Attributes:
        num_states (int): ``state_id`` lies in ``[0, num_states)``. Here: one state per cell that is
            no wall, row by row.
        cells (np.ndarray): ``uint8`` of shape ``[H, W]``, the index in ``TILE_KINDS`` of each cell's
            content, without the agent.

    Examples:
        >>> from torchrl_dceo.envs.minigrid.base import MiniGridMapEnv
        >>> env = MiniGridMapEnv(["#####", "#S G#", "#####"], max_steps=10, slip=0.0)
        >>> observation, _ = env.reset(seed=0)
        >>> observation["pixels"].shape, int(observation["state_id"]), env.num_states
        ((3, 3, 5), 0, 3)
        >>> [env.step(1)[1:4] for _ in range(2)]
        [(0.0, False, False), (1.0, True, False)]
    """

    carrying: WorldObj | None  # type: ignore[assignment]

    def __init__(
        self,
        rows: Sequence[str],
        *,
        max_steps: int,
        mission: str = "reach the goal",
        actions: Sequence[str] = ACTIONS,
        slip: float = 0.15,
        coverage: bool = False,
        goal_visible: bool = False,
        tile_size: int = 1,
        observation: Literal["pixels", "minigrid"] = "pixels",
        render_tile_size: int = TILE_PIXELS,
        **kwargs: Any,
    ) -> None:
        if not 0.0 <= slip <= 1.0:
            raise ValueError(f"slip must lie in [0, 1], got {slip}")
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        if observation not in ("pixels", "minigrid"):
            raise ValueError(f"observation must be 'pixels' or 'minigrid', got {observation!r}")
        _check_rows(rows)
        kwargs = {"see_through_walls": True, "highlight": False, **kwargs}
        super().__init__(
            mission_space=MissionSpace(mission_func=lambda: mission),
            width=len(rows[0]),
            height=len(rows),
            max_steps=int(max_steps),
            tile_size=render_tile_size,
            **kwargs,
        )
        self.slip, self.coverage, self.goal_visible = float(slip), bool(coverage), goal_visible
        self.action_names = tuple(actions)
        self.action_space = gym.spaces.Discrete(len(actions))
        self._read_map(rows)
        self._canvas = TileCanvas(
            self.height,
            self.width,
            tile_size=tile_size,
            hidden=() if goal_visible else ("goal",),
        )
        self._pixels = observation == "pixels"
        if self._pixels:
            self.observation_space = gym.spaces.Dict(
                pixels=gym.spaces.Box(0, 255, self._canvas.pixels.shape, np.uint8),
                state_id=gym.spaces.Discrete(self.num_states),
            )

    def _read_map(self, rows: Sequence[str]) -> None:
        kinds = np.array([[KIND[SYMBOLS[symbol]] for symbol in row] for row in rows], np.uint8)
        if self.coverage:
            kinds[kinds == KIND["goal"]] = KIND["floor"]
        self._initial_cells = self.cells = kinds
        self.rows = tuple(rows)
        self.starts = tuple(
            (x, y) for y, row in enumerate(rows) for x, symbol in enumerate(row) if symbol == "S"
        )
        if not self.starts:
            raise ValueError("the map has no start: mark at least one cell with S")
        # A closed hallway (X) is a wall that keeps its number, as in every grid environment.
        free = np.array([[symbol != "#" for symbol in row] for row in rows])
        self.num_positions = int(free.sum())
        self.num_states = self.num_positions
        # Nested lists: indexing is several times faster than with an array.
        self._position_id = np.where(free, free.cumsum().reshape(free.shape) - 1, -1).tolist()
        self._state_offset = 0

    # What happens

    def _gen_grid(self, width: int, height: int) -> None:
        """Resets every object to its place on the map, and places the agent on a start."""
        self._put_cells(self._initial_cells)
        which = 0 if len(self.starts) == 1 else int(self.np_random.integers(len(self.starts)))
        self.agent_pos, self.agent_dir = self.starts[which], 0

    def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode."""
        gym.Env.reset(self, seed=seed)  # not MiniGrid's, which computes an unused view
        self.step_count, self.carrying = 0, None
        self._gen_grid(self.width, self.height)
        self._redraw()
        if self.render_mode == "human":
            self.render()
        return self.observe(), {}

    def step(  # type: ignore[override]
        self, action: Any
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Takes one of :attr:`action_names` by index, or a member of MiniGrid's ``Actions``."""
        if action.__class__ is Actions:
            index = self._from_minigrid(action)
        else:
            index = int(action)
            if not 0 <= index < len(self.action_names):
                raise ValueError(
                    f"action must lie in [0, {len(self.action_names)}), got {action}: the actions "
                    f"are {', '.join(self.action_names)}"
                )
        if self.slip:
            # Given u < slip, u / slip is uniform again: one draw serves both choices.
            u = self.np_random.random() / self.slip
            if u < 1.0:
                index = int(u * len(self.action_names))
        self.step_count += 1
        reward, terminated = self._act(index)
        if not terminated:
            reward, terminated = self._advance()
        truncated = self.step_count >= self.max_steps
        if self.render_mode == "human":
            self.render()
        return self.observe(), reward, terminated, truncated, {}

    def _from_minigrid(self, action: Actions) -> int:
        """Carries out turns; returns the index of the remaining action, or -1 if there is none."""
        if action in (Actions.left, Actions.right):
            self.agent_dir = (self.agent_dir + (1 if action is Actions.right else -1)) % 4
        elif action is Actions.forward:
            return _DIRECTIONS.index(self.agent_dir)
        elif action.name in self.action_names:
            return self.action_names.index(action.name)
        return -1

    def _act(self, index: int) -> tuple[float, bool]:
        """Carries out an action; returns the reward and whether it ends the episode."""
        if index == _PICKUP:
            self._pick_up()
        elif index == _TOGGLE:
            self._toggle()
        elif index >= 0:
            return self._move(index)
        return _NO_OUTCOME

    def _move(self, index: int) -> tuple[float, bool]:
        self.agent_dir = _DIRECTIONS[index]
        x, y = self.agent_pos
        dx, dy = _VECTORS[index]
        target = (x + dx, y + dy)
        if not (0 <= target[0] < self.width and 0 <= target[1] < self.height):
            return _NO_OUTCOME
        thing = self.grid.grid[target[1] * self.width + target[0]]
        if thing is not None and not thing.can_overlap():
            return self._bump(thing)
        self.agent_pos = target
        self._canvas.draw(x, y, self.cells[y, x])
        self._draw_agent()
        if thing is None or self.coverage:
            return _NO_OUTCOME
        return self._reward(), True  # only a goal and an open exit can be entered

    def _neighbours(self) -> list[tuple[int, int, WorldObj]]:
        """The objects in the four cells around the agent."""
        x, y = self.agent_pos
        around = [(x + dx, y + dy) for dx, dy in _VECTORS]
        cells = [(i, j) for i, j in around if 0 <= i < self.width and 0 <= j < self.height]
        things = [(i, j, self.grid.get(i, j)) for i, j in cells]
        return [(i, j, thing) for i, j, thing in things if thing is not None]

    def _pick_up(self) -> None:
        for x, y, thing in self._neighbours():
            if self.carrying is None and thing.can_pickup():
                self.carrying = thing
                self._set_kind(x, y, KIND["floor"])
        self._objects_changed()

    def _toggle(self) -> None:
        for x, y, thing in self._neighbours():
            if thing.toggle(self, (x, y)):
                self._set_kind(x, y, kind_of(self.grid.get(x, y)))
        self._objects_changed()

    def _objects_changed(self) -> None:
        self._state_offset = self._object_state() * self.num_positions
        self._draw_agent()

    def _reward(self) -> float:
        return 1.0

    # What an environment may add

    def _object_state(self) -> int:
        """The objects' part of the state, a non-negative integer."""
        return 0

    def _bump(self, thing: WorldObj) -> tuple[float, bool]:
        """The outcome of moving into something that cannot be entered."""
        return _NO_OUTCOME

    def _advance(self) -> tuple[float, bool]:
        """Changes that are not caused by the agent, after its action; returns their outcome."""
        return _NO_OUTCOME

    # What it looks like

    def _put_cells(self, cells: np.ndarray) -> None:
        self.cells = cells.copy()
        self.grid = Grid(self.width, self.height)
        self.grid.grid = [make_object(kind) for kind in cells.flatten().tolist()]

    def _set_kind(self, x: int, y: int, kind: int) -> None:
        self.grid.grid[y * self.width + x] = make_object(kind)
        self.cells[y, x] = kind
        self._canvas.draw(x, y, kind)

    def _draw_agent(self) -> None:
        kind = KIND["agent" if self.carrying is None else "agent_with_key"]
        x, y = self.agent_pos
        self._canvas.draw(x, y, kind)

    def _redraw(self) -> None:
        self._canvas.fill(self.cells)
        self._objects_changed()

    @property
    def state_id(self) -> int:
        """The current state: ``position + num_positions * (state of the objects)``."""
        x, y = self.agent_pos
        return self._position_id[y][x] + self._state_offset

    def observe(self) -> dict[str, Any]:
        """Returns the observation of the current state (new arrays at each call)."""
        if not self._pixels:
            return self.gen_obs()
        return {"pixels": self._canvas.pixels.copy(), "state_id": np.int64(self.state_id)}

    # Save and restore

    def get_state(self) -> dict[str, Any]:
        """Returns the complete state, generator included: integers and arrays.

        Examples:
            >>> from torchrl_dceo.envs.minigrid.base import MiniGridMapEnv
            >>> env = MiniGridMapEnv(["#####", "#S G#", "#####"], max_steps=10, slip=0.0)
            >>> _ = env.reset(seed=0)
            >>> saved = env.get_state()
            >>> _ = env.step(1)
            >>> env.set_state(saved)
            >>> env.agent_pos, sorted(saved)
            ((1, 1), ['agent_dir', 'agent_pos', 'carrying', 'cells', 'rng', 'step_count'])
        """
        return {
            "agent_pos": np.array(self.agent_pos, dtype=np.int64),
            "agent_dir": int(self.agent_dir),
            "carrying": -1 if self.carrying is None else kind_of(self.carrying),
            "cells": self.cells.copy(),
            "step_count": int(self.step_count),
            "rng": pack_generator(self.np_random),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores a state of :meth:`get_state`; the environment continues exactly."""
        cells = np.asarray(state["cells"], dtype=np.uint8)
        if cells.shape != self.cells.shape:
            raise ValueError(
                f"the saved environment has {cells.shape[0]} x {cells.shape[1]} cells, but this one has "
                f"{self.height} x {self.width}: build it with the same room_size"
            )
        x, y = (int(i) for i in state["agent_pos"])
        self.agent_pos, self.agent_dir = (x, y), int(state["agent_dir"])
        self.carrying = None if state["carrying"] < 0 else make_object(int(state["carrying"]))
        self.step_count = int(state["step_count"])
        self.np_random = unpack_generator(state["rng"])
        self._put_cells(cells)
        self._redraw()
