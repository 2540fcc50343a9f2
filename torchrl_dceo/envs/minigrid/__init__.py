"""The MiniGrid environments, registered with gymnasium as ``torchrl_dceo/<Name>-v0``."""

from __future__ import annotations

import gymnasium as gym

from torchrl_dceo.envs.minigrid.base import OBJECT_ACTIONS, MiniGridMapEnv
from torchrl_dceo.envs.minigrid.key_and_door import EscapeRoom, KeyDoorEnv, ObstructedKey
from torchrl_dceo.envs.minigrid.rooms import (
    FourRooms,
    GridMaze,
    Maze,
    NavigationEnv,
    NineRooms,
    RoomsWithObstacles,
)

__all__ = [
    "ENVIRONMENTS",
    "OBJECT_ACTIONS",
    "EscapeRoom",
    "FourRooms",
    "GridMaze",
    "KeyDoorEnv",
    "Maze",
    "MiniGridMapEnv",
    "NavigationEnv",
    "NineRooms",
    "ObstructedKey",
    "RoomsWithObstacles",
    "env_id",
    "register_envs",
]

ENVIRONMENTS: dict[str, type[MiniGridMapEnv]] = {
    env.__name__: env
    for env in (
        NineRooms,
        FourRooms,
        Maze,
        GridMaze,
        EscapeRoom,
        RoomsWithObstacles,
        ObstructedKey,
    )
}
"""Every registered environment by its short name."""


def env_id(name: str) -> str:
    """Returns the gymnasium id of an environment.

    Args:
        name (str): ``"EscapeRoom"``, ``"EscapeRoom-v0"`` or ``"torchrl_dceo/EscapeRoom-v0"``.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import env_id
        >>> env_id("EscapeRoom")
        'torchrl_dceo/EscapeRoom-v0'
    """
    short = name.removeprefix("torchrl_dceo/").removesuffix("-v0")
    if short not in ENVIRONMENTS:
        raise ValueError(f"unknown environment {name!r}; choose from {', '.join(ENVIRONMENTS)}")
    return f"torchrl_dceo/{short}-v0"


def register_envs() -> None:
    """Registers every environment with gymnasium; called when this package is imported.

    Examples:
        >>> import gymnasium as gym
        >>> from torchrl_dceo.envs.minigrid import register_envs
        >>> register_envs()
        >>> env = gym.make("torchrl_dceo/EscapeRoom-v0", slip=0.0, tile_size=8)
        >>> env.reset(seed=0)[0]["pixels"].shape
        (3, 104, 104)
    """
    for name in ENVIRONMENTS:
        if env_id(name) not in gym.registry:
            # gymnasium's checker takes longer per step than the environment; the tests run it.
            gym.register(env_id(name), entry_point=f"{__name__}:{name}", disable_env_checker=True)


register_envs()
