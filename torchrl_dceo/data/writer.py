"""Storage and writer: write the steps of parallel environments into rows, every frame once."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import MemoryMappedTensor, NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import Writer

from torchrl_dceo.data.nstep import Columns
from torchrl_dceo.data.persistence import load_state, save_state
from torchrl_dceo.data.ring import RingUpdate, StreamRing

__all__ = ["RowStorage", "StreamWriter"]


class RowStorage(Storage):
    """Rows of several columns, each column one tensor on the CPU.

    TorchRL's storages return rows. A transition here needs the rewards of n rows, the observations of three and the
    action of one, so the columns are public: :attr:`tensors`. They are allocated at the first write; rows that are
    never written need no memory.

    Args:
        max_size (int): the number of rows.

    Keyword Args:
        in_files (bool, optional): whether columns are mapped from files. Default: ``False``.
        scratch_dir (path-like, optional): the directory of these files. Default: a temporary one.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.data.writer import RowStorage
        >>> storage = RowStorage(1000)
        >>> storage.set(torch.tensor([3, 5]), TensorDict({"x": torch.tensor([1.0, 2.0])}, [2]))
        >>> storage[5]["x"], storage.tensors["x"].shape
        (tensor(2.), torch.Size([1000]))
    """

    device = torch.device("cpu")

    def __init__(
        self,
        max_size: int,
        *,
        in_files: bool = False,
        scratch_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(max_size)
        self.in_files = in_files
        self.scratch_dir = None if scratch_dir is None else Path(scratch_dir)
        self.tensors: dict[NestedKey, Tensor] = {}
        self.edits = 0  # writes that bypass the ring
        self._maps: list[MemoryMappedTensor] = []  # what keeps the mappings open

    def allocate(self, rows: dict[NestedKey, Tensor]) -> None:
        """Allocates the columns from an example of their rows, ``[K, ...]`` each."""
        for key, value in rows.items():
            shape = torch.Size([self.max_size, *value.shape[1:]])
            if not self.in_files:
                self.tensors[key] = torch.empty(shape, dtype=value.dtype)
                continue
            file = None
            if self.scratch_dir is not None:
                self.scratch_dir.mkdir(parents=True, exist_ok=True)
                name = key if isinstance(key, str) else ".".join(key)
                file = str(self.scratch_dir / f"{name}.memmap")
            # The files of a resumed run exist; they are overwritten from its checkpoint.
            mapped = MemoryMappedTensor.empty(
                shape, dtype=value.dtype, filename=file, existsok=True
            )
            self._maps.append(mapped)
            # An ordinary tensor on the same memory: indexing a memory-mapped one is slower.
            self.tensors[key] = mapped.as_subclass(torch.Tensor)

    def set(
        self,
        cursor: int | Sequence[int] | slice | Tensor,
        data: TensorDictBase,
        *,
        set_cursor: bool = True,
    ) -> None:
        """Writes rows."""
        self.edits += 1
        entries = {key: data.get(key) for key in data.keys(True, True)}
        if not self.tensors:
            single = isinstance(cursor, int)
            self.allocate({key: v.unsqueeze(0) if single else v for key, v in entries.items()})
        for key, value in entries.items():
            self.tensors[key][cursor] = value

    def get(self, index: int | Sequence[int] | slice | Tensor) -> TensorDict:
        """Reads rows."""
        if not self.tensors:
            raise RuntimeError("The storage has no row yet: write one first.")
        rows = {key: value[index] for key, value in self.tensors.items()}
        key, first = next(iter(rows.items()))
        dims = first.ndim - (self.tensors[key].ndim - 1)
        out = TensorDict({}, batch_size=first.shape[:dims])
        for key, value in rows.items():
            out.set(key, value)
        return out

    def __len__(self) -> int:
        # Each stream fills its own region, so all rows can be addressed after the first write.
        return self.max_size if self.tensors else 0

    def state_dict(self) -> dict[str, Any]:
        """All rows; a buffer saves only those that were written."""
        return {
            key if isinstance(key, str) else ".".join(key): v for key, v in self.tensors.items()
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the rows of a storage of the same columns."""
        self.edits += 1
        for key, value in self.tensors.items():
            value.copy_(state_dict[key if isinstance(key, str) else ".".join(key)])

    def dumps(self, path: Any) -> None:
        """Saves the rows in the directory ``path``, without pickle."""
        save_state(path, self.state_dict())

    def loads(self, path: Any) -> None:
        """Restores the rows from the directory ``path``."""
        self.load_state_dict(load_state(path))

    def _empty(self) -> None:
        """Does nothing: rows stay allocated, and the ring tracks which are valid."""


