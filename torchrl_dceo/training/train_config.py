"""The settings of the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["TrainConfig"]


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
    eval_eps: float = 0.0  # probability of a random action in evaluations
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
        if not 0 <= self.eval_eps <= 1:
            raise ValueError(f"eval_eps must lie in [0, 1], got {self.eval_eps}")
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
