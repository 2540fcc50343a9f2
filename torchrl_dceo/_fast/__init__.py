"""Private optimisations: the same numbers in less time, all of them behind one switch.

With the switch off TorchRL's and torch's own paths run instead: ``QValueActor``, ``DQNLoss``,
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
    """Turns all optimisations of this process on or off: for good, or for the length of a ``with`` block.

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
        """The switch was set when the object was made."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restores what was before."""
        global _enabled
        _enabled = self._before


def moved(batch: TensorDictBase, device: torch.device) -> TensorDictBase:
    """A batch on another device, where it goes as one block, from pinned memory if that is an accelerator.

    Args:
        batch (TensorDictBase): a batch on the CPU.
        device (torch.device): where it is wanted.

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
    # A copy of the structure: the block's own is locked, and the losses write into a batch.
    return block.to(device, non_blocking=pinned).copy()


def batches_ahead(
    sample: Callable[[], TensorDictBase], count: int, device: torch.device
) -> Iterator[TensorDictBase]:
    """So many batches on an accelerator, each drawn and moved by a thread while the one before it is learned from.

    The same batches in the same order as without the thread, as long as nothing but ``sample`` uses its generator and
    nothing is stored in between. Written for GPUs and not measured on one.

    Args:
        sample (callable): draws a batch on the CPU.
        count (int): how many; not one more is drawn.
        device (torch.device): where they are wanted.

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

    One thread: the matrices are too small to share out, and runs go side by side instead. And glibc keeps
    the memory that a training step frees: by default a large tensor is given back to the kernel and fetched again,
    page by page, at the next step (15-40 % of an update's time). What it fetches from then on are huge pages where the
    kernel offers them, as an update walks through more memory than a CPU can translate quickly in pages of 4 KiB (2-4 %
    of its time). Without glibc only the threads are set, and with the optimisations switched off nothing is.

    Args:
        num_threads (int, optional): threads of torch's own pool. Default: ``1``.

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
    """Keeps what exists now out of Python's garbage collection while the context lasts.

    A trained agent and its libraries are some hundred thousand objects, which the collector would walk through again
    and again because of the few that an update leaves (3 % of its time).

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
        """Sets them aside, unless somebody has done so already or the optimisations are off."""
        self._frozen = is_fast() and gc.get_freeze_count() == 0
        if self._frozen:
            gc.freeze()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives them back."""
        if self._frozen:
            gc.unfreeze()


def _keep_memory() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_M_MMAP_THRESHOLD, 2**30)
    libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    # No bins for small pieces besides those of each thread: before every large allocation they would be merged.
    libc.mallopt(_M_MXFAST, 0)
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    # The heap is stretched, its new part marked, and freed at once: so far it is addresses only, no memory.
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
