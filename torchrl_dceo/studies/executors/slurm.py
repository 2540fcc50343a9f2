"""Runs as jobs of a Slurm cluster, by submitit."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchrl_dceo.studies.executors.base import Executor, Handle, needed, worker_command
from torchrl_dceo.studies.worker import read_json, write_json

__all__ = ["SlurmExecutor"]

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
