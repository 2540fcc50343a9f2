"""Runs as processes of this machine."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from torchrl_dceo.studies.executors.base import Executor, Handle, worker_command
from torchrl_dceo.studies.worker import GRACE, how_it_ended

__all__ = ["LocalExecutor"]


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
