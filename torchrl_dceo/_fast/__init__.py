"""Private optimisations: the same results in less time, behind one switch.

With the switch off the code of TorchRL and torch runs instead: ``QValueActor``, ``DQNLoss``,
``DistributionalDQNLoss``, ``TensorDictSequential``, ``to_module``, the layers of a convolutional network one by one.
Set the environment variable ``TORCHRL_DCEO_FAST=0`` before the process starts (worker processes inherit it), or call
:func:`fast_path` at any time.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import torch
from tensordict import TensorDictBase

__all__ = [
    "batches_ahead",
    "fast_path",
    "is_fast",
    "settled_objects",
    "tune_process",
]

VARIABLE = "TORCHRL_DCEO_FAST"


def _from_environment() -> bool:
    value = os.environ.get(VARIABLE, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{VARIABLE} must be 0 or 1, got {value!r}")
    return value == "1"


_enabled = _from_environment()


def is_fast() -> bool:
    """Whether the optimisations are on in this process.

    Examples:
        >>> from torchrl_dceo._fast import fast_path, is_fast
        >>> with fast_path(False):
        ...     is_fast()
        False
    """
    return _enabled


class fast_path:
    """Turns all optimisations of this process on or off, permanently or within a ``with`` block.

    Args:
        enabled (bool): whether they are on.

    Examples:
        >>> from torchrl_dceo._fast import fast_path, is_fast
        >>> before = is_fast()
        >>> with fast_path(not before):
        ...     is_fast() == before
        False
        >>> is_fast() == before
        True
    """

    def __init__(self, enabled: bool) -> None:
        global _enabled
        self._before = _enabled
        _enabled = bool(enabled)

    def __enter__(self) -> None:
        """The constructor has set the switch."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restores the previous setting."""
        global _enabled
        _enabled = self._before


def moved(batch: TensorDictBase, device: torch.device) -> TensorDictBase:
    """Moves a batch to another device as one block, from pinned memory for CUDA.

    Args:
        batch (TensorDictBase): a batch on the CPU.
        device (torch.device): the target device.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo._fast import moved
        >>> batch = TensorDict({"pixels": torch.zeros(2, 3), "next": {"reward": torch.ones(2)}}, [2])
        >>> moved(batch, torch.device("meta"))["next", "reward"].device
        device(type='meta')
    """
    if device.type == "cpu":
        return batch
    pinned = device.type == "cuda"
    block = batch.consolidate(pin_memory=pinned)
    # Copies the structure: that of the block is locked, and the losses write into a batch.
    return block.to(device, non_blocking=pinned or None).copy()


def batches_ahead(
    sample: Callable[[], TensorDictBase], count: int, device: torch.device
) -> Iterator[TensorDictBase]:
    """Yields ``count`` batches; a thread samples and moves each one during the update on the previous one.

    Batches and order are the same as without the thread, as long as only ``sample`` uses its generator and nothing is
    stored in between. Written for GPUs, not measured on one.

    Args:
        sample (callable): samples a batch on the CPU.
        count (int): number of batches; no more are sampled.
        device (torch.device): the target device.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo._fast import batches_ahead
        >>> draws = iter(range(5))
        >>> sample = lambda: TensorDict({"draw": torch.tensor([next(draws)])}, [1])
        >>> [batch["draw"].item() for batch in batches_ahead(sample, 3, torch.device("cpu"))]
        [0, 1, 2]
        >>> next(draws)
        3
    """
    if count < 1:
        return
    with ThreadPoolExecutor(1, "batches") as thread:
        drawn = thread.submit(lambda: moved(sample(), device))
        for left in reversed(range(count)):
            batch = drawn.result()
            if left:
                drawn = thread.submit(lambda: moved(sample(), device))
            yield batch


_M_MXFAST, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = 1, -1, -3


_HUGE_STRETCH = 2**28  # bytes


def tune_process(num_threads: int = 1) -> None:
    """Prepares this process for training small networks on the CPU.

    One thread: the matrices are too small to divide, and runs can use the cores in parallel instead. glibc keeps the
    memory that a training step frees: by default it returns a large tensor's memory to the kernel and allocates it
    again, page by page, at the next step (15-40 % of an update's time). New memory consists of huge pages where the
    kernel offers them, because an update touches more memory than the TLB covers with pages of 4 KiB (2-4 % of its
    time). Without glibc only the threads are set; with the optimisations switched off, nothing.

    Args:
        num_threads (int, optional): number of torch's threads. Default: ``1``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo._fast import tune_process
        >>> tune_process()
        >>> torch.get_num_threads()
        1
    """
    if num_threads < 1:
        raise ValueError(f"num_threads must be at least 1, got {num_threads}")
    if not is_fast():
        return
    torch.set_num_threads(num_threads)
    if sys.platform.startswith("linux"):
        _keep_memory()


class settled_objects:
    """Excludes all existing objects from Python's garbage collection within the context.

    A trained agent and its libraries are some hundred thousand objects. The garbage collector would traverse them
    repeatedly because of the few objects that an update leaves (3 % of its time).

    Examples:
        >>> import gc
        >>> from torchrl_dceo._fast import fast_path, settled_objects
        >>> with fast_path(True), settled_objects():
        ...     gc.get_freeze_count() > 0
        True
        >>> gc.get_freeze_count()
        0
    """

    def __enter__(self) -> None:
        """Freezes them, unless objects are already frozen or the optimisations are off."""
        self._frozen = is_fast() and gc.get_freeze_count() == 0
        if self._frozen:
            gc.freeze()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Unfreezes them."""
        if self._frozen:
            gc.unfreeze()


def _keep_memory() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_M_MMAP_THRESHOLD, 2**30)
    libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    # No fast bins besides the caches of the threads: they would be merged before every large allocation.
    libc.mallopt(_M_MXFAST, 0)
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    # Extends the heap, marks the new part, and frees it at once: so far it is address space, not memory.
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = libc.malloc(_HUGE_STRETCH)
    if start is not None:
        begin = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (start + _HUGE_STRETCH - begin) // mmap.PAGESIZE * mmap.PAGESIZE
        libc.madvise(begin, length, mmap.MADV_HUGEPAGE)
        libc.free(start)
