"""What an executor is: it starts workers on folders, and knows when they have ended."""

from __future__ import annotations

import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torchrl_dceo.studies import worker

__all__ = ["Executor", "Handle", "needed", "worker_command"]


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
        >>> from torchrl_dceo.studies.executors.base import needed
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
