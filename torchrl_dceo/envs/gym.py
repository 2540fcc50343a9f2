"""Gymnasium environments of this package under TorchRL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchrl.envs import GymEnv

from torchrl_dceo.envs.grid.tiles import TILE_KINDS, draw_tiles

if TYPE_CHECKING:
    from torchrl_dceo.envs.minigrid import MiniGridWorld
    from torchrl_dceo.envs.miniworld import MiniWorld3D

__all__ = [
    "GymWorldEnv",
    "MiniGridWorldEnv",
    "MiniWorldEnv3D",
]


class GymWorldEnv(GymEnv):
    """``GymEnv`` of a registered world that counts its states and saves itself, with categorical actions on the CPU.

    The world has ``num_states``, and ``get_state`` and ``set_state`` of plain numbers and arrays.

    Args:
        registered (str): the id under which gymnasium knows the world.
        **kwargs: the arguments of the world, and those of ``GymEnv`` such as ``device``.

    Examples:
        >>> from torchrl_dceo.envs.gym import GymWorldEnv
        >>> from torchrl_dceo.envs.minigrid import world_id
        >>> env = GymWorldEnv(world_id("EscapeRoom"))
        >>> _ = env.reset()
        >>> env.num_states, "agent_pos" in env.get_env_state()
        (420, True)
    """

    def __init__(self, registered: str, **kwargs: Any) -> None:
        kwargs = {"categorical_action_encoding": True, "device": "cpu", **kwargs}
        super().__init__(registered, **kwargs)

    @property
    def world(self) -> Any:
        """The gymnasium environment itself."""
        return self._env.unwrapped

    @property
    def num_states(self) -> int:
        """How many values ``state_id`` can take."""
        return self.world.num_states

    def get_env_state(self) -> dict[str, Tensor]:
        """Returns all that changes while it runs, generator included, as plain tensors (copies)."""
        return {key: torch.as_tensor(value) for key, value in self.world.get_state().items()}

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        """Restores what :meth:`get_env_state` returned: the run goes on as if never interrupted."""
        arrays = {key: value.cpu().numpy().copy() for key, value in state.items()}
        self.world.set_state({k: int(v) if v.ndim == 0 else v for k, v in arrays.items()})


class MiniGridWorldEnv(GymWorldEnv):
    """One MiniGrid world of this package under TorchRL: categorical actions, pixels, ``state_id``.

    It is ``GymEnv`` of the registered world, with what the table-driven worlds offer too:
    ``num_states``, saving and restoring in mid-episode, and a picture for people. Several at once:
    TorchRL's ``SerialEnv`` or ``ParallelEnv``, or
    :func:`make_env(name, batch_size=n) <torchrl_dceo.envs.make_env>`.

    Args:
        name (str): ``"EscapeRoom"``, ``"RoomsWithObstacles"``, …, see
            :data:`torchrl_dceo.envs.minigrid.WORLDS`.
        **kwargs: the arguments of the world, and those of ``GymEnv`` such as ``device``.

    Examples:
        >>> from torchrl_dceo.envs.gym import MiniGridWorldEnv
        >>> env = MiniGridWorldEnv("EscapeRoom", slip=0.0)
        >>> _ = env.set_seed(0)
        >>> data = env.rollout(5)
        >>> data["pixels"].dtype, data["action"].shape, env.num_states
        (torch.uint8, torch.Size([5]), 420)
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        # Here, since MiniGrid takes a second to import.
        from torchrl_dceo.envs.minigrid import world_id

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
        from torchrl_dceo.envs.miniworld import WORLDS

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
