"""The log of a run: the CSV file and TorchRL's loggers."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import logging
import math
import os
import textwrap
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import yaml
from torchrl.record.loggers import Logger, get_logger

from torchrl_dceo.data.persistence import write_file

__all__ = [
    "CSVLog",
    "Log",
    "LoggerKind",
    "TorchRLLog",
    "check_logger",
    "make_logs",
]

_log = logging.getLogger(__name__)


class CSVLog:
    """A CSV file with one row per call; columns may be added later.

    TorchRL's CSV logger writes one file per metric and cannot be truncated to a checkpoint. Here a row
    is on disk when :meth:`write` returns; after a crash :meth:`truncate` removes the rows that the resumed run
    will write again. A new column rewrites the file.

    Args:
        path (path-like): the file; continued if it exists.

    Examples:
        >>> import tempfile, pathlib
        >>> from torchrl_dceo.training.logging import CSVLog
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
        self._columns: list[str] | None = None
        self._num_rows = 0

    # The file is read when first needed, so that a run can restore a damaged one.

    @property
    def columns(self) -> list[str]:
        """The names in the header."""
        if self._columns is None:
            rows = self.read()
            self._columns, self._num_rows = list(rows[0]) if rows else [], len(rows)
        return self._columns

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self._num_rows if self.columns else 0

    def read(self) -> list[dict[str, str]]:
        """All rows so far."""
        return _rows(self.read_bytes(), str(self.path))

    def read_bytes(self) -> bytes:
        """The content of the file; empty if there is none."""
        return self.path.read_bytes() if self.path.exists() else b""

    def write(self, row: dict[str, Any]) -> None:
        """Appends a row."""
        new = [name for name in row if name not in self.columns]
        if new:
            rows = self.read()
            self.columns.extend(new)
            self._rewrite(rows)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, restval="").writerow(row)
        self._num_rows += 1

    def write_again(self, row: dict[str, Any]) -> None:
        """Replaces the last row."""
        rows: list[dict[str, Any]] = [*self.read()[:-1], row]
        self.columns.extend(name for name in row if name not in self.columns)
        self._rewrite(rows)

    def show(self, images: Sequence[Path], frames: int) -> None:
        """Does nothing: the figures are in the same directory."""

    def close(self) -> None:
        """Does nothing: the file is closed after each row."""

    def truncate(self, num_rows: int) -> None:
        """Keeps the first ``num_rows`` rows."""
        rows = self._first(num_rows) if num_rows else []
        if len(rows) < num_rows:
            raise ValueError(
                f"{self.path} has {len(rows)} rows, fewer than the {num_rows} of the checkpoint"
            )
        if num_rows == 0:
            self._columns = []
        self._num_rows = num_rows
        self._rewrite(rows[:num_rows])

    def restore(self, data: bytes) -> None:
        """Restores the content of :meth:`read_bytes`; a damaged file is reported with its first invalid line.

        Args:
            data (bytes): the earlier content.
        """
        saved = _rows(data, "the log in the checkpoint")
        damage = self._damage(saved)
        if damage:
            _log.warning("%s: its rows are restored from the checkpoint", damage)
        self._columns = list(saved[0]) if saved else []
        self._num_rows = len(saved)
        write_file(self.path, data)

    def _first(self, num_rows: int) -> list[dict[str, str]]:
        """The first rows; after them, a killed process may have left an incomplete line."""
        lines = self.read_bytes().split(b"\n")[: num_rows + 1]
        return _rows(b"\n".join([*lines, b""]), str(self.path))

    def _damage(self, saved: list[dict[str, str]]) -> str | None:
        """Describes damage in the saved part of the file; later rows and columns are allowed."""
        if not saved:
            return None
        if not self.path.exists():
            return f"{self.path} is missing"
        try:
            rows = self._first(len(saved))
        except (ValueError, OSError) as error:
            return str(error)
        if len(rows) < len(saved):
            return f"{self.path} has {len(rows)} of {len(saved)} rows"
        if not saved[0].keys() <= rows[0].keys():
            return f"line 1 of {self.path} is damaged"
        for line, (old, new) in enumerate(zip(saved, rows, strict=True), start=2):
            last = line == len(saved) + 1
            # The end of a run may have added an evaluation to its last row.
            known = {name: value for name, value in old.items() if value or not last}
            if any(new[name] != value for name, value in known.items()):
                return f"line {line} of {self.path} is damaged"
        return None

    def _rewrite(self, rows: Sequence[dict[str, Any]]) -> None:
        # Written to a second file first, so that a crash loses nothing.
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
        write_file(self.path, text.getvalue().encode())


