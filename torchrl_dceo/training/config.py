"""How long and how often a run trains, and how it collects."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = [
    "CollectorConfig",
    "CollectorKind",
    "TrainConfig",
]


@dataclass
class TrainConfig:
    """How long and how often; what the agent itself does is in the agent's config.

    Examples:
        >>> from torchrl_dceo.training import TrainConfig
        >>> TrainConfig(total_frames=20_000, checkpoint_period=5000).update_period
        4
        >>> TrainConfig(log_period=1000, checkpoint_period=1500)
        Traceback (most recent call last):
        ValueError: checkpoint_period must be a multiple of log_period (1000), got 1500: ...
    """

    total_frames: int = 300_000
    update_period: int = 4  # frames per update; the authors' later research code
    learning_starts: int = 1000  # frames before the first update; the same
    replay_capacity: int | None = None  # rows; None: room for the whole run
    replay_storage: Literal["memory", "memmap"] = (
        "memory"  # memmap: in files, for more than memory holds
    )
    replay_dir: str | None = None  # where those files go; None: a temporary directory
    eval_period: int = 10_000  # frames between greedy evaluations
    log_period: int = 1000  # frames between rows of the log
    checkpoint_period: int | None = None  # frames between checkpoints; None: none but the last
    keep_checkpoints: int = 2  # how many are kept
    seed: int = 0  # of the replay's draws, and by recipes of networks and exploration too; worlds have their own
    progress: bool = True  # the line on the terminal

    def __post_init__(self) -> None:
        for name in (
            "total_frames",
            "update_period",
            "eval_period",
            "log_period",
            "keep_checkpoints",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.replay_storage not in ("memory", "memmap"):
            raise ValueError(
                f"replay_storage must be 'memory' or 'memmap', got {self.replay_storage!r}"
            )
        if self.replay_dir is not None and self.replay_storage != "memmap":
            raise ValueError(
                f"replay_dir={self.replay_dir!r} has no use without replay_storage='memmap'"
            )
        if self.checkpoint_period is not None and self.checkpoint_period % self.log_period:
            raise ValueError(
                f"checkpoint_period must be a multiple of log_period ({self.log_period}), got "
                f"{self.checkpoint_period}: what was gathered for a row is not saved"
            )


CollectorKind = Literal["single", "multi_sync", "multi_async", "ray"]


@dataclass
class CollectorConfig:
    """Who makes the steps.

    ``single``: this process, between updates; the only one that is exact to the last bit when resumed. ``multi_sync``:
    worker processes, all at once while the learner waits, reproducible. ``multi_async``: worker processes that go on
    while the learner learns. ``ray``: the same by Ray actors, on as many machines as the cluster has.

    The environments of a run are divided among its workers, so a run means the same with any number of them: as many
    streams of the replay, as many steps of each environment. See docs/scaling.md.

    Examples:
        >>> from torchrl_dceo.training import CollectorConfig
        >>> CollectorConfig("multi_sync", num_workers=4).envs_per_worker(16)
        4
        >>> CollectorConfig("multi_sync", num_workers=3).envs_per_worker(16)
        Traceback (most recent call last):
        ValueError: 16 environments cannot be divided among num_workers=3: take a number that divides them
    """

    collector: CollectorKind = "single"
    num_workers: int = 2  # the environments are divided among them; for all but single
    worker_steps: int = 25  # steps of each environment that a worker delivers at once
    weight_period: int = 100  # frames after which a worker gets the newest weights
    max_restarts: int = 10  # how often lost workers are replaced before the run gives up
    ray_address: str | None = None  # of a cluster; None: RAY_ADDRESS, or Ray is started here
    ray_cpus: float = 1.0  # reserved for each worker
    ray_memory: int | None = None  # bytes reserved for each worker; None: none

    def __post_init__(self) -> None:
        kinds = get_args(CollectorKind)
        if self.collector not in kinds:
            raise ValueError(f"collector must be one of {', '.join(kinds)}, got {self.collector!r}")
        for name, least in (
            ("num_workers", 1),
            ("worker_steps", 1),
            ("weight_period", 1),
            ("max_restarts", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.ray_cpus < 0:
            raise ValueError(f"ray_cpus must not be negative, got {self.ray_cpus}")
        if self.ray_memory is not None and self.ray_memory < 1:
            raise ValueError(f"ray_memory must be at least 1 byte or None, got {self.ray_memory}")
        if self.collector == "ray" and importlib.util.find_spec("ray") is None:
            raise ImportError(
                "collector='ray' needs Ray: pip install 'torchrl-dceo[ray]', or take multi_async"
            )

    @property
    def uses_workers(self) -> bool:
        """Whether others than this process make the steps."""
        return self.collector != "single"

    def envs_per_worker(self, num_envs: int) -> int:
        """How many of the run's environments each worker has."""
        if num_envs % self.num_workers:
            raise ValueError(
                f"{num_envs} environments cannot be divided among num_workers={self.num_workers}: take a number that "
                "divides them"
            )
        return num_envs // self.num_workers
