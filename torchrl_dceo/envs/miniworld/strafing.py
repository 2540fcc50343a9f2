"""The paper's 3D environments: four strafing moves, a fixed heading, and different walls in each room."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, NamedTuple

import numpy as np

from torchrl_dceo.envs.miniworld.base import MiniWorld3D

from miniworld.entity import Box  # isort: skip  (after base, which makes it importable)
from miniworld.params import DEFAULT_PARAMS  # isort: skip

__all__ = ["Door", "MiniWorldFourRoomsStrafe", "MyWayHomeSparseStrafe", "RectRoom", "StrafingEnv"]

HEADING = 0.0  # always towards larger x


class RectRoom(NamedTuple):
    """A room, in metres, and the texture of its walls."""

    min_x: float
    max_x: float
    min_z: float
    max_z: float
    wall: str


class Door(NamedTuple):
    """An opening between two rooms: the axis of its width, and its interval on that axis."""

    one: str
    other: str
    axis: str
    low: float
    high: float


class StrafingEnv(MiniWorld3D):
    """An environment whose agent has a fixed heading and moves left, right, forward or back.

    Since the heading never changes, the image is a function of the position, and distinct walls identify the
    rooms. The reward is +1 at the red box, which ends the episode, and 0 elsewhere.

    A subclass declares rooms, doors, the box and the length of a step, and places the agent.

    Args:
        starts (str): ``"authors"``, the start of the authors' agent, or ``"anywhere"`` on the floor, to visit
            all of it. Default: ``"authors"``.
        **kwargs: those of :class:`~torchrl_dceo.envs.miniworld.base.MiniWorld3D`.
    """

    fixed_heading = HEADING
    action_names = ("move_left", "move_right", "move_forward", "move_back")
    step_size: float
    plan: dict[str, RectRoom]
    doors: tuple[Door, ...]
    wall_height: float
    door_height: float
    goal: tuple[float, float]

    def __init__(
        self, *, starts: Literal["authors", "anywhere"] = "authors", **kwargs: Any
    ) -> None:
        if starts not in ("authors", "anywhere"):
            raise ValueError(f"starts must be 'authors' or 'anywhere', got {starts!r}")
        self.starts = starts
        # MiniWorld ends an episode within 1.1 steps of the box: here of steps of this length.
        self.params = DEFAULT_PARAMS.no_random()
        self.params.set("forward_step", self.step_size)
        super().__init__(**kwargs)

    def _gen_world(self) -> None:
        rooms = {
            name: self.add_rect_room(
                min_x=room.min_x,
                max_x=room.max_x,
                min_z=room.min_z,
                max_z=room.max_z,
                wall_tex=room.wall,
                wall_height=self.wall_height,
            )
            for name, room in self.plan.items()
        }
        for one, other, axis, low, high in self.doors:
            span = {f"min_{axis}": low, f"max_{axis}": high}
            self.connect_rooms(rooms[one], rooms[other], **span, max_y=self.door_height)
        x, z = self.goal
        self.box = self.place_entity(Box(color="red"), pos=np.array([x, 0.0, z]), dir=0.0)
        if self.starts == "anywhere":
            self.place_agent(dir=HEADING)
        else:
            self._place_start(rooms)

    @abstractmethod
    def _place_start(self, rooms: dict[str, Any]) -> None:
        """Places the agent for a new episode."""

    def _act(self, index: int) -> None:
        step = self.step_size
        forward, right = ((0.0, -step), (0.0, step), (step, 0.0), (-step, 0.0))[index]
        self.move_agent(forward, right)

    def _reward(self) -> float:
        return 1.0


class MiniWorldFourRoomsStrafe(StrafingEnv):
    """The authors' Four Rooms: a ring of four rooms, a fixed start, and a fixed goal in the diagonally opposite room.

    From above, with x to the right and z down::

        3 ─ 2        start in 3
        │   │
        0 ─ 1        goal in 1, in the corner next to the centre

    Args:
        start_seed (int): the start is drawn from [-6, -2]² in room 3 when the environment is built; environments with
            the same value have the same start, in every episode. Default: 0.
        max_steps (int): Default: 1000, the authors'.
        **kwargs: those of :class:`~torchrl_dceo.envs.miniworld.base.MiniWorld3D`.
    """

    step_size = 0.15
    # The textures are the authors', all available in MiniWorld.
    plan = {
        "0": RectRoom(-7, -1, 1, 7, "cardboard"),
        "1": RectRoom(1, 7, 1, 7, "marble"),
        "2": RectRoom(1, 7, -7, -1, "metal_grill"),
        "3": RectRoom(-7, -1, -7, -1, "stucco"),
    }
    doors = (
        Door("0", "1", "z", 3, 5),
        Door("1", "2", "x", 3, 5),
        Door("2", "3", "z", -5, -3),
        Door("3", "0", "x", -5, -3),
    )
    wall_height, door_height = 2.74, 2.2  # MiniWorld's
    goal = (1.5, 1.5)

    def __init__(self, *, start_seed: int = 0, max_steps: int = 1000, **kwargs: Any) -> None:
        x, z = np.random.default_rng(start_seed).uniform(-6.0, -2.0, 2)
        self.start = (float(x), float(z))
        super().__init__(max_steps=max_steps, **kwargs)

    def _place_start(self, rooms: dict[str, Any]) -> None:
        x, z = self.start
        self.place_agent(pos=np.array([x, 0.0, z]), dir=HEADING)


class MyWayHomeSparseStrafe(StrafingEnv):
    """The authors' My Way Home, sparse: ten rooms, a start anywhere in the leftmost room, and a goal on the far right.

    From above, with x to the right and z down::

                3 ─ 2 ─ right
                │   │     │
        start ─ 0 ─ 1   before_goal
                │         │
              bottom     goal
                │
            very_sparse

    The path is from the start through 0, 1 (or 3), 2 and ``right``; ``bottom`` and ``very_sparse`` are a dead end.

    Args:
        max_steps (int): Default: 2100, the authors'.
        **kwargs: those of :class:`~torchrl_dceo.envs.miniworld.base.MiniWorld3D`.
    """

    step_size = 0.27
    # Other textures than the authors', who use those of Doom, which MiniWorld does not have.
    plan = {
        "0": RectRoom(-5, -1, 1, 5, "cardboard"),
        "1": RectRoom(1, 5, 1, 5, "marble"),
        "2": RectRoom(1, 5, -5, -1, "metal_grill"),
        "3": RectRoom(-5, -1, -5, -1, "stucco"),
        "bottom": RectRoom(-5, -1, 7, 11, "rock"),
        "very_sparse": RectRoom(-4, -1, 13, 15, "cinder_blocks"),
        "start": RectRoom(-11, -7, 1, 5, "brick_wall"),
        "right": RectRoom(7, 11, -5, -1, "wood"),
        "before_goal": RectRoom(7, 11, 1, 5, "slime"),
        "goal": RectRoom(8, 10, 5, 7, "drywall"),
    }
    doors = (
        Door("0", "1", "z", 2, 4),
        Door("1", "2", "x", 2, 4),
        Door("2", "3", "z", -4, -2),
        Door("3", "0", "x", -4, -2),
        Door("bottom", "0", "x", -4, -2),
        Door("bottom", "very_sparse", "x", -4, -2),
        Door("start", "0", "z", 2, 4),
        Door("2", "right", "z", -4, -2),
        Door("right", "before_goal", "x", 8, 10),
        Door("before_goal", "goal", "x", 8, 10),
    )
    wall_height = door_height = 3.5
    goal = (9.0, 5.0)

    def __init__(self, *, max_steps: int = 2100, **kwargs: Any) -> None:
        super().__init__(max_steps=max_steps, **kwargs)

    def _place_start(self, rooms: dict[str, Any]) -> None:
        self.place_agent(room=rooms["start"], dir=HEADING)
