"""The ring buffers of a replay buffer's rows: one ring per stream of experience."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchrl_dceo._fast import is_fast

__all__ = ["RingUpdate", "StreamRing"]

_HISTORIES = itertools.count()


class RingUpdate(NamedTuple):
    """The result of :meth:`StreamRing.advance`.

    Attributes:
        rows: the row of each new step, ``[S, T]``.
        final_rows: the rows of the final observations, one per true entry of ``ends`` (row-major).
        changed: rows that can now, or can no longer, be sampled; it may include unchanged rows.
        live: whether each of ``changed`` can be sampled now.
    """

    rows: Tensor
    final_rows: Tensor
    changed: Tensor
    live: Tensor


class StreamRing:
    """Book-keeping of ``num_streams`` rings of rows, each with its own write head.

    A stream is the experience of one environment. Its rows are consecutive states: row ``r + 1`` is
    the state after row ``r``. At the end of an episode a *final* row stores the last observation; it
    has no action, so it is never sampled. Because of final rows the streams advance unevenly, so
    each has its own head.

    A row can be sampled if it is a step (not final), if it is not the newest row of its stream
    (whose successor is unknown), and, with stacked frames, if the previous frames are still stored.
    The rows that can be sampled are always a contiguous range of the steps of a stream, so uniform
    sampling is exact index arithmetic without rejection.

    The arrays are small and on the CPU, where NumPy calls are much cheaper than torch calls. Hence
    NumPy inside, tensors outside.

    Args:
        rows_per_stream (int): the length of each ring.
        num_streams (int, optional): the number of rings. Defaults to ``1``.
        frame_stack (int, optional): the number of rows, its own included, that a state depends on
            within its episode. Defaults to ``1``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.data.ring import StreamRing
        >>> ring = StreamRing(rows_per_stream=8)
        >>> update = ring.advance(torch.tensor([[False, True, False]]))
        >>> update.rows, update.final_rows  # the episode that ended after step 1 has its last frame in row 2
        (tensor([[0, 1, 3]]), tensor([2]))
        >>> ring.sampleable()  # the newest row, 3, has no successor yet
        tensor([0, 1])
    """

    # The state, saved and restored one by one.
    _STATE = ("head", "steps", "oldest", "first", "open", "next_age", "final", "age", "step_row")

    def __init__(self, rows_per_stream: int, num_streams: int = 1, frame_stack: int = 1) -> None:
        self.rows_per_stream = rows_per_stream
        self.num_streams = num_streams
        self.frame_stack = frame_stack
        # The largest batch, in steps: even if all of them end an episode, the previous newest row and
        # the frames behind the oldest row stay clear of the head.
        self.max_steps = (rows_per_stream - frame_stack) // 2
        self._base = np.arange(num_streams) * rows_per_stream
        self._behind = np.arange(frame_stack - 1)
        self.clear()

    def clear(self) -> None:
        """Removes all rows."""
        self._history = next(_HISTORIES)
        streams, rows = self.num_streams, self.num_streams * self.rows_per_stream
        # Rows and steps are counted from the first one ever written; positions are modulo the ring's length.
        self.head = np.zeros(streams, dtype=np.int64)  # rows written
        self.steps = np.zeros(streams, dtype=np.int64)  # steps written
        self.oldest = np.zeros(streams, dtype=np.int64)  # the oldest step still there
        self.first = np.zeros(streams, dtype=np.int64)  # the oldest step with all its frames
        self.open = np.zeros(streams, dtype=np.bool_)  # whether the newest row is a step
        self.next_age = np.zeros(streams, dtype=np.int64)  # the age of the row to come
        # Rows that were never written count as final: they are not steps.
        self.final = np.ones(rows, dtype=np.bool_)
        # Rows since the start of the episode, as far as the stack reaches.
        self.age = np.zeros(rows if self.frame_stack > 1 else 0, dtype=np.uint8)
        self.step_row = np.zeros(rows, dtype=np.int32)  # step -> row
        self._count()

    def _count(self) -> None:
        sizes = self.steps - self.open - self.first
        self._cumulated = sizes.cumsum()
        self._offset = self.first - self._cumulated + sizes
        self.size = int(self._cumulated[-1])

    def lead_in(self, streams: npt.NDArray) -> Tensor:
        """Reserves rows for the older frames of the first observation of empty ``streams``.

        A buffer may start in the middle of an episode, where the first stack contains frames without
        a row.

        Returns:
            The rows ``[S, frame_stack - 1]``, oldest frame first; they are never sampled.
        """
        rows = self._base[streams, None] + self._behind
        self.age[rows] = self._behind
        self.head[streams] += self.frame_stack - 1
        self.next_age[streams] = self.frame_stack - 1
        return torch.from_numpy(rows)

    def advance(
        self,
        ends: Tensor | npt.NDArray,
        starts: Tensor | npt.NDArray | None = None,
        streams: npt.NDArray | None = None,
    ) -> RingUpdate:
        """Reserves rows for the next ``T`` steps of each stream and advances the heads.

        Args:
            ends (Tensor or array): whether an episode ends with the step, bool ``[S, T]``.
            starts (Tensor or array, optional): whether an episode starts with the step, bool ``[S, T]``. Only
                needed to detect interrupted episodes (a reset without an end).
            streams (array, optional): the streams of the batch, int64 ``[S]``. Default: all.

        Returns:
            A :class:`RingUpdate`.
        """
        end, length = np.asarray(ends), self.rows_per_stream
        if streams is None and is_fast() and self._is_plain(end, starts):
            return self._append(end.shape[1])
        sel: slice | npt.NDArray = slice(None) if streams is None else streams
        base, head, steps = self._base[sel], self.head[sel], self.steps[sel]
        was_open = self.open[sel].copy()
        newest = base + (head - 1) % length
        if starts is not None:
            # Interrupted between two batches: the newest row never gets a successor. Its action is
            # lost, but it is still the last state of the episode.
            cut = np.asarray(starts)[:, 0] & was_open
            self.final[newest] |= cut
            was_open &= ~cut
            steps = steps - cut
        time = np.arange(end.shape[1])
        virtual = head[:, None] + time + end.cumsum(1) - end
        rows = base[:, None] + virtual % length
        final_rows = (base[:, None] + (virtual + 1) % length)[end]

        # Steps that are overwritten.
        dropped = (~self.final[rows]).sum(1)
        if final_rows.size:
            run_over = np.zeros(end.shape, dtype=np.int64)
            run_over[end] = ~self.final[final_rows]
            dropped += run_over.sum(1)
        self.final[rows] = False
        self.final[final_rows] = True
        self.step_row[base[:, None] + (steps[:, None] + time) % length] = rows

        open_now = ~end[:, -1]
        oldest = self.oldest[sel] + dropped
        self.steps[sel] = steps + end.shape[1]
        self.head[sel] = head = virtual[:, -1] + 2 - open_now
        self.open[sel] = open_now
        self.oldest[sel] = self.first[sel] = oldest
        live = np.ones(end.shape, dtype=np.bool_)
        live[:, -1] = ~open_now
        changed, alive = [newest, rows.ravel(), final_rows], [was_open, live.ravel()]
        if self.frame_stack > 1:
            self._set_ages(sel, rows, final_rows, end, starts, time)
            # The first rows behind the head may have lost frames of their stack.
            tail = np.maximum(head - length, 0)[:, None] + self._behind
            tail_rows = base[:, None] + tail % length
            lost = ~self.final[tail_rows] & (self.age[tail_rows] > self._behind)
            self.first[sel] = oldest + lost.sum(1)
            changed.append(tail_rows[lost])
        self._count()
        changed_rows = np.concatenate(changed)
        all_live = np.zeros(changed_rows.shape, dtype=np.bool_)
        np.concatenate(alive, out=all_live[: newest.size + rows.size])
        return RingUpdate(*map(torch.from_numpy, (rows, final_rows, changed_rows, all_live)))

    def _is_plain(self, end: npt.NDArray, starts: Tensor | npt.NDArray | None) -> bool:
        """Whether the next rows of every stream were never written."""
        return (
            self.frame_stack == 1
            and not end.any()
            and (starts is None or not np.asarray(starts)[:, 0].any())
            and int(self.head.min()) > 0
            and int(self.head.max()) + end.shape[1] <= self.rows_per_stream
        )

    def _append(self, time: int) -> RingUpdate:
        """:meth:`advance` in the simple case: no row is overwritten, no episode ends, no head wraps around."""
        streams = self.num_streams
        newest = self._base + (self.head - 1)
        following = np.arange(time)
        rows = (newest + 1)[:, None] + following
        changed = np.empty(streams * (time + 1), dtype=np.int64)
        changed[:streams], changed[streams:] = newest, rows.ravel()
        live = np.ones((streams, time), dtype=np.bool_)
        live[:, -1] = False
        self.final[changed[streams:]] = False
        self.step_row[(self._base + self.steps)[:, None] + following] = rows
        alive = np.concatenate([self.open, live.ravel()])
        self.steps += time
        self.head += time
        self.open[:] = True
        self._count()
        none = np.empty(0, dtype=np.int64)
        return RingUpdate(*map(torch.from_numpy, (rows, none, changed, alive)))

    def _set_ages(
        self,
        sel: slice | npt.NDArray,
        rows: npt.NDArray,
        final_rows: npt.NDArray,
        end: npt.NDArray,
        starts: Tensor | npt.NDArray | None,
        time: npt.NDArray,
    ) -> None:
        begins = np.zeros_like(end)
        begins[:, 1:] = end[:, :-1]
        if starts is not None:
            begins |= np.asarray(starts)
        since = np.maximum.accumulate(np.where(begins, time, -self.next_age[sel][:, None]), 1)
        oldest_frame = self.frame_stack - 1
        age = np.minimum(time - since, oldest_frame)
        after = np.minimum(age + 1, oldest_frame)
        self.age[rows] = age
        self.age[final_rows] = after[end]
        self.next_age[sel] = np.where(end[:, -1], 0, after[:, -1])

    def _row_of_rank(self, rank: npt.NDArray) -> Tensor:
        stream = self._cumulated.searchsorted(rank, side="right")
        step = rank + self._offset[stream]
        rows = self.step_row[self._base[stream] + step % self.rows_per_stream]
        return torch.from_numpy(rows.astype(np.int64))

    def draw(self, batch_size: int, generator: torch.Generator | None) -> Tensor:
        """Draws rows uniformly, with replacement, from all that can be sampled."""
        return self._row_of_rank(
            torch.randint(self.size, (batch_size,), generator=generator).numpy()
        )

    def sampleable(self) -> Tensor:
        """All rows that can be sampled, stream by stream, oldest first."""
        return self._row_of_rank(np.arange(self.size))

    def window(self, index: Tensor, n_steps: int) -> tuple[npt.NDArray, npt.NDArray]:
        r"""The rows of the states from :math:`s_t` on, and how many of them belong together.

        Args:
            index (Tensor): the rows of :math:`s_t`, ``[B]``.
            n_steps (int): how far to look.

        Returns:
            The rows ``[B, n_steps + 1]`` of :math:`s_t, s_{t+1}, \dots`, and m ``[B, 1]``, the number
            of steps until the episode's last observation or the newest row, at most ``n_steps``.
            Rows after the m-th do not belong to the window.
        """
        length, row = self.rows_per_stream, index.numpy()
        stream = row // length
        base = self._base[stream]
        place = row - base
        ahead = np.arange(n_steps + 1)
        rows = (place[:, None] + ahead) % length + base[:, None]
        # The rows after the newest one are old.
        to_newest = (self.head[stream] - 1 - place) % length
        stop = self.final[rows[:, 1:]] | (ahead[1:] >= to_newest[:, None])
        stop[:, -1] = True
        return rows, stop.argmax(1)[:, None] + 1

    def frames(self, rows: npt.NDArray) -> npt.NDArray:
        """The rows ``[K, frame_stack]`` of the frames of the states at ``rows``, oldest first.

        Before the first frame of an episode that frame is repeated, as after a reset.
        """
        length = self.rows_per_stream
        base = (rows // length * length)[:, None]
        back = np.minimum(np.arange(self.frame_stack - 1, -1, -1), self.age[rows][:, None])
        return (rows[:, None] - base - back) % length + base

    def mark(self, start: int, stop: int) -> Hashable:
        """Identifies the content of the rows ``start`` to ``stop`` of all streams: equal until one is written.

        Rows are written in order and not changed until the head wraps around. So the number of rows ever written into
        a range identifies them, until the ring is cleared or loaded.
        """
        rounds, place = np.divmod(self.head, self.rows_per_stream)
        written = rounds * (stop - start) + np.clip(place - start, 0, stop - start)
        return self._history, start, stop, written.tobytes()

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors (not copies)."""
        return {name: torch.from_numpy(getattr(self, name)) for name in self._STATE}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state taken from a ring of the same shape."""
        self._history = next(_HISTORIES)
        for name in self._STATE:
            getattr(self, name)[:] = state_dict[name].numpy()
        self._count()
