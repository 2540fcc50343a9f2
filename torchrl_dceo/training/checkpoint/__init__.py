"""Checkpoints: saved in one step, checked when loaded, the newest few kept."""

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

    A checkpoint counts once its index is written, which happens last and in one step: a run killed while saving has
    the one before. A damaged one is refused with a warning that names the file, and the one before is used. That is
    why the checkpoints that are kept share no files, although most of a replay does not change between two of them:
    one damaged byte never costs more than one checkpoint. A new one takes over the unchanged segments of the one that
    it drives out (:class:`~torchrl_dceo.data.persistence.Segment`), by hard links, and writes what has changed since
    that one: every row of a replay is written ``keep`` times in all, however many checkpoints there are. Only files
    that this object has written itself are taken over: the first ``keep`` after resuming are written in full.

    On disk are at most ``keep`` of them, one more while it is being written, and the best one if it is asked for;
    large tensors that shrink well are compressed.

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
        """The steps of the checkpoints that are there, whole or damaged, oldest first."""
        return [int(folder.name) for folder in self._folders() if (folder / "state.json").exists()]

    def nbytes(self) -> int:
        """The bytes on disk of all that is kept."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def save(self, step: int, state: State) -> None:
        """Saves a state, then removes what is too old to keep, unfinished, or from after this step."""
        folder = self._folder(step)
        # What a resumed run refused may be no directory, or hold some.
        for entry in [folder] if folder.is_file() else folder.glob("*"):
            if entry.is_dir() or entry == folder:
                _remove(entry)
        # Later ones are what a resumed run refused, or left behind by going further back than it had to.
        steps = {step, *(s for s in self.steps() if s < step)}
        kept = [self._folder(s) for s in sorted(steps)[-self.keep :]]
        try:
            self._save(folder, state, {folder, *self._segments} - {*kept[:-1], self._best})
        except BaseException:
            # On a full disk above all: half a checkpoint is of no use and takes what others need.
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
        """Removes what a killed run left of checkpoints that it did not finish."""
        for folder in self._folders():
            if not (folder / "state.json").exists():
                _remove(folder)

    def save_best(self, state: State) -> None:
        """Saves a state beside those that are rotated, in the place of the best before it."""
        self._save(self._best, state, {self._best})

    def load_best(self) -> State:
        """Loads what :meth:`save_best` saved last."""
        return load_state(self._best)

    def _save(self, folder: Path, state: State, leaving: set[Path]) -> None:
        """Saves into a folder, with what is unchanged of the checkpoints that are about to leave."""
        reuse: dict[Hashable, SavedSegment] = {}
        for old in sorted(leaving & self._segments.keys()):
            reuse.update(self._segments[old])
        self._segments[folder] = save_state(folder, state, compress=True, reuse=reuse)

    def load_latest(self, use: Callable[[State], None] | None = None) -> State:
        """Loads the newest checkpoint that is whole.

        Args:
            use (callable, optional): called with the state; if it raises, whatever it is, the one before is tried.
        """
        refused: list[str] = []
        for folder in reversed(self._folders()):
            try:
                state = load_state(folder)
                if use is not None:
                    use(state)
            # Any damage, whatever it leads to: a missing key, no memory, no permission, a directory for a file.
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
    # The index first: from then on it is no checkpoint.
    with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
        (folder / "state.json").unlink()
    shutil.rmtree(folder)
