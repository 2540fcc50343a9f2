"""MiniWorld's FourRooms."""

from __future__ import annotations

from typing import Any

from torchrl_dceo.envs.miniworld_worlds.base import MiniWorld3D

from miniworld.envs.fourrooms import FourRooms  # isort: skip  (after base, which makes it importable)

__all__ = ["MiniWorldFourRooms"]


class MiniWorldFourRooms(MiniWorld3D, FourRooms):
    """The package's ``MiniWorld-FourRooms-v0``: four rooms in a ring, agent and red box anywhere.

    Rooms, doors, places, moves and reward are the package's: 1 − 0.2 · steps / ``max_steps`` at the box, 0 elsewhere.
    The four rooms look alike, so a view tells the place up to a quarter turn of the whole world.

    Args:
        max_steps (int): Default: 250, as in the package.
        **kwargs: those of :class:`~torchrl_dceo.envs.miniworld_worlds.base.MiniWorld3D`.
    """

    def __init__(self, *, max_steps: int = 250, **kwargs: Any) -> None:
        super().__init__(max_steps=max_steps, **kwargs)
