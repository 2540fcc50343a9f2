"""Executors on clusters: Ray and Slurm."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchrl_dceo.studies.executors.local import Executor, Handle, needed, worker_command
from torchrl_dceo.studies.worker import GRACE, LOCK, how_it_ended, is_held, read_json, write_json

__all__ = [
    "RayExecutor",
    "SlurmExecutor",
]


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


class SlurmExecutor(Executor):
    """A job array with a task for each run.

    Runs go on when the study's own process ends, and the next call finds them in the queue again. A job that reaches
    its time limit or is preempted is queued again, and its run goes on from its newest checkpoint.

    Args:
        folder (Path): where submitit keeps scripts and outputs; on a disk that all nodes see, as the runs.

    Keyword Args:
        jobs (int, optional): tasks of the array at a time. Default: as many as Slurm gives.
        time (int, optional): minutes of a job. Default: a day.
        memory (float, optional): GB of a job. Default: ``4``.
        threads (int, optional): processors of a job. Default: ``1``.
        gpus (int, optional): of a job. Default: ``0``.
        partition, account (str, optional): as Slurm knows them.
        cluster (str, optional): ``"local"`` tries it all without Slurm. Default: ``"slurm"``.
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
        """Leaves the queue as it is; what only plays Slurm is ended."""
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
    """What submitit calls on a node, and again after an interruption."""

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
