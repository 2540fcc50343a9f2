"""Shared parts of the Atari environments: games, specs, and the console with its memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ale_py
import numpy as np
import numpy.typing as npt
import torch
from ale_py import roms
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from torchrl_dceo.settings import suggestion

__all__ = [
    "MONTEZUMA",
    "SCREEN",
    "AtariBase",
    "Console",
    "RamMap",
    "game_names",
    "minimal_actions",
    "ram_map",
    "rom_path",
]


class RamMap(NamedTuple):
    """Addresses in the 128 bytes of memory of an Atari console.

    Attributes:
        room (int, optional): the room, screen or level of the player. ``None``: the game has only one.
        x (int): the player's column.
        y (int): the player's row; whether it grows upward or downward depends on the game.
        num_rooms (int): the number of rooms.
    """

    room: int | None
    x: int
    y: int
    num_rooms: int = 256


# Checked against the screen by tests/envs/test_atari.py: x grows to the right, y upward.
MONTEZUMA = RamMap(room=3, x=42, y=43, num_rooms=24)


_KNOWN = {"MontezumaRevenge": MONTEZUMA}


def _camel(rom: str) -> str:
    return "".join(word.capitalize() for word in rom.split("_"))


def game_names() -> list[str]:
    """Returns the games whose ROM comes with ale-py, as ``MontezumaRevenge``, ``Pong``, …

    Examples:
        >>> from torchrl_dceo.envs.atari import game_names
        >>> "MontezumaRevenge" in game_names(), "Pong" in game_names()
        (True, True)
    """
    return sorted(map(_camel, roms.get_all_rom_ids()))


def rom_path(game: str) -> Path:
    """Returns the ROM of a game; an unknown name raises an error with the closest one.

    Examples:
        >>> from torchrl_dceo.envs.atari import rom_path
        >>> rom_path("MsPacman").name
        'ms_pacman.bin'
    """
    known = {_camel(rom): rom for rom in roms.get_all_rom_ids()}
    if game not in known:
        hint = suggestion(re.sub(r"[\W_]", "", game), list(known), cutoff=0.6)
        raise ValueError(
            f"unknown Atari game {game!r}{hint}; see torchrl_dceo.envs.atari.game_names()"
        )
    path = roms.get_rom_path(known[game])
    if path is None:
        raise FileNotFoundError(f"ale-py has no ROM of {game!r}: reinstall ale-py")
    return path


def ram_map(game: str) -> RamMap | None:
    """Returns the memory addresses of the player's position, if they are known."""
    return _KNOWN.get(game)


@functools.lru_cache
def minimal_actions(game: str, full: bool = False) -> tuple[ale_py.Action, ...]:
    """Returns the actions that have an effect in a game, or all eighteen of the joystick.

    Examples:
        >>> from torchrl_dceo.envs.atari import minimal_actions
        >>> [action.name for action in minimal_actions("Freeway")]
        ['NOOP', 'UP', 'DOWN']
    """
    path = rom_path(game)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    console = ale_py.ALEInterface()
    console.loadROM(path)
    return tuple(console.getLegalActionSet() if full else console.getMinimalActionSet())


_CPU = torch.device("cpu")  # where the emulators draw