class StreamWriter(Writer):
    """Writes batches of steps ``[*E, T]`` (environments first, time last), one stream per environment.

    A row contains the root entries of a step and its reward and end flags. ``("next", <observation>)``
    is not stored, since it is the next row's observation; only at the end of an episode it gets a
    row of its own. Built by :func:`~torchrl_dceo.data.make_replay_buffer`.

    Args:
        ring (StreamRing): the positions of the rows.
        columns (Columns): the stored entries.
        init_key (NestedKey, optional): marks the first step of an episode; used if present, to
            detect interrupted episodes (a reset without an end). Defaults to ``"is_init"``.

    Examples:
        >>> from torchrl_dceo.data import make_replay_buffer
        >>> rb = make_replay_buffer(100, observation_keys=["observation"])
        >>> type(rb.writer).__name__
        'StreamWriter'
    """

    def __init__(self, ring: StreamRing, columns: Columns, init_key: NestedKey = "is_init") -> None:
        super().__init__()
        self.ring = ring
        self.columns = columns
        self.init_key = init_key
        self.storage: RowStorage
        self.last_update: RingUpdate | None = None
        self._write_count = 0

    def register_storage(self, storage: Storage) -> None:
        """Binds the writer to the storage of its buffer."""
        if not isinstance(storage, RowStorage):
            raise TypeError(
                f"StreamWriter writes columns into a RowStorage on the CPU, got a {type(storage).__name__}"
            )
        if storage.max_size < self.ring.rows_per_stream * self.ring.num_streams:
            raise ValueError(
                f"The storage has {storage.max_size} rows, the ring "
                f"{self.ring.rows_per_stream * self.ring.num_streams}: give both the same number."
            )
        super().register_storage(storage)
        self.storage = storage

    @property
    def tensors(self) -> dict[NestedKey, Tensor]:
        """The columns of the storage."""
        return self.storage.tensors

    def add(self, data: TensorDictBase) -> Tensor:
        """Writes one step of every environment, ``[*E]``."""
        return self.extend(data.unsqueeze(-1)).squeeze(-1)

    def extend(self, data: TensorDictBase, streams: Sequence[int] | None = None) -> Tensor:
        """Writes ``T`` steps of every environment and returns their rows, in the shape of ``data``.

        Args:
            data (TensorDictBase): steps in the layout of a collector, ``[*E, T]``.
            streams (sequence of int, optional): the streams of the environments, for a batch that
                contains only some of them. Default: all, in order.
        """
        ring = self.ring
        which = None if streams is None else self._check_streams(streams)
        num = ring.num_streams if which is None else which.size
        time = self._check_shape(data, num)
        following = self._get(data, "next")

        ends = self._get(following, "done", "next").reshape(num, time).numpy()
        starts = data.get(self.init_key, None)
        if starts is not None:
            starts = starts.cpu().reshape(num, time).numpy()
            # An episode interrupted within the batch: its last observation is known, so it is kept.
            ends = ends.copy()
            ends[:, :-1] |= starts[:, 1:]
        root = self._root_rows(data, following, num * time)
        any_end = ends.any()
        if any_end or not self.tensors:
            final = self._final_rows(following, num * time)
        if not self.tensors:
            self.storage.allocate(root)
        self.check_rows(root)
        if ring.frame_stack > 1:
            self._write_lead_in(data, which, num)
        update = ring.advance(ends, starts, which)
        index = update.rows.view(-1)
        for key, value in root.items():
            self.tensors[key].index_copy_(0, index, value)
        if any_end:
            ended = torch.from_numpy(ends.ravel())
            for key, value in final.items():
                self.tensors[key].index_copy_(0, update.final_rows, value[ended])
            self._clear_rest(update.final_rows, final)
        self.last_update = update
        self._write_count += num * time
        return update.rows.reshape(data.batch_size)

    def _root_rows(
        self, data: TensorDictBase, following: TensorDictBase, count: int
    ) -> dict[NestedKey, Tensor]:
        dims, columns = data.ndim, self.columns
        rows: dict[NestedKey, Tensor] = {}
        for key in columns.observations:
            rows[key] = _flat(columns.newest_frame(self._get(data, key)), dims, count)
        for key in (*columns.states, *columns.steps):
            rows[key] = _flat(self._get(data, key), dims, count)
        rows["reward"] = _flat(self._get(following, "reward", "next"), dims, count)
        done = self._get(following, "done", "next").reshape(count)
        terminated = self._get(following, "terminated", "next").reshape(count)
        truncated = following.get("truncated", None)
        truncated = done & ~terminated if truncated is None else truncated.cpu().reshape(count)
        rows["end"] = torch.stack([done, terminated, truncated], 1)
        return rows

    def _final_rows(self, following: TensorDictBase, count: int) -> dict[NestedKey, Tensor]:
        dims, columns = following.ndim, self.columns
        rows: dict[NestedKey, Tensor] = {}
        for key in columns.observations:
            rows[key] = _flat(columns.newest_frame(self._get(following, key, "next")), dims, count)
        for key in columns.states:
            rows[key] = _flat(self._get(following, key, "next"), dims, count)
        return rows

    def _write_lead_in(self, data: TensorDictBase, which: npt.NDArray | None, num: int) -> None:
        streams = np.arange(num) if which is None else which
        empty = self.ring.head[streams] == 0
        if not empty.any():
            return
        rows = self.ring.lead_in(streams[empty]).flatten()
        self._clear_rest(rows, self.columns.observations)
        for key in self.columns.observations:
            value = self._get(data, key)
            first = value.reshape(num, -1, *value.shape[data.ndim :])[torch.from_numpy(empty), 0]
            self.tensors[key][rows] = self.columns.older_frames(first).flatten(0, 1)

    def _clear_rest(self, rows: Tensor, written: Collection[NestedKey]) -> None:
        # Never read, but saved: equal buffers must be equal in all bytes.
        for key, held in self.tensors.items():
            if key not in written:
                held.index_fill_(0, rows, 0)

    @staticmethod
    def _get(data: TensorDictBase, key: NestedKey, parent: str = "") -> Tensor:
        value = data.get(key, None)
        if value is None:
            name = (parent, key) if parent else key
            raise KeyError(f"The batch has no entry {name!r}, which the replay buffer stores.")
        return value.cpu()

    def _check_shape(self, data: TensorDictBase, num: int) -> int:
        if not data.ndim or data.shape[:-1].numel() != num:
            raise ValueError(
                f"Expected a batch of {num} stream(s) with time last, [*E, T] with E = {num}, got the "
                f"shape {list(data.shape)}: set num_streams to the number of environments."
            )
        if not 1 <= data.shape[-1] <= self.ring.max_steps:
            raise ValueError(
                f"A batch of {data.shape[-1]} steps per stream does not fit a ring of "
                f"{self.ring.rows_per_stream} rows per stream, which accepts 1 to {self.ring.max_steps} "
                "steps at once: raise the capacity or write smaller batches."
            )
        return data.shape[-1]

    def _check_streams(self, streams: Sequence[int]) -> npt.NDArray:
        which = np.asarray(streams, dtype=np.int64).ravel()
        known = (which >= 0) & (which < self.ring.num_streams)
        if not which.size or not known.all() or np.unique(which).size != which.size:
            raise ValueError(
                f"streams must be different numbers from 0 to {self.ring.num_streams - 1}, got "
                f"{which.tolist()}."
            )
        return which

    def check_rows(self, rows: dict[NestedKey, Tensor]) -> None:
        """Raises an error if rows do not match the stored ones."""
        for key, value in rows.items():
            held = self.tensors[key]
            if value.dtype != held.dtype or value.shape[1:] != held.shape[1:]:
                raise ValueError(
                    f"The entry {key!r} has dtype {value.dtype} and shape {tuple(value.shape[1:])} a "
                    f"row, but the buffer holds {held.dtype} and {tuple(held.shape[1:])}."
                )

    def _empty(self, empty_write_count: bool = True) -> None:
        self.ring.clear()
        if empty_write_count:
            self._write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """The ring's state and the number of steps ever written."""
        return {"ring": self.ring.state_dict(), "write_count": self._write_count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state."""
        self.ring.load_state_dict(state_dict["ring"])
        self._write_count = state_dict["write_count"]

    def dumps(self, path: Any) -> None:
        """Saves the state in the directory ``path``."""
        save_state(path, self.state_dict())

    def loads(self, path: Any) -> None:
        """Restores the state from the directory ``path``."""
        self.load_state_dict(load_state(path))


def _flat(value: Tensor, dims: int, count: int) -> Tensor:
    return value.reshape(count, *value.shape[dims:])
