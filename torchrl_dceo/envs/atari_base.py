"""What every batch of Atari games has in common: settings, specs, stacks of pictures, the limit of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from torchrl_dceo.envs.atari_games import minimal_actions, rom_path

__all__ = ["AtariBase"]

_CPU = torch.device("cpu")  # where the emulators draw


class AtariBase(EnvBase):
    """A batch of Atari games; how they are played is its subclass's: one console each, or ALE's vector environment.

    Args:
        game (str): the game.

    Keyword Args:
        batch_size (Sequence[int]): how many games.
        sticky, frame_skip, frame_stack, size, max_steps, coverage, full_actions, device: see
            :class:`~torchrl_dceo.envs.atari.AtariEnv`; checked here.
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

    def _make_specs(self, further: Mapping[str, TensorSpec] | None = None) -> None:
        """Sets the specs: pictures and ``further`` entries of an observation, action, reward, end flags."""
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
        """Which games are to begin anew, ``[count]``."""
        mask = None if tensordict is None else tensordict.get("_reset", None)
        count = self.batch_size.numel()
        return torch.ones(count, dtype=torch.bool) if mask is None else mask.reshape(count).cpu()

    def _begin(self, fresh: Tensor, first: Tensor) -> TensorDictBase:
        """The observation after a reset: of fresh games the ``first`` picture ``[count, 1, H, W]``, repeated."""
        self._stack = torch.where(fresh.view(-1, 1, 1, 1), first, self._stack)
        self._elapsed = self._elapsed.masked_fill(fresh, 0)
        off = torch.zeros_like(fresh)
        return self._pack(done=off, terminated=off.clone(), truncated=off.clone())

    def _advance(self, newest: Tensor, reward: Tensor, terminated: Tensor) -> TensorDictBase:
        """The observation after a step: the ``newest`` picture stacked, and the limit of the episode looked at."""
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
        # The stack is replaced at each step, never written into: handing it out is safe.
        packed["pixels"] = self._stack.view(*shape, *self._stack.shape[1:])
        packed.update(self._further_entries())
        result = TensorDict._new_unsafe(packed, batch_size=shape, device=_CPU)
        return result if self.device == _CPU else result.to(self.device)

    def _further_entries(self) -> dict[str, Tensor]:
        """What an observation has besides the pictures."""
        return {}

    def _restore_stack(self, stack: Tensor) -> None:
        if stack.shape != self._stack.shape:
            raise ValueError(
                f"the saved pictures have shape {list(stack.shape)}, but those of this "
                f"environment have {list(self._stack.shape)}"
            )
        self._stack = stack.cpu().clone()
