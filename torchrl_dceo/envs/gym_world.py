"""What the gymnasium worlds of this package have in common under TorchRL."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchrl.envs import GymEnv

__all__ = ["GymWorldEnv"]


class GymWorldEnv(GymEnv):
    """``GymEnv`` of a registered world that counts its states and saves itself, with categorical actions on the CPU.

    The world has ``num_states``, and ``get_state`` and ``set_state`` of plain numbers and arrays.

    Args:
        registered (str): the id under which gymnasium knows the world.
        **kwargs: the arguments of the world, and those of ``GymEnv`` such as ``device``.

    Examples:
        >>> from torchrl_dceo.envs.gym_world import GymWorldEnv
        >>> from torchrl_dceo.envs.minigrid_worlds import world_id
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
