"""The MiniGrid worlds as TorchRL environments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrl_dceo.envs.gym_world import GymWorldEnv
from torchrl_dceo.envs.minigrid_worlds import MiniGridWorld, world_id
from torchrl_dceo.envs.tiles import TILE_KINDS, draw_tiles

__all__ = ["MiniGridWorldEnv"]


class MiniGridWorldEnv(GymWorldEnv):
    """One MiniGrid world of this package under TorchRL: categorical actions, pixels, ``state_id``.

    It is ``GymEnv`` of the registered world, with what the table-driven worlds offer too:
    ``num_states``, saving and restoring in mid-episode, and a picture for people. Several at once:
    TorchRL's ``SerialEnv`` or ``ParallelEnv``, or
    :func:`make_env(name, batch_size=n) <torchrl_dceo.envs.make_env>`.

    Args:
        name (str): ``"EscapeRoom"``, ``"RoomsWithObstacles"``, …, see
            :data:`torchrl_dceo.envs.minigrid_worlds.WORLDS`.
        **kwargs: the arguments of the world, and those of ``GymEnv`` such as ``device``.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_env import MiniGridWorldEnv
        >>> env = MiniGridWorldEnv("EscapeRoom", slip=0.0)
        >>> _ = env.set_seed(0)
        >>> data = env.rollout(5)
        >>> data["pixels"].dtype, data["action"].shape, env.num_states
        (torch.uint8, torch.Size([5]), 420)
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(world_id(name), **kwargs)

    @property
    def world(self) -> MiniGridWorld:
        """The MiniGrid environment itself."""
        return self._env.unwrapped

    def render(self, *, tile_size: int = 16) -> Tensor:
        """Returns an RGB picture for people with the goal in it, ``uint8 [H, W, 3]``."""
        world = self.world
        kinds = torch.as_tensor(world.cells, dtype=torch.int64)
        agent = "agent" if world.carrying is None else "agent_with_key"
        x, y = world.agent_pos
        kinds[y, x] = TILE_KINDS.index(agent)
        return draw_tiles(kinds, tile_size).movedim(0, -1).contiguous()
