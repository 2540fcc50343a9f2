"""The CSV file that every run writes."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["CSVLog"]


class CSVLog:
    """One CSV file, one row a call, columns that may appear later.

    TorchRL's own CSV logger keeps a file for each number and cannot be cut back to where a checkpoint was made. A row
    is on disk when :meth:`write` returns; after a crash :meth:`truncate` takes back the rows that the resumed run
    will write again. A new column rewrites the file, once.

    Args:
        path (path-like): the file; continued if it exists.

    Examples:
        >>> import tempfile, pathlib
        >>> from torchrl_dceo.training.loggers import CSVLog
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = CSVLog(pathlib.Path(folder) / "progress.csv")
        ...     log.write({"frames": 1})
        ...     log.write({"frames": 2, "loss": 0.5})
        ...     log.read()
        [{'frames': '1', 'loss': ''}, {'frames': '2', 'loss': '0.5'}]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = self.read()
        self.columns = list(rows[0]) if rows else []
        self.num_rows = len(rows)

    def read(self) -> list[dict[str, str]]:
        """All rows so far."""
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def write(self, row: dict[str, Any]) -> None:
        """Appends a row."""
        new = [name for name in row if name not in self.columns]
        if new:
            rows = self.read()
            self.columns += new
            self._rewrite(rows)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, restval="").writerow(row)
        self.num_rows += 1

    def write_again(self, row: dict[str, Any]) -> None:
        """Puts a row in the place of the last one."""
        rows: list[dict[str, Any]] = [*self.read()[:-1], row]
        self.columns += [name for name in row if name not in self.columns]
        self._rewrite(rows)

    def close(self) -> None:
        """Nothing: the file is closed after each row."""

    def truncate(self, num_rows: int) -> None:
        """Keeps the first ``num_rows`` rows."""
        rows = self.read()
        if len(rows) < num_rows:
            raise ValueError(
                f"{self.path} has {len(rows)} rows, fewer than the {num_rows} of the checkpoint"
            )
        self.num_rows = num_rows
        self._rewrite(rows[:num_rows])

    def _rewrite(self, rows: Sequence[dict[str, Any]]) -> None:
        # Beside the file first: a crash in between loses nothing.
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self.path)
