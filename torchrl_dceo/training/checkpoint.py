"""Checkpoints of a run: whole, checked, rotated, without pickle."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from torchrl_dceo.data.persistence import load_state, save_state

__all__ = ["Checkpoints"]

_log = logging.getLogger(__name__)


class Checkpoints:
    """The last few checkpoints of a run, each a directory of raw tensors and JSON with a checksum for every file.

    A checkpoint counts once its index is written, which happens last: a run killed while saving has the one before. A
    damaged one is refused with a warning that names the file, and the one before is used.

    Args:
        path (path-like): the directory that holds them.
        keep (int, optional): how many are kept. Default: 2.

    Examples:
        >>> import tempfile, torch
        >>> from torchrl_dceo.training.checkpoint import Checkpoints
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder)
        ...     for step in (100, 200, 300):
        ...         checkpoints.save(step, {"weight": torch.full((2,), step)})
        ...     checkpoints.steps(), checkpoints.load_latest()["weight"].tolist()
        ([200, 300], [300, 300])
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.path = Path(path)
        self.keep = keep

    def _folder(self, step: int) -> Path:
        return self.path / f"{step:012d}"

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are there, oldest first."""
        if not self.path.is_dir():
            return []
        return sorted(int(folder.name) for folder in self.path.iterdir() if folder.name.isdigit())

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Saves a state, then removes those too old to keep."""
        save_state(self._folder(step), state)
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(self._folder(old))

    def load_latest(self) -> dict[str, Any]:
        """Loads the newest checkpoint that is whole."""
        steps = self.steps()
        for step in reversed(steps):
            try:
                return load_state(self._folder(step))
            except (ValueError, FileNotFoundError) as error:
                _log.warning("checkpoint %s is not used: %s", self._folder(step), error)
        raise FileNotFoundError(
            f"no whole checkpoint in {self.path}" + (f" ({len(steps)} damaged)" if steps else "")
        )
