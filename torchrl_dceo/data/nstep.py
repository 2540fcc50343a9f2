"""The stored entries of a step, and the n-step transitions built from them when sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import NestedKey, TensorDict, unravel_key
from torch import Tensor

from torchrl_dceo._fast import is_fast
from torchrl_dceo.data.ring import StreamRing

__all__ = ["Columns", "NStepReader"]

# Keys that the buffer itself stores or writes into its samples.
OWN_KEYS = (
    "next",
    "successor",
    "window",
    "later",
    "index",
    "steps_to_next_obs",
    "priority_weight",
    "reward",
    "end",
    "done",
    "terminated",
    "truncated",
)


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
        >>> from torchrl_dceo.data.nstep import Columns
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
                raise ValueError(f"The key {name!r} is named twice: remove one of them.")
            root = name if isinstance(name, str) else name[0]
            if root in OWN_KEYS:
                raise ValueError(f"The key {name!r} is written by the buffer: remove it.")
        flat = [name if isinstance(name, str) else ".".join(name) for name in names]
        for name in flat:
            if flat.count(name) > 1:
                raise ValueError(f"Two keys would be saved under the name {name!r}: rename one.")
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
        """A description in plain values, to compare the entries of two buffers."""
        keys = {
            name: [key if isinstance(key, str) else ".".join(key) for key in getattr(self, name)]
            for name in ("observations", "states", "steps")
        }
        return {**keys, "frame_stack": self.frame_stack, "stack_dim": self.stack_dim}


class NStepReader:
    r"""Reads the n-step transition that starts at a row.

    For a step ``t`` it finds ``m``, the number of steps to the next state: ``n``, or less at the end
    of the episode or at the write head. It returns

    .. math:: R = \sum_{i=0}^{m-1} \gamma^i R_{t+i+1}

    and the state :math:`s_{t+m}`, whose value a loss discounts by :math:`\gamma^m`
    (``steps_to_next_obs`` is ``m``). ``terminated`` is true only if the environment terminated
    within these steps: after a truncation, and at the write head, a loss bootstraps.

    Args:
        ring (StreamRing): the positions of the rows.
        columns (Columns): the entries of a row.
        tensors (dict): one tensor per entry; its first dimension is the row.
        n_steps (int): n.
        gamma (float): the discount.
        window (bool, optional): whether to add ``("window", <observation>)`` ``[B, n, ...]``, the
            states :math:`s_{t+1}, \dots, s_{t+n}`, with :math:`s_{t+m}` repeated after ``m``.
        pair_steps (int, optional): if above 1, adds ``("later", <observation>)``, the state this
            many steps later, or the last stored state of the episode.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.data import make_replay_buffer
        >>> rb = make_replay_buffer(100, observation_keys=["observation"], n_steps=3, gamma=0.5)
        >>> steps = TensorDict({"observation": torch.arange(4.0).unsqueeze(1), "action": torch.zeros(4)}, [4])
        >>> steps["next"] = TensorDict({"observation": steps["observation"] + 1}, [4])
        >>> steps["next", "reward"] = torch.ones(4, 1)
        >>> steps["next", "done"] = steps["next", "terminated"] = torch.tensor([[0], [0], [0], [1]]).bool()
        >>> rows = rb.extend(steps)
        >>> batch = rb.transitions()
        >>> batch["next", "reward"].flatten(), batch["next", "observation"].flatten()
        (tensor([1.7500, 1.7500, 1.5000, 1.0000]), tensor([3., 4., 4., 4.]))
        >>> batch["steps_to_next_obs"].flatten(), batch["next", "terminated"].flatten()
        (tensor([3, 3, 2, 1]), tensor([False,  True,  True,  True]))
    """

    def __init__(
        self,
        ring: StreamRing,
        columns: Columns,
        tensors: dict[NestedKey, Tensor],
        n_steps: int,
        gamma: float,
        window: bool = False,
        pair_steps: int = 1,
    ) -> None:
        self.ring = ring
        self.columns = columns
        self.tensors = tensors
        self.window = window
        self._gamma = 1.0
        self.n_steps = n_steps
        self.pair_steps = self._checked_steps("pair_steps", pair_steps)
        self.gamma = gamma

    @property
    def n_steps(self) -> int:
        """The number of steps of a transition, n."""
        return self._n_steps

    @n_steps.setter
    def n_steps(self, value: int) -> None:
        self._n_steps = self._checked_steps("n_steps", value)
        self._set_discounts()

    def _checked_steps(self, name: str, value: int) -> int:
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
        if self.ring.rows_per_stream < value + self.ring.frame_stack + 2:
            raise ValueError(
                f"A ring of {self.ring.rows_per_stream} rows per stream is too short for "
                f"{name}={value} and frame_stack={self.ring.frame_stack}: set capacity to at least "
                f"{(value + self.ring.frame_stack + 2) * self.ring.num_streams}."
            )
        return value

    @property
    def gamma(self) -> float:
        """The discount of the n-step return."""
        return self._gamma

    @gamma.setter
    def gamma(self, value: float) -> None:
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"gamma must lie in [0, 1], got {value}.")
        self._gamma = float(value)
        self._set_discounts()

    def _set_discounts(self) -> None:
        self._discounts = (self._gamma ** np.arange(self._n_steps)).astype(np.float32)

    def read(self, index: Tensor) -> TensorDict:
        """The transitions that start at the rows ``index`` ``[B]``."""
        ring, n, size = self.ring, self._n_steps, index.shape[0]
        rows, count = ring.window(index, n)
        step = np.arange(n)
        inside = step < count
        # Past the window the last step is read again, with weight 0, instead of stale rows.
        item = np.arange(size)[:, None]
        steps = rows[item, np.minimum(step, count - 1)]
        reward = self.tensors["reward"].index_select(0, torch.from_numpy(steps.ravel()))
        reward = reward.view(size, n, *reward.shape[1:])
        weight = torch.from_numpy(inside * self._discounts)
        weight = weight.view(size, n, *[1] * (reward.ndim - 2))
        next_row = rows[item, count][:, 0]
        last_step = torch.from_numpy(steps[:, -1].copy())
        end = self.tensors["end"].index_select(0, last_step)
        first_end = self.tensors["end"].index_select(0, index)
        out: dict[NestedKey, Any] = {"index": index, "steps_to_next_obs": torch.from_numpy(count)}
        following: dict[NestedKey, Tensor] = {
            "reward": (reward * weight).sum(1),
            **_flags(end),
        }
        # The flags of the single step, so that one loss can use single steps and another n steps.
        successor: dict[NestedKey, Tensor] = {**_flags(first_end)}
        window: dict[NestedKey, Tensor] = {}
        later: dict[NestedKey, Tensor] = {}
        for key in self.columns.steps:
            out[key] = self.tensors[key].index_select(0, index)
        # One read for the three states of a transition.
        states = np.concatenate([rows[:, 0], rows[:, 1], next_row])
        for key in self.columns.states:
            value = self.tensors[key].index_select(0, torch.from_numpy(states))
            value = value.view(3, size, *value.shape[1:])
            out[key], successor[key], following[key] = value.unbind(0)
        if self.pair_steps > 1:
            far, far_count = ring.window(index, self.pair_steps)
            states = np.concatenate([states, far[item, far_count][:, 0]])
        for key in self.columns.observations:
            value = self._observe(key, states)
            value = value.view(-1, size, *value.shape[1:])
            out[key], successor[key], following[key] = value[:3].unbind(0)
            if self.pair_steps > 1:
                later[key] = value[3]
        if self.window:
            within = rows[item, np.minimum(step + 1, count)].ravel()
            for key in self.columns.observations:
                value = self._observe(key, within)
                window[key] = value.view(size, n, *value.shape[1:])
        shape = torch.Size([size])
        out["next"] = _tensordict(following, shape)
        out["successor"] = _tensordict(successor, shape)
        if self.window:
            out["window"] = _tensordict(window, shape)
        if later:
            out["later"] = _tensordict(later, shape)
        return _tensordict(out, shape)

    def _observe(self, key: NestedKey, rows: npt.NDArray) -> Tensor:
        if self.columns.frame_stack == 1:
            return self.tensors[key].index_select(0, torch.from_numpy(rows))
        frames = self.ring.frames(rows)
        value = self.tensors[key].index_select(0, torch.from_numpy(frames.ravel()))
        return self.columns.stack(value.view(*frames.shape, *value.shape[1:]))


def _flags(end: Tensor) -> dict[str, Tensor]:
    return {"done": end[:, 0:1], "terminated": end[:, 1:2], "truncated": end[:, 2:3]}


def _tensordict(entries: dict[NestedKey, Any], size: torch.Size) -> TensorDict:
    if not is_fast():
        return TensorDict(entries, batch_size=size)
    # The entries are known to be tensors of `size` rows on one device. The checks of the public
    # constructor would cost as much as reading them.
    flat = {key: value for key, value in entries.items() if isinstance(key, str)}
    batch = TensorDict._new_unsafe(flat, batch_size=size)
    if len(flat) < len(entries):
        for key, value in entries.items():
            if not isinstance(key, str):
                batch.set(key, value)
    return batch
