"""Settings of the process that make small networks fast on a CPU."""

from __future__ import annotations

import ctypes
import importlib.util
import sys

import torch

__all__ = ["tune_process"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def tune_process(num_threads: int = 1) -> None:
    """Prepares this process for training small networks on the CPU.

    One thread: the matrices are too small to share out, and runs go side by side instead. And glibc is told to keep
    the memory that a training step frees: by default a large tensor is given back to the kernel and fetched again,
    page by page, at the next step (15-40 % of an update's time). Without glibc only the threads are set.

    Last, tensordict 0.14 asks whether pandas is installed each time that a module writes its output; where it is not,
    Python searches every folder of its path for it, some 50 µs a module call. That answer is remembered.

    Args:
        num_threads (int, optional): threads of torch's own pool. Default: ``1``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.runtime import tune_process
        >>> tune_process()
        >>> torch.get_num_threads()
        1
    """
    if num_threads < 1:
        raise ValueError(f"num_threads must be at least 1, got {num_threads}")
    torch.set_num_threads(num_threads)
    if sys.platform.startswith("linux"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, 2**30)
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    if "pandas" not in sys.modules and importlib.util.find_spec("pandas") is None:
        # Python's own mark of a module that cannot be imported: a later import fails as it would have anyway.
        sys.modules["pandas"] = None  # type: ignore[assignment]
