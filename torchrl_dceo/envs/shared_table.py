"""A table of integers that several processes count in."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from typing import Any, BinaryIO

import torch
from tensordict import MemoryMappedTensor
from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows: no lock, so count in one process only
    fcntl = None  # type: ignore[assignment]

__all__ = ["SharedTable"]


class SharedTable:
    """An int64 table in a memory-mapped file: whoever unpickles it shares it.

    Environments are sent to worker processes by pickle, which copies tensors in shared memory;
    a file is found again by its name. Additions hold the file's lock, so none is lost, in however
    many processes of this machine. The file is removed when its creator lets go of the table.

    Args:
        size (int): number of entries, all zero at first.

    Examples:
        >>> import pickle, torch
        >>> from torchrl_dceo.envs.shared_table import SharedTable
        >>> table = SharedTable(4)
        >>> other = pickle.loads(pickle.dumps(table))
        >>> other.add(torch.tensor([1, 1, 3]))
        >>> table.values.tolist()
        [0, 2, 0, 1]
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        handle, name = tempfile.mkstemp(prefix="torchrl_dceo_", suffix=".counts")
        os.close(handle)
        # An empty file is removed first: the mapping creates it with the right size.
        os.unlink(name)
        mapped = MemoryMappedTensor.zeros(size, dtype=torch.int64, filename=name)
        self._attach(name, mapped)
        self._finalizer = weakref.finalize(self, _remove, name, os.getpid())

    def _attach(self, name: str, mapped: MemoryMappedTensor) -> None:
        self._name = name
        self.values: Tensor = mapped.as_subclass(torch.Tensor)
        self._file: BinaryIO | None = None
        self._pid = -1

    def add(self, indices: Tensor) -> None:
        """Adds one for each index, repeated ones included."""
        flat = indices.reshape(-1).to(self.values.device)
        ones = torch.ones_like(flat)
        file = self._lock_file()
        if file is None:
            self.values.index_add_(0, flat, ones)
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            self.values.index_add_(0, flat, ones)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _lock_file(self) -> BinaryIO | None:
        if fcntl is None:
            return None
        # A forked child shares its parent's open file and with it the lock: it opens its own.
        if self._file is None or self._pid != os.getpid():
            self._file, self._pid = open(self._name, "rb"), os.getpid()  # noqa: SIM115
        return self._file

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self._name, "size": self.values.numel()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape = torch.Size([state["size"]])
        mapped = MemoryMappedTensor.from_filename(state["name"], torch.int64, shape)
        self._attach(state["name"], mapped)

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedTable:
        # A copy of an environment counts in the same table, as a clone of a transform does.
        return self


def _remove(name: str, creator: int) -> None:
    # A forked child runs its parent's finalizers too.
    if os.getpid() == creator:
        Path(name).unlink(missing_ok=True)