def _rows(data: bytes, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file; an error names the first invalid line."""
    for line, raw in enumerate(data.split(b"\n"), start=1):
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise ValueError(f"line {line} of {name} is damaged: it is no text")
    reader = csv.DictReader(io.StringIO(data.decode(), newline=""))
    rows = list(reader)
    for line, row in enumerate(rows, start=2):
        # More or fewer entries than the header has names.
        if None in row or None in row.values():
            raise ValueError(f"line {line} of {name} is damaged: it does not fit the header")
    return rows


LoggerKind = Literal["csv", "tensorboard", "wandb"]
"""``"csv"`` is always written; the others are written in addition."""


class Log(Protocol):
    """The interface of a log."""

    def write(self, row: dict[str, Any]) -> None:
        """Logs a row."""

    def write_again(self, row: dict[str, Any]) -> None:
        """Replaces the last row at the end of the run, when an evaluation is added."""

    def show(self, images: Sequence[Path], frames: int) -> None:
        """Logs the figures of a run, drawn at its end."""

    def close(self) -> None:
        """Closes the log."""


def check_logger(kind: str) -> None:
    """Raises an error for an unknown logger or a missing package.

    Examples:
        >>> from torchrl_dceo.training.logging import check_logger
        >>> check_logger("wondb")
        Traceback (most recent call last):
        ValueError: logger must be one of csv, tensorboard, wandb, got 'wondb'
    """
    if kind not in get_args(LoggerKind):
        known = ", ".join(get_args(LoggerKind))
        raise ValueError(f"logger must be one of {known}, got {kind!r}")
    if kind != "csv" and importlib.util.find_spec(kind) is None:
        raise ImportError(f"logger={kind} needs {kind}: pip install 'torchrl-dceo[{kind}]'")


def make_logs(
    kind: str,
    run_dir: str | Path | None,
    settings: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> list[Log]:
    """The logs of a kind, in addition to the CSV file.

    Args:
        kind (str): ``"csv"`` (none), ``"tensorboard"`` or ``"wandb"``.
        run_dir (path-like): the run's directory.
        settings (mapping, optional): the settings of the run, for the logger.
        **kwargs: for :class:`TorchRLLog`.

    Examples:
        >>> from torchrl_dceo.training.logging import make_logs
        >>> make_logs("csv", None)
        []
    """
    check_logger(kind)
    if kind == "csv":
        return []
    if run_dir is None:
        raise ValueError(f"logger={kind} needs a run_dir")
    return [TorchRLLog(kind, run_dir, settings, **kwargs)]


class TorchRLLog:
    """Sends each row to TensorBoard or Weights & Biases with TorchRL's logger; the step is the number of frames.

    The logger is opened at the first row. The number of sent rows, and for Weights & Biases the id of the run, are
    stored in ``<kind>.json`` in the run directory: a resumed run, which repeats some rows, does not send them
    again, and continues in the same run. (A resumed run is exact: these rows were the same.)

    Args:
        kind (str): ``"tensorboard"`` (into ``tensorboard/`` in the run directory) or ``"wandb"``.
        run_dir (path-like): the run's directory.
        settings (mapping, optional): sent once: the hyperparameters of Weights & Biases, a text of TensorBoard.

    Keyword Args:
        name (str, optional): the run's name in Weights & Biases. Default: the name of its directory.
        **kwargs: for ``wandb.init``, e.g. ``project`` or ``mode="offline"``.
    """

    def __init__(
        self,
        kind: str,
        run_dir: str | Path,
        settings: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_logger(kind)
        self.kind = kind
        self.run_dir = Path(run_dir)
        self.settings = settings
        self.name = self.run_dir.name if name is None else name
        self._kwargs = kwargs
        self._logger: Logger | None = None
        self._mark = self.run_dir / f"{kind}.json"
        self._sent: dict[str, Any] = {}

    def write(self, row: dict[str, Any]) -> None:
        """Sends a row, except values that were sent before the run was interrupted."""
        if not self._sent:
            start: dict[str, Any] = {"id": uuid.uuid4().hex[:8], "frames": -1, "keys": []}
            self._sent = json.loads(self._mark.read_text()) if self._mark.exists() else start
        numbers = {key: float(value) for key, value in row.items() if math.isfinite(value)}
        known = self._sent["keys"] if row["frames"] == self._sent["frames"] else []
        numbers = {key: value for key, value in numbers.items() if key not in known}
        if row["frames"] < self._sent["frames"] or not numbers:
            return
        if self._logger is None:
            self._logger = self._open()
        self._logger.log_metrics(numbers, step=int(row["frames"]))
        self._logger.flush()
        # After the row: if the process dies in between, the row is sent twice rather than never.
        self._sent |= {"frames": int(row["frames"]), "keys": [*known, *numbers]}
        write_file(self._mark, json.dumps(self._sent).encode())

    def write_again(self, row: dict[str, Any]) -> None:
        """Sends the new values of the row."""
        self.write(row)

    def show(self, images: Sequence[Path], frames: int) -> None:
        """Sends the figures of the run, by their names.

        Args:
            images (sequence of Path): PNG files.
            frames (int): the frames of the run so far.
        """
        drawn = [path for path in images if path.suffix == ".png"]
        if not drawn or not self._sent:
            return
        if self._logger is None:
            self._logger = self._open()
        if self.kind == "tensorboard":
            image_module = importlib.import_module("PIL.Image")
            for path in drawn:
                with image_module.open(path) as opened:
                    pixels = np.asarray(opened.convert("RGB"))
                self._logger.experiment.add_image(path.stem, pixels, frames, dataformats="HWC")
        else:
            wandb = importlib.import_module("wandb")
            shown = {path.stem: wandb.Image(str(path)) for path in drawn}
            self._logger.experiment.log(shown)
        self._logger.flush()

    def close(self) -> None:
        """Closes the logger; the next row would open it again."""
        if self._logger is not None:
            self._logger.shutdown()
            self._logger = None

    def _open(self) -> Logger:
        if self.kind == "tensorboard":
            logger = get_logger("tensorboard", str(self.run_dir), "tensorboard")
            if self.settings is not None and self._sent["frames"] < 0:
                text = yaml.safe_dump(json.loads(json.dumps(dict(self.settings), default=str)))
                # Indented: TensorBoard shows Markdown.
                logger.experiment.add_text("settings", textwrap.indent(text, "    "))
            return logger
        options = {
            "id": self._sent["id"],
            "resume": "allow",
            "log_env_packages": False,
            **self._kwargs,
        }
        logger = get_logger("wandb", str(self.run_dir), self.name, wandb_kwargs=options)
        if self.settings is not None:
            logger.log_hparams(dict(self.settings))
        return logger
