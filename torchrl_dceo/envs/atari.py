"""Atari games as a TorchRL environment, with the player's room and position beside the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from torchrl_dceo.envs.area_resize import AreaResize
from torchrl_dceo.envs.atari_console import SCREEN, Console
from torchrl_dceo.envs.atari_games import RamMap, minimal_actions, ram_map, rom_path

__all__ = ["AtariEnv"]

_CPU = torch.device("cpu")  # where the emulators draw


class AtariEnv(EnvBase):
    """One or several Atari games, as the paper plays them: 84x84 grey, stacks of four, sticky actions.

    Each environment of the batch is an emulator of its own, stepped one after the other in this process (a
    :class:`~torchrl_dceo.envs.atari_console.Console`, which says what an agent step is). The pictures are shrunk by
    :class:`~torchrl_dceo.envs.area_resize.AreaResize`, and the newest ``frame_stack`` of them are stacked, oldest
    first; at the start of an episode the first one is repeated, as ``CatFrames(padding="same")`` does. That is what
    ``make_replay_buffer(frame_stack=4)`` undoes and redoes: it stores each picture once.

    The reward is the game's own. :func:`~torchrl_dceo.envs.make_env` clips it for learning, after the return of the
    episode was summed. An episode ends with the game (``terminated``; with a life if asked for) and after ``max_steps``
    agent steps (``truncated``).

    Entries (``B`` the batch size): ``pixels`` uint8 ``[*B, frame_stack, size, size]``; ``room`` int64 ``[*B]`` and
    ``position`` int64 ``[*B, 2]``, the player's (x, y), read from memory where the game's :class:`RamMap
    <torchrl_dceo.envs.atari_games.RamMap>` is known or given; ``state_id`` int64 ``[*B]``, which is the room, so
    that coverage counts rooms (0 in a game without); ``ram`` uint8 ``[*B, 128]`` if asked for; ``action``, ``reward``
    and the end flags as everywhere.

    Args:
        game (str): ``"MontezumaRevenge"``, ``"Pong"``, …, see :func:`~torchrl_dceo.envs.atari_games.game_names`.

    Keyword Args:
        batch_size (Sequence[int]): Default: ``()``.
        sticky (float): probability that a frame keeps the action of the one before. Default: 0.25.
        frame_skip (int): emulator frames an agent step. Default: 4.
        frame_stack (int): pictures in an observation. Default: 4.
        size (int): rows and columns of a picture. Default: 84.
        max_steps (int, optional): agent steps an episode. Default: 27,000 (30 minutes of play).
        coverage (bool): no reward. Games still end. Default: ``False``.
        life_ends (bool): the loss of a life terminates, and a new game begins. Default: ``False``.
        full_actions (bool): all 18 actions of the joystick, also those that do nothing here. Default: ``False``.
        positions (RamMap or tuple, optional): where in memory the player is. Default: what is known of the game.
        ram (bool): whether the memory is an entry. Default: ``False``.
        seed (int, optional): by default drawn from torch's global generator.
        device (torch.device or str): where the entries go. Default: ``"cpu"``.

    Examples:
        >>> from torchrl_dceo.envs.atari import AtariEnv
        >>> env = AtariEnv("MontezumaRevenge", seed=0)
        >>> data = env.reset()
        >>> data["pixels"].shape, int(data["room"]), data["position"].tolist()
        (torch.Size([4, 84, 84]), 1, [77, 235])
        >>> env.action_names[3]
        'RIGHT'
        >>> data = env.rollout(3, lambda td: td.set("action", env.action_index("RIGHT")))
        >>> bool(data["next", "position"][-1, 0] > 77)
        True
    """

    def __init__(
        self,
        game: str,
        *,
        batch_size: Sequence[int] = (),
        sticky: float = 0.25,
        frame_skip: int = 4,
        frame_stack: int = 4,
        size: int = 84,
        max_steps: int | None = 27_000,
        coverage: bool = False,
        life_ends: bool = False,
        full_actions: bool = False,
        positions: RamMap | None = None,
        ram: bool = False,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        path = rom_path(game)
        if not 0.0 <= sticky <= 1.0:
            raise ValueError(f"sticky must lie in [0, 1], got {sticky}")
        for name, value in (("frame_skip", frame_skip), ("frame_stack", frame_stack)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if max_steps is not None and max_steps < 1:
            raise ValueError(
                f"max_steps must be at least 1 (or None for no limit), got {max_steps}"
            )
        super().__init__(device=torch.device(device), batch_size=torch.Size(batch_size))
        self.game = game
        self.frame_stack = frame_stack
        self.max_steps = max_steps
        self.coverage = coverage
        self.positions = ram_map(game) if positions is None else RamMap(*positions)
        self.has_ram = ram
        self._resize = AreaResize(SCREEN, (size, size))
        self._joystick = minimal_actions(game, full_actions)
        self._codes = [action.value for action in self._joystick]
        count = self.batch_size.numel()
        self.consoles = [
            Console(path, frame_skip=frame_skip, sticky=sticky, life_ends=life_ends)
            for _ in range(count)
        ]
        self._screens = np.zeros((count, *SCREEN), dtype=np.uint8)
        for console, screen in zip(self.consoles, self._screens, strict=True):
            console.screen = screen  # drawn into the batch itself
        self._stack = torch.zeros((count, frame_stack, size, size), dtype=torch.uint8)
        self._elapsed = torch.zeros(count, dtype=torch.int64)
        self._make_specs(size)
        self._set_seed(int(torch.randint(2**31, ())) if seed is None else seed)

    def _make_specs(self, size: int) -> None:
        shape, device = self.batch_size, self.device
        flag = Categorical(2, shape=(*shape, 1), dtype=torch.bool, device=device)

        def byte(*dims: int, dtype: torch.dtype = torch.uint8) -> Bounded:
            return Bounded(0, 255, shape=(*shape, *dims), dtype=dtype, device=device)

        entries: dict[str, Any] = {
            "pixels": byte(self.frame_stack, size, size),
            "state_id": Categorical(self.num_states, shape=shape, dtype=torch.int64, device=device),
        }
        if self.positions is not None:
            entries["room"] = byte(dtype=torch.int64)
            entries["position"] = byte(2, dtype=torch.int64)
        if self.has_ram:
            entries["ram"] = byte(self.consoles[0].ale.getRAMSize())
        self.observation_spec = Composite(entries, shape=shape, device=device)
        self.action_spec = Categorical(
            len(self._codes), shape=shape, dtype=torch.int64, device=device
        )
        self.reward_spec = Unbounded(shape=(*shape, 1), dtype=torch.float32, device=device)
        self.full_done_spec = Composite(
            done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=shape, device=device
        )

    @property
    def num_states(self) -> int:
        """How many values ``state_id`` can take: the rooms of the game."""
        if self.positions is None or self.positions.room is None:
            return 1
        return self.positions.num_rooms

    @property
    def action_names(self) -> list[str]:
        """What each action is on the joystick: ``"NOOP"``, ``"FIRE"``, ``"UP"``, …"""
        return [action.name for action in self._joystick]

    def action_index(self, name: str) -> Tensor:
        """Returns the action of that name, for the whole batch."""
        if name not in self.action_names:
            raise ValueError(
                f"{self.game} has no action {name!r}; it has {', '.join(self.action_names)}"
            )
        index = torch.tensor(self.action_names.index(name), device=self.device)
        return index.expand(self.batch_size).clone()

    # EnvBase

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        count = len(self.consoles)
        fresh = torch.ones(count, dtype=torch.bool) if mask is None else mask.reshape(count).cpu()
        for i in fresh.nonzero().flatten().tolist():
            self.consoles[i].reset()
        first = self._resize(torch.from_numpy(self._screens)).unsqueeze(1)
        self._stack = torch.where(fresh.view(-1, 1, 1, 1), first, self._stack)
        self._elapsed = self._elapsed.masked_fill(fresh, 0)
        off = torch.zeros(count, dtype=torch.bool)
        return self._pack(done=off, terminated=off.clone(), truncated=off.clone())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = tensordict.get("action").reshape(-1).tolist()
        results = [
            console.step(self._codes[action])
            for console, action in zip(self.consoles, actions, strict=True)
        ]
        newest = self._resize(torch.from_numpy(self._screens)).unsqueeze(1)
        self._stack = torch.cat([self._stack[:, 1:], newest], dim=1)
        self._elapsed = self._elapsed + 1
        terminated = torch.tensor([over for _, over in results])
        if self.max_steps is None:
            truncated = torch.zeros_like(terminated)
        else:
            truncated = self._elapsed >= self.max_steps
        rewards = [0 if self.coverage else reward for reward, _ in results]
        return self._pack(
            reward=torch.tensor(rewards, dtype=torch.float32),
            done=terminated | truncated,
            terminated=terminated,
            truncated=truncated,
        )

    def _pack(self, **entries: Tensor) -> TensorDictBase:
        shape = self.batch_size
        # The stack is replaced at each step, never written into: handing it out is safe.
        packed = {key: value.view(*shape, 1) for key, value in entries.items()}
        packed["pixels"] = self._stack.view(*shape, *self._stack.shape[1:])
        packed.update(self._read_memory())
        result = TensorDict._new_unsafe(packed, batch_size=shape, device=_CPU)
        return result if self.device == _CPU else result.to(self.device)

    def _read_memory(self) -> dict[str, Tensor]:
        shape, where = self.batch_size, self.positions
        if where is None and not self.has_ram:
            return {"state_id": torch.zeros(shape, dtype=torch.int64)}
        memory = torch.from_numpy(np.stack([console.ram for console in self.consoles]))
        entries = {"ram": memory.view(*shape, -1)} if self.has_ram else {}
        if where is None:
            return {**entries, "state_id": torch.zeros(shape, dtype=torch.int64)}
        columns = [0 if where.room is None else where.room, where.x, where.y]
        room, x, y = memory[:, columns].to(torch.int64).view(*shape, 3).unbind(-1)
        if where.room is None:
            room = torch.zeros_like(room)
        # Bounded: a byte that a game uses for something else on the way must not end a run of days.
        state = room.clamp(max=self.num_states - 1)
        return {**entries, "room": room, "position": torch.stack([x, y], -1), "state_id": state}

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            return
        generator = torch.Generator().manual_seed(seed)
        seeds = torch.randint(2**62, (len(self.consoles),), generator=generator)
        for console, own in zip(self.consoles, seeds.tolist(), strict=True):
            console.seed(own)

    # Pictures; save and restore

    def render(self) -> Tensor:
        """Returns what a player sees on the television, ``uint8 [*B, 210, 160, 3]``."""
        pictures = np.stack([console.render() for console in self.consoles])
        return torch.from_numpy(pictures).view(*self.batch_size, *SCREEN, 3)

    def get_env_state(self) -> dict[str, Tensor]:
        """Returns all that changes while it runs, the emulators' bytes included, as plain tensors (copies)."""
        state = {"stack": self._stack.clone(), "elapsed": self._elapsed.clone()}
        for i, console in enumerate(self.consoles):
            state.update({f"{key}_{i}": value for key, value in console.get_state().items()})
        return state

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        """Restores what :meth:`get_env_state` returned: the games go on as if never interrupted."""
        if state["stack"].shape != self._stack.shape:
            raise ValueError(
                f"the saved pictures have shape {list(state['stack'].shape)}, but those of this "
                f"environment have {list(self._stack.shape)}"
            )
        self._stack = state["stack"].cpu().clone()
        self._elapsed = state["elapsed"].cpu().clone()
        for i, console in enumerate(self.consoles):
            own = {key: state[f"{key}_{i}"] for key in ("emulator", "last_action", "generator")}
            console.set_state(own)
