"""The MiniWorld worlds as TorchRL environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrl_dceo.envs.gym_world import GymWorldEnv

if TYPE_CHECKING:
    from torchrl_dceo.envs.miniworld_worlds import MiniWorld3D

__all__ = ["MiniWorldEnv3D"]


class MiniWorldEnv3D(GymWorldEnv):
    """One MiniWorld world of this package under TorchRL: categorical actions, ``pixels``, ``state_id``, ``pose``.

    It is ``GymEnv`` of the registered world, with what the other worlds offer too: ``num_states``, saving and
    restoring in mid-episode, and a picture for people. Needs the extra ``miniworld`` and Mesa's libraries.

    Args:
        name (str): ``"MiniWorldFourRoomsStrafe"``, ``"MyWayHomeSparseStrafe"``, ``"MiniWorldFourRooms"`` or
            ``"MyWayHomeSparse"``.
        **kwargs: the arguments of the world, and those of ``GymEnv`` such as ``device``.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        # Here, so that a worker process that is handed this class registers the worlds too.
        from torchrl_dceo.envs.miniworld_worlds import WORLDS

        if name not in WORLDS:
            raise ValueError(f"unknown world {name!r}; the worlds are {', '.join(WORLDS)}")
        self._made_with = (name, kwargs)
        super().__init__(f"torchrl_dceo/{name}-v0", **kwargs)

    @property
    def world(self) -> MiniWorld3D:
        """The MiniWorld environment itself."""
        return self._env.unwrapped

    def another(self, **settings: Any) -> MiniWorldEnv3D:
        """A new environment of the same world, with some settings changed."""
        name, kwargs = self._made_with
        return MiniWorldEnv3D(name, **{**kwargs, **settings})

    def render(self, *, top: bool = False) -> Tensor:
        """Returns an RGB picture for people, ``uint8 [600, 800, 3]``: the agent's view, or the world from above."""
        world = self.world
        draw = world.render_top_view if top else world.render_obs
        return torch.from_numpy(draw(world.vis_fb))
