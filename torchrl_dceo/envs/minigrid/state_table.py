"""Every state of a key-and-door environment, listed: its dynamics as a table, its images in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchrl.data import Bounded

from torchrl_dceo.envs.minigrid.key_and_door import KeyDoorWorld
from torchrl_dceo.envs.table_env import TableEnv

__all__ = ["KeyDoorTableEnv", "StateTable", "list_states"]


class StateTable(NamedTuple):
    """What :func:`list_states` returns; a row is a ``state_id`` of the environment.

    Attributes:
        next_state (Tensor): int64 ``[S, A]``; a state that cannot occur leads to itself.
        pixels (Tensor): uint8 ``[S, 3, H, W]``; black where a state cannot occur.
        occurs (Tensor): bool ``[S]``, which states can be reached from the start.
        goals (Tensor): the states that have left by the door, int64 ``[G]``.
        start (int): the state in which episodes start.
    """

    next_state: Tensor
    pixels: Tensor
    occurs: Tensor
    goals: Tensor
    start: int


def list_states(world: KeyDoorWorld) -> StateTable:
    """Tries every action in every state that can be reached, objects included, from the start on.

    Leaving does not end the search: as in coverage mode, an agent in the open door can come back.

    Args:
        world (KeyDoorWorld): with ``slip=0.0``; it is reset, and left in some state.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import EscapeRoom
        >>> from torchrl_dceo.envs.minigrid.state_table import list_states
        >>> table = list_states(EscapeRoom(room_size=3, slip=0.0))
        >>> table.next_state.shape, int(table.occurs.sum())
        (torch.Size([164, 6]), 160)
    """
    if world.slip:
        raise ValueError(
            f"the states are listed without chance: build with slip=0.0, got {world.slip}"
        )
    world.reset(seed=0)
    num_states, num_actions = world.num_states, len(world.action_names)
    moves = np.tile(np.arange(num_states)[:, None], (1, num_actions))
    pixels = np.zeros((num_states, *world.observe()["pixels"].shape), np.uint8)
    start, known = world.state_id, np.zeros(num_states, bool)
    known[start] = True
    frontier, goals = [world.get_state()], []
    while frontier:
        saved = frontier.pop()
        world.set_state(saved)
        state = world.state_id
        pixels[state] = world.observe()["pixels"]
        if tuple(world.agent_pos) == world._door:
            goals.append(state)
        for action in range(num_actions):
            if world.state_id != state:
                world.set_state(saved)
            world.step(action)
            following = world.state_id
            moves[state, action] = following
            if not known[following]:
                known[following] = True
                frontier.append(world.get_state())
    return StateTable(
        torch.from_numpy(moves),
        torch.from_numpy(pixels),
        torch.from_numpy(known),
        torch.tensor(sorted(goals), dtype=torch.int64),
        start,
    )


class KeyDoorTableEnv(TableEnv):
    """The batched twin of a key-and-door environment: the same states, moves, images and goal, looked up in a table.

    For what needs all states at once: exact eigenfunctions, and representations over all positions with and without
    the key. Recipes train in the MiniGrid environment.

    Args:
        table (StateTable): from :func:`list_states`.

    Keyword Args:
        batch_size (Sequence[int]): Default: ``()``.
        starts (str, optional): ``"anywhere"`` draws each start among all states that can occur. Default: the map's.
        coverage (bool): no goal, no reward. Default: ``False``.
        slip (float): Default: 0.15.
        max_steps (int, optional): Default: none.
        seed (int, optional): by default drawn from torch's global generator.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import EscapeRoom
        >>> from torchrl_dceo.envs.minigrid.state_table import KeyDoorTableEnv, list_states
        >>> env = KeyDoorTableEnv(list_states(EscapeRoom(room_size=3, slip=0.0)), batch_size=[4], seed=0)
        >>> env.rollout(10)["pixels"].shape
        torch.Size([4, 10, 3, 9, 9])
    """

    def __init__(
        self,
        table: StateTable,
        *,
        batch_size: Sequence[int] = (),
        starts: Literal["anywhere"] | None = None,
        coverage: bool = False,
        slip: float = 0.15,
        max_steps: int | None = None,
        seed: int | None = None,
    ) -> None:
        if starts not in (None, "anywhere"):
            raise ValueError(f"starts must be None or 'anywhere', got {starts!r}")
        anywhere = table.occurs.nonzero().flatten().tolist()
        super().__init__(
            table.next_state,
            [table.start] if starts is None else anywhere,
            None if coverage else table.goals.tolist(),
            "pixels",
            Bounded(0, 255, table.pixels.shape[1:], dtype=torch.uint8),
            batch_size=batch_size,
            slip=slip,
            max_steps=max_steps,
            seed=seed,
        )
        self.table = table

    def observe(self, state_ids: Tensor) -> Tensor:
        """Returns the images of the states, uint8 ``[*, 3, H, W]``."""
        return self.table.pixels[state_ids]
