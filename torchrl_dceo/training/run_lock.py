"""One run, one directory: a lock that dies with its process."""

from __future__ import annotations

import os
from io import TextIOWrapper
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where two runs are not kept apart
    fcntl = None  # type: ignore[assignment]

__all__ = ["RunLock"]


class RunLock:
    """Keeps a second run out of a run directory while the first is alive.

    The kernel holds the lock and lets go of it when the process ends, however it ends. So the file that a killed run
    leaves behind bars nobody, and no process number is mistaken for another's. The number is in the file for the
    message.

    Args:
        path (path-like): the run directory.

    Examples:
        >>> import tempfile
        >>> from torchrl_dceo.training.run_lock import RunLock
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first, second = RunLock(folder), RunLock(folder)
        ...     first.acquire()
        ...     try:
        ...         second.acquire()
        ...     except RuntimeError as error:
        ...         print(str(error).split(": ")[1])
        ...     first.release()
        ...     second.acquire()
        ...     second.release()
        wait for it or choose another run_dir
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path) / "run.lock"
        self._file: TextIOWrapper | None = None

    def acquire(self) -> None:
        """Takes the lock, or says who has it. Taking it twice is fine."""
        if self._file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+")
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                file.close()
                raise RuntimeError(
                    f"{self.path.parent} is being written by the run of process {holder}: wait for it or "
                    "choose another run_dir"
                ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Lets go of it. The file stays: removing it would race with who takes it next."""
        if self._file is not None:
            self._file.close()
            self._file = None
