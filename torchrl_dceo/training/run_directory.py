"""The directory of a run: whose it is, and who may write there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torchrl_dceo.training.fingerprint import first_difference
from torchrl_dceo.training.run_lock import RunLock

__all__ = ["RunDirectory"]


class RunDirectory:
    """Marks a directory as one run's with a file ``run.json``, which says what the run is made of.

    Args:
        path (path-like): the directory; made by :meth:`start`.

    Examples:
        >>> import tempfile
        >>> from torchrl_dceo.training.run_directory import RunDirectory
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = RunDirectory(folder)
        ...     run.start({"agent": "dceo"})
        ...     run.check({"agent": "dceo"})
        ...     run.lock.release()
        ...     run.holds_a_run
        True
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.lock = RunLock(self.path)

    @property
    def holds_a_run(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "run.json").exists() or (self.path / "progress.csv").exists()

    def start(self, fingerprint: dict[str, Any]) -> None:
        """Takes the directory for a new run."""
        self.lock.acquire()
        if self.holds_a_run:
            self.lock.release()
            raise FileExistsError(
                f"{self.path} already holds a run: resume it, or choose another run_dir"
            )
        temporary = self.path / "run.json.tmp"
        temporary.write_text(json.dumps(fingerprint, indent=1))
        temporary.replace(self.path / "run.json")

    def open(self) -> None:
        """Takes the directory to go on with the run in it."""
        if not self.holds_a_run:
            raise FileNotFoundError(f"there is no run to resume in {self.path}")
        self.lock.acquire()

    def check(self, fingerprint: dict[str, Any], saved: dict[str, Any] | None = None) -> None:
        """Refuses a run that is made of something else than the one that was started here.

        Args:
            fingerprint (dict): what the run is made of.
            saved (dict, optional): what a checkpoint says. Default: what ``run.json`` says.
        """
        if saved is None:
            try:
                saved = json.loads((self.path / "run.json").read_text())
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"{self.path / 'run.json'} cannot be read and there is no checkpoint: start anew in "
                    f"another run_dir ({error})"
                ) from None
        # As it comes back from JSON.
        difference = first_difference(saved, json.loads(json.dumps(fingerprint)))
        if difference:
            raise ValueError(f"{self.path} belongs to another configuration: {difference}")
