"""First-person 3D environments on MiniWorld, registered with gymnasium as ``torchrl_dceo/<Name>-v0``.

Importing this package needs the extra ``miniworld`` and Mesa's libraries; an error names what is missing, see
:mod:`~torchrl_dceo.envs.miniworld_headless`.
"""

from __future__ import annotations

import gymnasium as gym

from torchrl_dceo.envs.miniworld_headless import import_miniworld

# Before any module of this package imports MiniWorld: pyglet must be configured for headless rendering.
import_miniworld()

from torchrl_dceo.envs.miniworld.base import FloorPlan, MiniWorld3D  # noqa: E402
from torchrl_dceo.envs.miniworld.strafing import (  # noqa: E402
    MiniWorldFourRoomsStrafe,
    MyWayHomeSparseStrafe,
    StrafingEnv,
)
from torchrl_dceo.envs.miniworld.turning import MiniWorldFourRooms, MyWayHomeSparse  # noqa: E402

__all__ = [
    "ENVIRONMENTS",
    "FloorPlan",
    "MiniWorld3D",
    "MiniWorldFourRooms",
    "MiniWorldFourRoomsStrafe",
    "MyWayHomeSparse",
    "MyWayHomeSparseStrafe",
    "StrafingEnv",
    "register_envs",
]

ENVIRONMENTS: dict[str, type[MiniWorld3D]] = {
    env.__name__: env
    for env in (
        MiniWorldFourRoomsStrafe,
        MyWayHomeSparseStrafe,
        MiniWorldFourRooms,
        MyWayHomeSparse,
    )
}
"""Every registered environment by its short name."""


def register_envs() -> None:
    """Registers every environment with gymnasium; called when this package is imported."""
    for name in ENVIRONMENTS:
        env_id = f"torchrl_dceo/{name}-v0"
        if env_id not in gym.registry:
            # gymnasium's checker takes several images at each reset; the tests run it.
            gym.register(env_id, entry_point=f"{__name__}:{name}", disable_env_checker=True)


register_envs()