class AtariBase(EnvBase):
    """Base of the batched Atari environments; a subclass steps one console per game, or ALE's vector environment.

    Args:
        game (str): the game.

    Keyword Args:
        batch_size (Sequence[int]): the number of games.
        sticky, frame_skip, frame_stack, size, max_steps, coverage, full_actions, device: see
            :class:`~torchrl_dceo.envs.atari.env.AtariEnv`; checked here.
    """

    def __init__(
        self,
        game: str,
        *,
        batch_size: Sequence[int],
        sticky: float,
        frame_skip: int,
        frame_stack: int,
        size: int,
        max_steps: int | None,
        coverage: bool,
        full_actions: bool,
        device: torch.device | str,
    ) -> None:
        self.rom: Path = rom_path(game)
        if not 0.0 <= sticky <= 1.0:
            raise ValueError(f"sticky must lie in [0, 1], got {sticky}")
        for name, value in (
            ("frame_skip", frame_skip),
            ("frame_stack", frame_stack),
            ("size", size),
        ):
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
        self._joystick = minimal_actions(game, full_actions)
        count = self.batch_size.numel()
        self._stack = torch.zeros((count, frame_stack, size, size), dtype=torch.uint8)
        self._elapsed = torch.zeros(count, dtype=torch.int64)

    @property
    def action_names(self) -> list[str]:
        """The joystick position of each action: ``"NOOP"``, ``"FIRE"``, ``"UP"``, …"""
        return [action.name for action in self._joystick]

    def action_index(self, name: str) -> Tensor:
        """Returns the action of that name, for the whole batch."""
        if name not in self.action_names:
            raise ValueError(
                f"{self.game} has no action {name!r}; it has {', '.join(self.action_names)}"
            )
        index = torch.tensor(self.action_names.index(name), device=self.device)
        return index.expand(self.batch_size).clone()

    def _make_specs(self, further: Mapping[str, TensorSpec] | None = None) -> None:
        """Sets the specs: images and ``further`` entries of an observation, action, reward, end flags."""
        shape, device = self.batch_size, self.device
        flag = Categorical(2, shape=(*shape, 1), dtype=torch.bool, device=device)
        pixels = self._byte_spec(*self._stack.shape[1:])
        self.observation_spec = Composite(
            {"pixels": pixels, **(further or {})}, shape=shape, device=device
        )
        self.action_spec = Categorical(
            len(self._joystick), shape=shape, dtype=torch.int64, device=device
        )
        self.reward_spec = Unbounded(shape=(*shape, 1), dtype=torch.float32, device=device)
        self.full_done_spec = Composite(
            done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=shape, device=device
        )

    def _byte_spec(self, *dims: int, dtype: torch.dtype = torch.uint8) -> Bounded:
        shape = (*self.batch_size, *dims)
        return Bounded(0, 255, shape=shape, dtype=dtype, device=self.device)

    def _to_reset(self, tensordict: TensorDictBase | None) -> Tensor:
        """Which games have to be restarted, ``[count]``."""
        mask = None if tensordict is None else tensordict.get("_reset", None)
        count = self.batch_size.numel()
        return torch.ones(count, dtype=torch.bool) if mask is None else mask.reshape(count).cpu()

    def _begin(self, fresh: Tensor, first: Tensor) -> TensorDictBase:
        """The observation after a reset: of fresh games the ``first`` image ``[count, 1, H, W]``, repeated."""
        self._stack = torch.where(fresh.view(-1, 1, 1, 1), first, self._stack)
        self._elapsed = self._elapsed.masked_fill(fresh, 0)
        off = torch.zeros_like(fresh)
        return self._pack(done=off, terminated=off.clone(), truncated=off.clone())

    def _advance(self, newest: Tensor, reward: Tensor, terminated: Tensor) -> TensorDictBase:
        """The observation after a step: the ``newest`` image added to the stack; also checks the step limit."""
        self._stack = torch.cat([self._stack[:, 1:], newest], dim=1)
        self._elapsed = self._elapsed + 1
        if self.max_steps is None:
            truncated = torch.zeros_like(terminated)
        else:
            truncated = self._elapsed >= self.max_steps
        return self._pack(
            reward=torch.zeros_like(reward) if self.coverage else reward,
            done=terminated | truncated,
            terminated=terminated,
            truncated=truncated,
        )

    def _pack(self, **entries: Tensor) -> TensorDictBase:
        shape = self.batch_size
        packed = {key: value.view(*shape, 1) for key, value in entries.items()}
        # The stack is replaced at each step, never written into, so it can be returned without a copy.
        packed["pixels"] = self._stack.view(*shape, *self._stack.shape[1:])
        packed.update(self._further_entries())
        result = TensorDict._new_unsafe(packed, batch_size=shape, device=_CPU)
        return result if self.device == _CPU else result.to(self.device)

    def _further_entries(self) -> dict[str, Tensor]:
        """The entries of an observation besides the images."""
        return {}

    def _restore_stack(self, stack: Tensor) -> None:
        if stack.shape != self._stack.shape:
            raise ValueError(
                f"the saved images have shape {list(stack.shape)}, but those of this "
                f"environment have {list(self._stack.shape)}"
            )
        self._stack = stack.cpu().clone()


SCREEN = (210, 160)


_NOOP = 0


