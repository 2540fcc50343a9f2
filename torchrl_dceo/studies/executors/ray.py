"""Runs as tasks of a Ray cluster."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchrl_dceo.studies.executors.base import Executor, Handle, needed, worker_command
from torchrl_dceo.studies.worker import GRACE, LOCK, how_it_ended, is_held

__all__ = ["RayExecutor"]


class RayExecutor(Executor):
    """A task for each run, wherever the cluster has room. All nodes must see the folders of the runs.

    Args:
        address (str, optional): of the cluster, such as ``"auto"``. Default: one on this machine, for the study alone.

    Keyword Args:
        jobs (int, optional): tasks at a time. Default: as many as the cluster has room for.
        threads (int, optional): processors of a task. Default: ``1``.
        gpus (int, optional): of a task. Default: ``0``.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        jobs: int | None = None,
        threads: int = 1,
        gpus: int = 0,
    ) -> None:
        ray = needed("ray", "ray")
        self.capacity = jobs
        self._ray = ray
        self._own = not ray.is_initialized()
        if self._own:
            own = {} if address else {"include_dashboard": False}
            try:
                ray.init(address=address, log_to_driver=False, logging_level="error", **own)
            except ConnectionError as error:
                first = str(error).splitlines()[0]
                raise ValueError(f"there is no Ray cluster at {address}: {first}") from None
        # Never again by Ray itself: the study says what failed, and its next call goes on.
        self._task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_work)
        self._started: list[tuple[Path, Any]] = []

    def start(self, folders: Sequence[Path]) -> list[Handle]:
        """Submits a task for each folder."""
        new = [(folder, self._task.remote(str(folder))) for folder in folders]
        self._started += new
        return [_RayHandle(self._ray, task) for _, task in new]

    def stop(self) -> None:
        """Ends the tasks and waits for what they ran."""
        for _, task in self._started:
            self._ray.cancel(task, force=True)
        until = time.monotonic() + GRACE + 2
        while time.monotonic() < until and any(is_held(f / LOCK) for f, _ in self._started):
            time.sleep(0.1)
        if self._own:
            self._ray.shutdown()


def _work(folder: str) -> int:
    return subprocess.run(worker_command(Path(folder)), stdin=subprocess.DEVNULL).returncode


class _RayHandle:
    def __init__(self, ray: Any, task: Any) -> None:
        self._ray = ray
        self._task = task

    def ended(self) -> str | None:
        if not self._ray.wait([self._task], timeout=0)[0]:
            return None
        try:
            return how_it_ended(self._ray.get(self._task))
        except self._ray.exceptions.RayError as error:
            return f"Ray lost its task, {type(error).__name__}"
