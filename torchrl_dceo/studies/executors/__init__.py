"""Where the runs of a study take place, one place a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchrl_dceo.studies.executors.clusters import RayExecutor, SlurmExecutor
from torchrl_dceo.studies.executors.local import Executor, Handle, LocalExecutor, worker_command
from torchrl_dceo.typos import choices

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
"""The names by which the command line knows them."""


def make_executor(name: str, *, jobs: int | None, folder: Path, **settings: Any) -> Executor:
    """Makes an executor by its name.

    Args:
        name (str): one of :data:`EXECUTORS`.

    Keyword Args:
        jobs (int, optional): runs at a time. Default: two on this machine, as many as a cluster gives elsewhere.
        folder (Path): of the study, for what an executor has to keep.
        **settings: of clusters.

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