class Console:
    """One game of the Arcade Learning Environment, stepped one agent step at a time.

    An agent step plays ``frame_skip`` frames of the emulator with one action and sums their rewards. The observation is
    the pixelwise maximum of the last two frames, since some games draw objects in every other frame only (with
    ``frame_skip=1`` there is no maximum). If the game ends within a step, it is the last frame alone. In each
    *frame* the action of the frame before is kept with probability ``sticky`` (Machado et al. 2018).

    The emulator has sticky actions too, but its serialised state does not include the last action, so that a restored
    game would continue differently. So they are implemented here, with a generator that :meth:`get_state` saves.

    Args:
        path (Path): the ROM.

    Keyword Args:
        frame_skip (int): frames per agent step. Default: 4.
        sticky (float): Default: 0.25.
        life_ends (bool): whether the loss of a life counts as the end. Default: ``False``.
        seed (int): of the sticky actions. Default: 0.

    Examples:
        >>> from torchrl_dceo.envs.atari import Console
        >>> from torchrl_dceo.envs.atari import rom_path
        >>> console = Console(rom_path("MontezumaRevenge"))
        >>> console.reset()
        >>> console.ram[[3, 42, 43]].tolist()  # room, x, y
        [1, 77, 235]
        >>> console.step(0), console.screen.shape
        ((0, False), (210, 160))
    """

    def __init__(
        self,
        path: Path,
        *,
        frame_skip: int = 4,
        sticky: float = 0.25,
        life_ends: bool = False,
        seed: int = 0,
    ) -> None:
        self.frame_skip = frame_skip
        self.sticky = sticky
        self.life_ends = life_ends
        self.screen: npt.NDArray[np.uint8] = np.zeros(SCREEN, dtype=np.uint8)
        self._before = np.zeros(SCREEN, dtype=np.uint8)
        self._generator = torch.Generator().manual_seed(seed)
        self._last_action = _NOOP
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(path)

    def seed(self, seed: int) -> None:
        """Seeds the sticky actions."""
        self._generator.manual_seed(seed)

    @property
    def ram(self) -> npt.NDArray[np.uint8]:
        """The memory, a copy of its 128 bytes."""
        return self.ale.getRAM()

    def reset(self) -> None:
        """Starts a new game."""
        self.ale.reset_game()
        self.ale.getScreenGrayscale(self.screen)
        self._last_action = _NOOP

    def step(self, action: int) -> tuple[int, bool]:
        """Plays an agent step with an action of the joystick; returns the reward and whether the game is over."""
        ale, last = self.ale, self.frame_skip - 1
        reward, lives = 0, ale.lives() if self.life_ends else 0
        for frame, sticks in enumerate(self._draw()):
            if not sticks:
                self._last_action = action
            reward += ale.act(self._last_action)
            if ale.game_over() or (self.life_ends and ale.lives() < lives):
                ale.getScreenGrayscale(self.screen)
                return reward, True
            if frame == last - 1:
                ale.getScreenGrayscale(self._before)
        ale.getScreenGrayscale(self.screen)
        if last:
            np.maximum(self.screen, self._before, out=self.screen)
        return reward, False

    def _draw(self) -> list[bool]:
        """The frames of a step in which the last action sticks."""
        if not self.sticky:
            return [False] * self.frame_skip
        return (torch.rand(self.frame_skip, generator=self._generator) < self.sticky).tolist()

    def render(self) -> npt.NDArray[np.uint8]:
        """The image on the screen, RGB."""
        return self.ale.getScreenRGB()

    def get_state(self) -> dict[str, Tensor]:
        """The complete state: the emulator's bytes, the last action, the generator."""
        emulator = bytearray(self.ale.cloneState(include_rng=True).serialize())
        return {
            "emulator": torch.frombuffer(emulator, dtype=torch.uint8),
            "last_action": torch.tensor(self._last_action),
            "generator": self._generator.get_state(),
        }

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Continues from a state of :meth:`get_state`, of any console of this game.

        The emulator draws nothing before its next frame, so the caller has to keep :attr:`screen`.
        """
        self.ale.restoreState(ale_py.ALEState(state["emulator"].cpu().numpy().tobytes()))
        self._last_action = int(state["last_action"])
        self._generator.set_state(state["generator"].cpu())
