"""What an executor is, and the one of this machine."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torchrl_dceo.studies import worker
from torchrl_dceo.studies.worker import GRACE, how_it_ended

__all__ = [
    "Executor",
    "Handle",
    "LocalExecutor",
    "needed",
    "worker_command",
]


class Handle(Protocol):
    """One worker that was started."""

    def ended(self) -> str | None:
        """``None`` while the worker lives or waits; then how it ended, in words."""


class Executor(ABC):
    """Starts the workers of a study, somewhere.

    A worker does the run of a folder and writes how it ended into it (:mod:`torchrl_dceo.studies.worker`), so all that
    an executor has to know of a run is whether its worker has ended.

    Attributes:
        capacity (int or None): how many workers may be under way at a time; ``None``: whoever gets them decides.
        outlives (bool): whether workers go on when the study's own process ends.
    """

    capacity: int | None = None
    outlives: bool = False

    @abstractmethod
    def start(self, folders: Sequence[Path]) -> list[Handle]:
        """Starts a worker for each folder."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the workers that are under way and waits for them, unless they outlive the study."""


def worker_command(folder: Path) -> list[str]:
    """The command of a worker that ends when the process that starts it does."""
    return [sys.executable, worker.__file__, str(folder), str(os.getpid())]


def needed(package: str, extra: str) -> Any:
    """Imports a package that an executor stands on.

    Raises:
        ImportError: with the name of the extra, if it is not installed.

    Examples:
        >>> from torchrl_dceo.studies.executors.local import needed
        >>> needed("no_such_queue", "slurm")
        Traceback (most recent call last):
        ImportError: --executor slurm needs no_such_queue: pip install 'torchrl-dceo[slurm]'
    """
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ImportError(
            f"--executor {extra} needs {package}: pip install 'torchrl-dceo[{extra}]'"
        ) from None


class LocalExecutor(Executor):
    """A process for each run, so many at a time.

    They are in sessions of their own: Ctrl-C reaches the study alone, which then ends them one by one. And they end
    when the study is killed, by the kernel's hand (on Linux).

    Args:
        jobs (int, optional): how many at a time. Default: ``2``.

    Examples:
        >>> from torchrl_dceo.studies.executors import LocalExecutor
        >>> LocalExecutor(jobs=4).capacity
        4
        >>> LocalExecutor(jobs=0)
        Traceback (most recent call last):
        ValueError: jobs must be at least 1, got 0
    """

    def __init__(self, jobs: int = 2) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.capacity = jobs
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, folders: Sequence[Path]) -> list[Handle]:
        """Starts a process for each folder."""
        handles: list[Handle] = []
        for folder in folders:
            process = subprocess.Popen(
                worker_command(folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._processes.append(process)
            handles.append(_LocalHandle(process))
        return handles

    def stop(self) -> None:
        """Asks all workers to end their runs; kills those that do not."""
        living = [process for process in self._processes if process.poll() is None]
        try:
            for process in living:
                process.send_signal(signal.SIGTERM)
            until = time.monotonic() + GRACE + 2
            while time.monotonic() < until and any(p.poll() is None for p in living):
                time.sleep(0.05)
        finally:  # also when the person is impatient: what a worker runs dies with it
            for process in living:
                process.kill()
                process.wait()


class _LocalHandle:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ended(self) -> str | None:
        code = self._process.poll()
        return None if code is None else how_it_ended(code)
