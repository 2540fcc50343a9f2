"""Which entries of a step are stored, under which names, and how a frame stack is cut and rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensordict import NestedKey, unravel_key
from torch import Tensor

__all__ = ["Columns"]

_OWN_KEYS = ("reward", "done", "terminated", "truncated", "index", "steps_to_next_obs")


def _unravel(keys: NestedKey | Sequence[NestedKey]) -> tuple[NestedKey, ...]:
    return tuple(unravel_key(key) for key in ([keys] if isinstance(keys, str) else keys))


@dataclass(frozen=True)
class Columns:
    """The entries of a step that a replay buffer keeps.

    Args:
        observations (sequence of NestedKey): observations, which may be stacks of frames.
        states (sequence of NestedKey): other entries that belong to a state.
        steps (sequence of NestedKey): entries that belong to a step (the action, the option, ...).
        frame_stack (int, optional): frames in an observation. Defaults to ``1``.
        stack_dim (int, optional): the dimension along which they are stacked. Defaults to ``-3``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.data.columns import Columns
        >>> columns = Columns(["pixels"], [], ["action"], frame_stack=4)
        >>> stack = torch.arange(4).view(1, 4, 1, 1)
        >>> columns.newest_frame(stack).flatten()
        tensor([3])
    """

    observations: Sequence[NestedKey]
    states: Sequence[NestedKey]
    steps: Sequence[NestedKey]
    frame_stack: int = 1
    stack_dim: int = -3

    def __post_init__(self) -> None:
        for name in ("observations", "states", "steps"):
            object.__setattr__(self, name, _unravel(getattr(self, name)))
        names = list(self.keys())
        if not self.observations:
            raise ValueError("observation_keys must name at least one entry, got none.")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"The key {name!r} is named twice: every entry is stored once.")
            root = name if isinstance(name, str) else name[0]
            if name in _OWN_KEYS or root in ("next", "successor", "window"):
                raise ValueError(f"The key {name!r} is one that the buffer writes: leave it out.")
        if self.frame_stack < 1:
            raise ValueError(f"frame_stack must be at least 1, got {self.frame_stack}.")
        if self.stack_dim >= 0:
            raise ValueError(f"stack_dim must be negative, got {self.stack_dim}.")

    def keys(self) -> tuple[NestedKey, ...]:
        """All keys."""
        return (*self.observations, *self.states, *self.steps)

    def _channels(self, stack: Tensor) -> int:
        channels, rest = divmod(stack.shape[self.stack_dim], self.frame_stack)
        if rest or not channels:
            raise ValueError(
                f"An observation of shape {tuple(stack.shape)} cannot be cut into "
                f"frame_stack={self.frame_stack} equal frames along dimension {self.stack_dim}."
            )
        return channels

    def newest_frame(self, stack: Tensor) -> Tensor:
        """The last frame of a stack (a view), or the observation itself without stacking."""
        if self.frame_stack == 1:
            return stack
        channels = self._channels(stack)
        return stack.narrow(self.stack_dim, stack.shape[self.stack_dim] - channels, channels)

    def older_frames(self, stack: Tensor) -> Tensor:
        """All frames of a stack but the last, ``[B, frame_stack - 1, ...]``, oldest first."""
        channels = self._channels(stack)
        frames = stack.unflatten(self.stack_dim, (self.frame_stack, channels))
        return frames.movedim(self.stack_dim - 1, 1)[:, :-1]

    def stack(self, frames: Tensor) -> Tensor:
        """Frames ``[B, frame_stack, ...]``, oldest first, as a stack ``[B, ...]``."""
        moved = frames.movedim(1, self.stack_dim - 1)
        return moved.flatten(self.stack_dim - 1, self.stack_dim)

    def spec(self) -> dict[str, int | list[str]]:
        """A description in plain values, to tell whether two buffers hold the same entries."""
        keys = {
            name: [key if isinstance(key, str) else ".".join(key) for key in getattr(self, name)]
            for name in ("observations", "states", "steps")
        }
        return {**keys, "frame_stack": self.frame_stack, "stack_dim": self.stack_dim}
