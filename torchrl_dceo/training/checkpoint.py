"""Checkpoints of a run: whole, checked, rotated, without pickle."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchrl_dceo.data.persistence import load_state, save_state

__all__ = ["Checkpoints"]

_log = logging.getLogger(__name__)

State = dict[str, Any]


class Checkpoints:
    """The last few checkpoints of a run, each a directory of tensors and JSON with a checksum for every file.

    A checkpoint counts once its index is written, which happens last and in one step: a run killed while saving has
    the one before. A damaged one is refused with a warning that names the file, and the one before is used. That is
    why
    checkpoints share no files, although most of a replay does not change between two of them: one damaged byte never
    costs more than one checkpoint.

    On disk are at most ``keep`` of them, and one more while it is being written; large tensors that shrink well are
    compressed.

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

    def _folders(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        return sorted(folder for folder in self.path.iterdir() if folder.name.isdigit())

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are there, whole or damaged, oldest first."""
        return [int(folder.name) for folder in self._folders() if (folder / "state.json").exists()]

    def nbytes(self) -> int:
        """The bytes on disk of all that is kept."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def save(self, step: int, state: State) -> None:
        """Saves a state, then removes what is too old to keep, unfinished, or from after this step."""
        save_state(self._folder(step), state, compress=True)
        # Later ones are what a resumed run refused, or left behind by going further back than it had to.
        kept = [self._folder(s) for s in self.steps() if s <= step][-self.keep :]
        for folder in self._folders():
            if folder not in kept:
                # The index first: from then on it is no checkpoint.
                (folder / "state.json").unlink(missing_ok=True)
                shutil.rmtree(folder)

    def load_latest(self, check: Callable[[State], None] | None = None) -> State:
        """Loads the newest checkpoint that is whole.

        Args:
            check (callable, optional): raises a ``ValueError`` at a state that is not wanted; the one before is tried.
        """
        refused: list[str] = []
        for step in reversed(self.steps()):
            try:
                state = load_state(self._folder(step))
                if check is not None:
                    check(state)
            except (ValueError, FileNotFoundError) as error:
                refused.append(str(error))
                _log.warning("checkpoint %s is not used: %s", self._folder(step), error)
            else:
                return state
        if refused:
            raise ValueError(f"no checkpoint in {self.path} can be used: {refused[0]}")
        raise FileNotFoundError(f"no checkpoint in {self.path}")
