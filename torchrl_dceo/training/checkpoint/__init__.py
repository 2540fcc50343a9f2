"""Checkpoints: saved atomically, verified when loaded; only the newest few are kept."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

from torchrl_dceo.data.persistence import SavedSegment, load_state, save_state, sync_directory
from torchrl_dceo.training.errors import NoRun, RunRefused

__all__ = ["Checkpoints"]

_log = logging.getLogger(__name__)
State = dict[str, Any]


class Checkpoints:
    """The last few checkpoints of a run, each a directory of tensors and JSON with a checksum for every file.

    A checkpoint is valid once its index is written, which happens last and atomically: a run killed during a save keeps
    the previous one. A damaged one is rejected with a warning that names the file; the previous one is used. That is
    why kept checkpoints share no files, although most of a replay buffer does not change between two of them:
    a damaged byte affects only one checkpoint. A new one reuses the unchanged segments of the one that
    it replaces (:class:`~torchrl_dceo.data.persistence.Segment`), by hard links, and writes the segments changed since
    then: every row of a replay buffer is written ``keep`` times in total, for any number of checkpoints. Only files
    written by this object are reused: the first ``keep`` checkpoints after resuming are written in full.

    On disk are at most ``keep`` checkpoints, one more during a save, and the best one if requested;
    large tensors that compress well are compressed.

    Args:
        path (path-like): the directory of the checkpoints.
        keep (int, optional): the number of checkpoints to keep. Default: 2.

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
        self._segments: dict[Path, Mapping[Hashable, SavedSegment]] = {}

    def _folder(self, step: int) -> Path:
        return self.path / f"{step:012d}"

    def _folders(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        return sorted(folder for folder in self.path.iterdir() if folder.name.isdigit())

    @property
    def _best(self) -> Path:
        return self.path / "best"

    def steps(self) -> list[int]:
        """The steps of the existing checkpoints, valid or damaged, oldest first."""
        return [int(folder.name) for folder in self._folders() if (folder / "state.json").exists()]

    def nbytes(self) -> int:
        """The size on disk of all checkpoints in bytes."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def save(self, step: int, state: State) -> None:
        """Saves a state, then removes checkpoints that are too old, incomplete, or later than this step."""
        folder = self._folder(step)
        # A rejected checkpoint may be a file, or contain directories.
        for entry in [folder] if folder.is_file() else folder.glob("*"):
            if entry.is_dir() or entry == folder:
                _remove(entry)
        # Later ones were rejected when the run was resumed, or skipped by resuming from an earlier one.
        steps = {step, *(s for s in self.steps() if s < step)}
        kept = [self._folder(s) for s in sorted(steps)[-self.keep :]]
        try:
            self._save(folder, state, {folder, *self._segments} - {*kept[:-1], self._best})
        except BaseException:
            # Mainly on a full disk: an incomplete checkpoint is useless and needs space.
            with contextlib.suppress(OSError):
                self.remove_unfinished()
            raise
        for folder in self._folders():
            if folder not in kept:
                _remove(folder)
                self._segments.pop(folder, None)
        sync_directory(self.path)
        sync_directory(self.path.parent)

    def remove_unfinished(self) -> None:
        """Removes incomplete checkpoints of a killed run."""
        for folder in self._folders():
            if not (folder / "state.json").exists():
                _remove(folder)

    def save_best(self, state: State) -> None:
        """Saves a state as the best checkpoint, which is not rotated; replaces the previous best."""
        self._save(self._best, state, {self._best})

    def load_best(self) -> State:
        """Loads the last state of :meth:`save_best`."""
        return load_state(self._best)

    def _save(self, folder: Path, state: State, leaving: set[Path]) -> None:
        """Saves into a folder, reusing unchanged segments of the checkpoints that will be removed."""
        reuse: dict[Hashable, SavedSegment] = {}
        for old in sorted(leaving & self._segments.keys()):
            reuse.update(self._segments[old])
        self._segments[folder] = save_state(folder, state, compress=True, reuse=reuse)

    def load_latest(self, use: Callable[[State], None] | None = None) -> State:
        """Loads the newest valid checkpoint.

        Args:
            use (callable, optional): called with the state; if it raises any error, the previous checkpoint is tried.
        """
        refused: list[str] = []
        for folder in reversed(self._folders()):
            try:
                state = load_state(folder)
                if use is not None:
                    use(state)
            # Damage can cause any error: a missing key, no memory, no permission, a directory instead of a file.
            except Exception as error:
                ours = isinstance(error, ValueError | FileNotFoundError)
                reason = str(error) if ours else f"{type(error).__name__}: {error}"
                refused.append(reason)
                _log.warning("checkpoint %s is not used: %s", folder, reason)
            else:
                return state
        if self.steps():
            raise RunRefused(f"no checkpoint in {self.path} can be used: {refused[0]}")
        raise NoRun(f"no checkpoint in {self.path}")


def _remove(folder: Path) -> None:
    if not folder.is_dir():
        folder.unlink()
        return
    # The index first: without it the checkpoint is invalid.
    with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
        (folder / "state.json").unlink()
    shutil.rmtree(folder)
