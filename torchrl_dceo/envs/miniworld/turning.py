"""3D environments in which the agent turns: MiniWorld's Four Rooms, and a larger environment."""

from __future__ import annotations

from typing import Any

from torchrl_dceo.envs.miniworld.base import MiniWorld3D

from miniworld.envs.fourrooms import FourRooms  # isort: skip  (after base, which makes it importable)
from typing import NamedTuple

import numpy as np

from miniworld.entity import Box  # isort: skip  (after base, which makes it importable)

__all__ = [
    "HALLWAYS",
    "ROOMS",
    "MiniWorldFourRooms",
    "MyWayHomeSparse",
]

WALLS = ("brick_wall", "wood", "marble", "cinder_blocks")


class MiniWorldFourRooms(MiniWorld3D, FourRooms):
    """MiniWorld's ``MiniWorld-FourRooms-v0``: four rooms in a ring, agent and red box anywhere.

    Rooms, doors, positions, moves and reward are MiniWorld's: 1 − 0.2 · steps / ``max_steps`` at the box, 0 elsewhere.
    The four rooms have the same textures: only visible doors identify the room.

    Args:
        max_steps (int): Default: 250, as in MiniWorld.
        distinct_walls (bool): a different wall texture in each room, which identifies it. Default: ``False``,
            as in MiniWorld.
        **kwargs: those of :class:`~torchrl_dceo.envs.miniworld.base.MiniWorld3D`.
    """

    def __init__(
        self, *, max_steps: int = 250, distinct_walls: bool = False, **kwargs: Any
    ) -> None:
        self.distinct_walls = distinct_walls
        super().__init__(max_steps=max_steps, **kwargs)

    def add_room(self, **kwargs: Any) -> Any:
        """Adds a room, with the next wall texture if ``distinct_walls``."""
        if self.distinct_walls:
            kwargs["wall_tex"] = WALLS[len(self._made) % len(WALLS)]
        return super().add_room(**kwargs)


PITCH, HALF_ROOM, HALF_DOOR = 5.0, 1.75, 0.75


class RoomPlan(NamedTuple):
    """A room: its column and row in the plan, and its textures."""

    column: int
    row: int
    wall: str
    floor: str


ROOMS = {
    "A": RoomPlan(0, 2, "brick_wall", "wood_planks"),
    "B": RoomPlan(1, 2, "cinder_blocks", "floor_tiles_bw"),
    "C": RoomPlan(2, 2, "marble", "asphalt"),
    "D": RoomPlan(3, 2, "wood", "concrete_tiles"),
    "E": RoomPlan(0, 1, "rock", "grass"),
    "F": RoomPlan(1, 1, "stucco", "wood_planks"),
    "G": RoomPlan(2, 1, "drywall", "floor_tiles_bw"),
    "H": RoomPlan(3, 1, "metal_grill", "concrete"),
    "I": RoomPlan(0, 0, "concrete", "asphalt"),
    "J": RoomPlan(1, 0, "wood_planks", "grass"),
    "K": RoomPlan(2, 0, "cardboard", "concrete_tiles"),
    "L": RoomPlan(3, 0, "slime", "concrete"),
}


HALLWAYS = ("AB", "BC", "CG", "DH", "EI", "FG", "FJ", "GH", "IJ", "JK", "KL")


START, GOAL = "I", "A"


class MyWayHomeSparse(MiniWorld3D):
    """Twelve rooms with different walls, connected by hallways in a tree; one start, one distant goal.

    After ViZDoom's My Way Home (Kempka et al. 2016), in its sparse form (Pathak et al. 2017): the agent
    always starts in the same room, and the only reward is +1 at the goal. The plan is different::

        A ─ B ─ C   D
                │   │
        E   F ─ G ─ H
        │   │
        I ─ J ─ K ─ L

    The start I is close to the goal A, but the path is through J, F, G, C and B: 30 metres, about 200
    steps forward and 30 turns. E, D and L are dead ends.

    Args:
        max_steps (int): Default: 600, three times the shortest path (in ViZDoom: 525 decisions).
        **kwargs: those of :class:`~torchrl_dceo.envs.miniworld.base.MiniWorld3D`.
    """

    def __init__(self, *, max_steps: int = 600, **kwargs: Any) -> None:
        super().__init__(max_steps=max_steps, **kwargs)

    def _gen_world(self) -> None:
        rooms = {}
        for name, plan in ROOMS.items():
            x, z = self._centre(name)
            rooms[name] = self.add_rect_room(
                min_x=x - HALF_ROOM,
                max_x=x + HALF_ROOM,
                min_z=z - HALF_ROOM,
                max_z=z + HALF_ROOM,
                wall_tex=plan.wall,
                floor_tex=plan.floor,
            )
        for one, other in map(tuple, HALLWAYS):
            x, z = self._centre(one)
            if ROOMS[one].row == ROOMS[other].row:
                span = {"min_z": z - HALF_DOOR, "max_z": z + HALF_DOOR}
            else:
                span = {"min_x": x - HALF_DOOR, "max_x": x + HALF_DOOR}
            self.connect_rooms(rooms[one], rooms[other], **span, max_y=2.2)
        x, z = self._centre(GOAL)
        self.box = self.place_entity(Box(color="green"), pos=np.array([x - 0.9, 0, z]), dir=0.0)
        x, z = self._centre(START)
        self.place_agent(pos=np.array([x, 0, z]), dir=0.0)

    @staticmethod
    def _centre(name: str) -> tuple[float, float]:
        # z grows downwards in the plan.
        return ROOMS[name].column * PITCH, -ROOMS[name].row * PITCH

    def _reward(self) -> float:
        return 1.0
