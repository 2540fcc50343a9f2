"""Executors of a study's runs: local processes, a Ray cluster, a Slurm queue."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from torchrl_dceo.settings import choices
from torchrl_dceo.studies import worker
from torchrl_dceo.studies.worker import GRACE, LOCK, how_it_ended, is_held, read_json, write_json

__all__ = [
    "EXECUTORS",
    "Executor",
    "Handle",
    "LocalExecutor",
    "RayExecutor",
    "SlurmExecutor",
    "make_executor",
    "worker_command",
]

EXECUTORS = ("local", "slurm", "ray")
"""Their names on the command line."""


_ALIVE = (
    "PENDING",
    "RUNNING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "CONFIGURING",
    "COMPLETING",
    "SUSPENDED",
)
_TICKET = "slurm.json"


class Handle(Protocol):
    """A started worker."""

    def ended(self) -> str | None:
        """``None`` while the worker is running or waiting; then a description of its end."""


class Executor(ABC):
    """Base of the executors, which start the workers of a study.

    A worker executes the run of a folder and writes its result there (:mod:`torchrl_dceo.studies.worker`), so
    an executor only tracks whether the worker has ended.

    Attributes:
        capacity (int or None): the maximum number of workers at a time; ``None``: the cluster decides.
        outlives (bool): whether workers continue when the study's process ends.
    """

    capacity: int | None = None
    outlives: bool = False

    @abstractmethod
    def start(self, folders: Sequence[Path]) -> list[Handle]:
        """Starts a worker for each folder."""

    @abstractmethod
    def stop(self) -> None:
        """Stops the running workers and waits for them, unless they outlive the study."""


def worker_command(folder: Path) -> list[str]:
    """The command of a worker that ends with its parent process."""
    return [sys.executable, worker.__file__, str(folder), str(os.getpid())]


def needed(package: str, extra: str) -> Any:
    """Imports a package that an executor needs.

    Raises:
        ImportError: if it is not installed; the message names the extra.

    Examples:
        >>> from torchrl_dceo.studies.executors import needed
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
    """One local process per run, with a limit.

    Processes are in separate sessions, so that Ctrl-C reaches only the study, which then stops them. They also end
    when the study is killed (on Linux).

    Args:
        jobs (int, optional): the number of processes at a time. Default: ``2``.

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
        """Asks all workers to stop; kills those that do not, and all of them at a second interruption."""
        living = [process for process in self._processes if process.poll() is None]
        try:
            self._ask(living, GRACE + 2)
        finally:
            # A further interruption must not leave a run behind: a worker that gets a second signal kills its run.
            while any(process.poll() is None for process in living):
                with suppress(KeyboardInterrupt):
                    self._ask(living, 2.0)
                    for process in living:
                        process.kill()
                        process.wait()

    @staticmethod
    def _ask(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(p.poll() is None for p in processes):
            time.sleep(0.05)


class _LocalHandle:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ended(self) -> str | None:
        code = self._process.poll()
        return None if code is None else how_it_ended(code)


class RayExecutor(Executor):
    """One Ray task per run. All nodes need access to the folders of the runs.

    Args:
        address (str, optional): of the cluster, such as ``"auto"``. Default: a new one on this machine.

    Keyword Args:
        jobs (int, optional): tasks at a time. Default: as many as fit on the cluster.
        threads (int, optional): CPUs per task. Default: ``1``.
        gpus (int, optional): GPUs per task. Default: ``0``.
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
        # No retries by Ray: the study reports failures, and its next call retries them.
        self._task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_work)
        self._started: list[tuple[Path, Any]] = []

    def start(self, folders: Sequence[Path]) -> list[Handle]:
        """Submits a task for each folder."""
        new = [(folder, self._task.remote(str(folder))) for folder in folders]
        self._started += new
        return [_RayHandle(self._ray, task) for _, task in new]

    def stop(self) -> None:
        """Stops the tasks and waits for their runs."""
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


