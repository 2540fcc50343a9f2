"""A progress line for the terminal."""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import TextIO

__all__ = ["ProgressLine"]


class ProgressLine:
    """One line on a terminal that is written over: how far, how fast, how long still, and a few numbers.

    On anything but a terminal (a log file, a pipe), and in a process that shares its terminal with others (the worker
    of a sweep), it prints a plain line once a minute instead.

    Args:
        total (int): frames of the whole run.
        start (int, optional): frames done before, when a run is resumed.
        stream (text stream, optional): default: standard error.
        enabled (bool, optional): ``False`` for silence.
        label (str, optional): names the run in the plain lines of a worker, among those of others.

    Examples:
        >>> import io
        >>> from torchrl_dceo.training.progress import ProgressLine
        >>> out = io.StringIO()
        >>> line = ProgressLine(100, stream=out)
        >>> line.update(50, {"coverage": 12.0}, force=True)
        >>> "50/100" in out.getvalue() and "coverage 12" in out.getvalue()
        True
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        stream: TextIO | None = None,
        enabled: bool = True,
        label: str = "",
    ) -> None:
        self.total = total
        self.start = start
        self.stream = sys.stderr if stream is None else stream
        self.enabled = enabled
        self._began = time.monotonic()
        self._last = self._began
        alone = multiprocessing.parent_process() is None
        self.label = "" if alone else label
        self._live = alone and self.stream.isatty()

    def update(self, frames: int, numbers: dict[str, float], *, force: bool = False) -> None:
        """Shows the state of the run, at most ten times a second on a terminal."""
        now = time.monotonic()
        if not self.enabled or (not force and now - self._last < (0.1 if self._live else 60.0)):
            return
        self._last = now
        rate = (frames - self.start) / max(now - self._began, 1e-9)
        left = (self.total - frames) / rate if rate > 0 else float("nan")
        filled = round(24 * frames / max(self.total, 1))
        parts = [
            *([self.label] if self.label else []),
            f"[{'█' * filled}{'·' * (24 - filled)}] {frames}/{self.total}",
            f"{rate:.0f} steps/s",
            f"{_clock(left)} left",
            *(f"{name} {value:.4g}" for name, value in numbers.items() if value == value),
        ]
        text = "  ".join(parts)
        self.stream.write(f"\r\x1b[2K{text}" if self._live else f"{text}\n")
        self.stream.flush()

    def close(self) -> None:
        """Leaves the line on the terminal."""
        if self.enabled and self._live:
            self.stream.write("\n")


def _clock(seconds: float) -> str:
    if seconds != seconds:
        return "?"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
