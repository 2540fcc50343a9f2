"""MiniWorld's FourRooms."""

from __future__ import annotations

from typing import Any

from torchrl_dceo.envs.miniworld.base import MiniWorld3D

from miniworld.envs.fourrooms import FourRooms  # isort: skip  (after base, which makes it importable)

__all__ = ["MiniWorldFourRooms"]

WALLS = ("brick_wall", "wood", "marble", "cinder_blocks")


class MiniWorldFourRooms(MiniWorld3D, FourRooms):
    """The package's ``MiniWorld-FourRooms-v0``: four rooms in a ring, agent and red box anywhere.

    Rooms, doors, places, moves and reward are the package's: 1 − 0.2 · steps / ``max_steps`` at the box, 0 elsewhere.
    The four rooms look alike: what a view tells of the room is where its doors are, if one is in sight.

    Args:
        max_steps (int): Default: 250, as in the package.
        distinct_walls (bool): gives each room walls of its own, so that a view tells the room. Default: ``False``,
            as in the package.
        **kwargs: those of :class:`~torchrl_dceo.envs.miniworld.base.MiniWorld3D`.
    """

    def __init__(
        self, *, max_steps: int = 250, distinct_walls: bool = False, **kwargs: Any
    ) -> None:
        self.distinct_walls = distinct_walls
        super().__init__(max_steps=max_steps, **kwargs)

    def add_room(self, **kwargs: Any) -> Any:
        """Adds a room, with the next of the walls if they are to differ."""
        if self.distinct_walls:
            kwargs["wall_tex"] = WALLS[len(self._made) % len(WALLS)]
        return super().add_room(**kwargs)
