"""The settings of training and collection."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from torchrl_dceo.settings import check_at_least, check_between, check_types, choices

__all__ = [
    "CollectorConfig",
    "CollectorKind",
    "RunConfig",
    "TrainConfig",
]

# The largest seed of torch's generators, minus the offsets of evaluation and discovery.
_LARGEST_SEED = 2**62
_MOST_FRAMES = 10**12


@dataclass
class TrainConfig:
    """Duration and periods of a run; the settings of the agent are in the agent's config.

    Examples:
        >>> from torchrl_dceo.training import TrainConfig
        >>> TrainConfig(total_frames=20_000, checkpoint_period=5000).update_period
        8
        >>> TrainConfig(log_period=1000, checkpoint_period=1500)
        Traceback (most recent call last):
        ValueError: checkpoint_period must be a multiple of log_period (1000), got 1500: ...
    """

    total_frames: int = 300_000  # ours: half an hour of two cores; the paper's curves are longer
    # Frames per update; ours: half as many updates as the authors' later research code (4), Nine Rooms is learned too.
    update_period: int = 8
    learning_starts: int = 1000  # frames before the first update; the authors' later research code
    replay_capacity: int | None = None  # rows; None: room for the whole run (the authors: 1M)
    # Ours; memmap: in files, for more than memory holds.
    replay_storage: Literal["memory", "memmap"] = "memory"
    replay_dir: str | None = None  # where those files go; None: a temporary directory
    eval_period: int = 10_000  # frames between greedy evaluations; ours
    eval_eps: float = 0.0  # of random actions in evaluations; ours (the authors: 0.05 in 3D)
    # Evaluations in a row at solved_return or above after which a run ends before its time; ours: None, never. In
    # comparisons it stays where it was (docs/concepts/statistics.md).
    stop_after_solved: int | None = None
    solved_return: float = 1.0  # ours: the largest return of most environments
    log_period: int = 1000  # frames between rows of the log; ours
    # Frames between checkpoints: a killed run loses at most this much; ours. None: none but the last.
    checkpoint_period: int | None = 20_000
    keep_checkpoints: int = 2  # ours: the newest, and the one before in case it is damaged
    keep_best: bool = False  # ours: whether the best evaluated one is kept beside them
    # Of the replay's draws and of Python's and NumPy's generators; by recipes of torch's too, which networks and
    # exploration draw from. Environments have their own.
    seed: int = 0
    progress: bool = True  # the line on the terminal

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(
            self,
            1,
            (
                "total_frames",
                "update_period",
                "eval_period",
                "log_period",
                "keep_checkpoints",
                "replay_capacity",
                "checkpoint_period",
                "stop_after_solved",
            ),
        )
        check_at_least(self, 0, ("learning_starts", "seed"))
        check_between(self, ("seed",), high=_LARGEST_SEED)
        check_between(self, ("total_frames", "replay_capacity"), low=1, high=_MOST_FRAMES)
        check_between(self, ("eval_eps",))
        if self.replay_dir is not None and self.replay_storage != "memmap":
            raise ValueError(
                f"replay_dir={self.replay_dir!r} has no effect without replay_storage='memmap'"
            )
        period = self.checkpoint_period
        over = 0 if period is None else period % self.log_period
        if period is not None and over and period == TrainConfig.checkpoint_period:
            self.checkpoint_period = period + self.log_period - over  # nobody chose it
        elif over:
            raise ValueError(
                f"checkpoint_period must be a multiple of log_period ({self.log_period}), got "
                f"{self.checkpoint_period}: a checkpoint is taken right after a row"
            )


CollectorKind = Literal["single", "multi_sync", "multi_async", "ray"]


@dataclass
class CollectorConfig:
    """The settings of collection.

    ``single``: this process, between updates; the only one that is exact to the last bit when resumed. ``multi_sync``:
    worker processes in lockstep while the learner waits, reproducible. ``multi_async``: worker processes that collect
    during updates. ``ray``: the same with Ray actors, on all machines of a cluster.

    The environments of a run are divided among its workers, so their number does not change a run's streams in the
    replay buffer or the steps of each environment. See docs/how_to/scaling.md.

    Examples:
        >>> from torchrl_dceo.training import CollectorConfig
        >>> CollectorConfig("multi_sync", num_workers=4).envs_per_worker(16)
        4
        >>> CollectorConfig("multi_sync", num_workers=3).envs_per_worker(16)
        Traceback (most recent call last):
        ValueError: 16 environments cannot be divided among num_workers=3: take a number that divides them
    """

    collector: CollectorKind = "single"  # ours; see docs/how_to/scaling.md
    num_workers: int = 2  # the environments are divided among them; for all but single; ours
    worker_steps: int = 25  # steps of each environment that a worker delivers at once; ours
    weight_period: int = 100  # frames after which a worker gets the newest weights; ours
    max_restarts: int = 10  # how often lost workers are replaced before the run gives up; ours
    ray_address: str | None = None  # of a cluster; None: RAY_ADDRESS, or Ray is started here
    ray_cpus: float = 1.0  # reserved for each worker; ours
    ray_memory: int | None = None  # bytes reserved for each worker; None: none (TorchRL: 2 GB)

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, ("num_workers", "worker_steps", "weight_period", "ray_memory"))
        check_at_least(self, 0, ("max_restarts", "ray_cpus"))
        if self.collector == "ray" and importlib.util.find_spec("ray") is None:
            raise ImportError(
                "collector='ray' needs Ray: pip install 'torchrl-dceo[ray]', or take multi_async"
            )

    @property
    def uses_workers(self) -> bool:
        """Whether workers collect the steps."""
        return self.collector != "single"

    def envs_per_worker(self, num_envs: int) -> int:
        """The number of environments of each worker."""
        if num_envs % self.num_workers:
            raise ValueError(
                f"{num_envs} environments cannot be divided among num_workers={self.num_workers}: take a number that "
                "divides them"
            )
        return num_envs // self.num_workers


CompileMode = Literal["default", "reduce-overhead", "max-autotune"]


@dataclass
class RunConfig:
    """The settings of a run besides agent, environment, training and collection.

    Examples:
        >>> from torchrl_dceo.training.config import RunConfig
        >>> RunConfig(device="gpu")
        Traceback (most recent call last):
        ValueError: device is 'gpu' (did you mean 'cpu'?); choose from cpu, cuda, cuda:<number>, mps
    """

    num_envs: int = 8  # ours: one pass of the networks for all of them
    eval_episodes: int = 20  # of a greedy evaluation, side by side; 0: none; ours
    device: str = "cpu"  # of the networks; environments and replay stay on the host
    # Ours: no torch.compile of the networks; True, or its mode: reduce-overhead for CUDA graphs.
    compile: bool | CompileMode = False

    def __post_init__(self) -> None:
        modes = get_args(CompileMode)
        if self.compile not in (True, False, *modes):
            raise ValueError(
                f"compile must be true, false or one of {', '.join(modes)}, got {self.compile!r}"
            )
        check_types(self)
        check_at_least(self, 1, ("num_envs",))
        check_at_least(self, 0, ("eval_episodes",))
        try:
            device = torch.device(self.device)
        except RuntimeError:
            known = ("cpu", "cuda", "cuda:<number>", "mps")
            raise ValueError(f"device is {choices(self.device, known)}") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"device={device} needs a GPU, and torch finds none here: set device=cpu"
            )