class SlurmExecutor(Executor):
    """A Slurm job array with one task per run.

    Runs continue when the study's process ends, and the next call finds them in the queue. A job that reaches
    its time limit or is preempted is queued again and resumes from its newest checkpoint.

    Args:
        folder (Path): the directory for submitit's scripts and outputs, on a shared file system like the runs.

    Keyword Args:
        jobs (int, optional): tasks of the array at a time. Default: as many as Slurm allows.
        time (int, optional): time limit of a job in minutes. Default: one day.
        memory (float, optional): memory of a job in GB. Default: ``4``.
        threads (int, optional): CPUs per job. Default: ``1``.
        gpus (int, optional): GPUs per job. Default: ``0``.
        partition, account (str, optional): names in Slurm.
        cluster (str, optional): ``"local"`` runs without Slurm, for tests. Default: ``"slurm"``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        jobs: int | None = None,
        time: int = 24 * 60,
        memory: float = 4.0,
        threads: int = 1,
        gpus: int = 0,
        partition: str | None = None,
        account: str | None = None,
        cluster: str = "slurm",
    ) -> None:
        submitit = needed("submitit", "slurm")
        self.outlives = cluster == "slurm"
        self.folder = folder / "slurm"
        self._submitit = submitit
        self._jobs: list[Any] = []
        try:
            self._executor = submitit.AutoExecutor(folder=self.folder, cluster=cluster)
        except RuntimeError as error:
            raise ValueError(f"Slurm cannot be used here: {error}") from None
        given: dict[str, Any] = {
            "name": "study",
            "timeout_min": time,
            "mem_gb": memory,
            "cpus_per_task": threads,
            "gpus_per_node": gpus,
            "slurm_partition": partition,
            "slurm_account": account,
            "slurm_array_parallelism": jobs,
        }
        if cluster != "slurm":
            given = {name: v for name, v in given.items() if not name.startswith("slurm")}
        self._executor.update_parameters(**{n: v for n, v in given.items() if v is not None})

    def start(self, folders: Sequence[Path]) -> list[Handle]:
        """Submits an array for the folders whose run is not in the queue yet."""
        found = {folder: self._in_queue(folder) for folder in folders}
        new = [folder for folder in folders if found[folder] is None]
        if new:
            for folder, job in zip(
                new, self._executor.submit_array([_Task(folder) for folder in new]), strict=True
            ):
                found[folder] = job
                write_json(folder / _TICKET, {"id": job.job_id})
        self._jobs += [found[folder] for folder in new]
        return [_SlurmHandle(found[folder]) for folder in folders]

    def stop(self) -> None:
        """Leaves jobs in the queue; stops the processes of ``cluster="local"``."""
        if self.outlives:
            return
        for job in self._jobs:
            if not job.done():
                job.cancel(check=False)
        for job in self._jobs:
            job.wait()

    def _in_queue(self, folder: Path) -> Any | None:
        ticket = read_json(folder / _TICKET).get("id")
        if ticket is None or not self.outlives:
            return None
        job = self._submitit.SlurmJob(folder=self.folder, job_id=ticket)
        return job if job.state.split()[0].upper() in _ALIVE else None


class _Task:
    """The callable that submitit runs on a node, and again after an interruption."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> int:
        return subprocess.run(worker_command(self.folder), stdin=subprocess.DEVNULL).returncode

    def checkpoint(self) -> Any:
        return needed("submitit", "slurm").helpers.DelayedSubmission(self)


class _SlurmHandle:
    def __init__(self, job: Any) -> None:
        self._job = job

    def ended(self) -> str | None:
        return f"Slurm calls job {self._job.job_id} {self._job.state}" if self._job.done() else None


def make_executor(name: str, *, jobs: int | None, folder: Path, **settings: Any) -> Executor:
    """Builds an executor by its name.

    Args:
        name (str): one of :data:`EXECUTORS`.

    Keyword Args:
        jobs (int, optional): runs at a time. Default: two on this machine, no limit on clusters.
        folder (Path): the study's folder, for the executor's files.
        **settings: settings of a cluster.

    Examples:
        >>> from pathlib import Path
        >>> from torchrl_dceo.studies.executors import make_executor
        >>> make_executor("slrm", jobs=None, folder=Path())
        Traceback (most recent call last):
        ValueError: unknown executor 'slrm' (did you mean 'slurm'?); choose from local, slurm, ray
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    if name == "local":
        return LocalExecutor(2 if jobs is None else jobs)
    if name == "slurm":
        shared = {key: value for key, value in settings.items() if key != "address"}
        return SlurmExecutor(folder, jobs=jobs, **shared)
    if name == "ray":
        shared = {key: settings[key] for key in ("threads", "gpus") if key in settings}
        return RayExecutor(settings.get("address"), jobs=jobs, **shared)
    raise ValueError(f"unknown executor {choices(name, EXECUTORS)}")
