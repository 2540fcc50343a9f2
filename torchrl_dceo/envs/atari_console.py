"""One Atari console: frame skip, max-pooling, sticky actions, and its whole state as bytes."""

from __future__ import annotations

from pathlib import Path

import ale_py
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["SCREEN", "Console"]

SCREEN = (210, 160)
_NOOP = 0


class Console:
    """One game under the Arcade Learning Environment, an agent step at a time.

    An agent step plays ``frame_skip`` frames of the emulator with one action and sums their rewards. What is seen is
    the pixelwise maximum of the last two of them, since some games draw a thing in every other frame only (with
    ``frame_skip=1`` there is nothing to pool). A game that ends within a step shows its last frame alone. In each
    *frame* the action of the frame before is kept with probability ``sticky`` (Machado et al. 2018).

    The emulator has sticky actions too, but what it serialises leaves out the action that sticks, so that a restored
    game would go on differently. So the choice is made here, from a generator that :meth:`get_state` saves.

    Args:
        path (Path): the ROM.

    Keyword Args:
        frame_skip (int): frames an agent step. Default: 4.
        sticky (float): Default: 0.25.
        life_ends (bool): whether the loss of a life counts as the end. Default: ``False``.
        seed (int): of the sticky actions. Default: 0.

    Examples:
        >>> from torchrl_dceo.envs.atari_console import Console
        >>> from torchrl_dceo.envs.atari_games import rom_path
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
        """Seeds the choice of the frames in which the last action sticks."""
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
        """Plays an agent step with an action of the joystick; returns the reward, and whether it is over."""
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
        """In which frames of a step the last action sticks."""
        if not self.sticky:
            return [False] * self.frame_skip
        return (torch.rand(self.frame_skip, generator=self._generator) < self.sticky).tolist()

    def render(self) -> npt.NDArray[np.uint8]:
        """The picture on the television, RGB."""
        return self.ale.getScreenRGB()

    def get_state(self) -> dict[str, Tensor]:
        """All that the rest of the game depends on: the emulator's bytes, the action that may stick, the generator."""
        emulator = bytearray(self.ale.cloneState(include_rng=True).serialize())
        return {
            "emulator": torch.frombuffer(emulator, dtype=torch.uint8),
            "last_action": torch.tensor(self._last_action),
            "generator": self._generator.get_state(),
        }

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Goes on from what :meth:`get_state` returned, of whatever console of this game.

        The emulator draws nothing before its next frame: :attr:`screen` is for the caller to keep.
        """
        self.ale.restoreState(ale_py.ALEState(state["emulator"].cpu().numpy().tobytes()))
        self._last_action = int(state["last_action"])
        self._generator.set_state(state["generator"].cpu())
