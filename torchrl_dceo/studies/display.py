"""One line for a whole study: how many runs, how far, how long still."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from torchrl_dceo.studies.declaration import Job
from torchrl_dceo.studies.job_state import RunState
from torchrl_dceo.studies.worker import LOG

__all__ = ["StudyLine", "clock", "seconds_left"]


class StudyLine:
    """A line on a terminal that is written over, and a line above it for each run that ends.

    On anything but a terminal the line comes once a minute.

    Args:
        jobs (sequence of Job): the study's runs.
        stream (text stream, optional): default: standard error.

    Examples:
        >>> import io
        >>> from torchrl_dceo.studies import Grid
        >>> from torchrl_dceo.studies.display import StudyLine
        >>> from torchrl_dceo.studies.job_state import Progress, RunState
        >>> jobs = list(Grid("maze", ["dceo"], seeds=2, total_frames=100).jobs())
        >>> line = StudyLine(jobs, io.StringIO())
        >>> first, second = (RunState("running", Progress(50, 10.0)), RunState("waiting", Progress()))
        >>> line.text({jobs[0].name: first, jobs[1].name: second}, parallel=1)
        '[██████··················] 0/2 runs done  1 running  1 waiting  0:30 left  50/200 frames'
        >>> line.text({jobs[0].name: first, jobs[1].name: second}, parallel=1, width=50)
        '0/2 runs done  1 running  1 waiting  0:30 left'
    """

    def __init__(self, jobs: Sequence[Job], stream: TextIO | None = None) -> None:
        self.jobs = jobs
        self.stream = sys.stderr if stream is None else stream
        self._live = self.stream.isatty()
        self._shown = -math.inf

    def ended(self, job: Job, run: RunState, folder: Path) -> None:
        """Says that a run is done, or why not and where its log is."""
        took = "" if math.isnan(run.seconds) else f" ({clock(run.seconds)})"
        text = f"done    {job.name}{took}"
        if run.state != "done":
            text = f"{run.state}  {job.name}: {run.reason}\n        its log: {folder / LOG}"
        self._write(f"{text}\n")

    def look(self, runs: Mapping[str, RunState], parallel: int) -> None:
        """Shows how far the study is."""
        now = time.monotonic()
        if self._live:
            self._write(self.text(runs, parallel, shutil.get_terminal_size().columns - 1))
        elif now - self._shown >= 60:
            self._shown = now
            self._write(f"{self.text(runs, parallel)}\n")

    def close(self) -> None:
        """Leaves the line."""
        if self._live:
            self.stream.write("\n")
            self.stream.flush()

    def text(self, runs: Mapping[str, RunState], parallel: int, width: int | None = None) -> str:
        """The line; without its bar, or the frames, or cut short, if it is to fit into so many columns."""
        counts = Counter(run.state for run in runs.values())
        total = sum(job.frames or 0 for job in self.jobs)
        frames = sum(_frames(job, runs[job.name]) for job in self.jobs)
        # Frames where there are any; a study of scripts only counts them.
        share = frames / total if total else counts["done"] / max(1, len(self.jobs))
        filled = int(24 * share)
        bar = f"[{'█' * filled}{'·' * (24 - filled)}] "
        parts = [
            f"{counts['done']}/{len(self.jobs)} runs done",
            *(
                f"{counts[state]} {state}"
                for state in ("running", "failed", "interrupted", "waiting")
                if counts[state]
            ),
        ]
        long = [f"{frames:,}/{total:,} frames"] if total else []
        if counts["running"] or counts["waiting"]:
            parts.append(f"{clock(seconds_left(self.jobs, runs, parallel))} left")
        whole, bare = "  ".join([*parts, *long]), "  ".join(parts)
        lines = [bar + whole, bar + bare, bare]
        return next((line for line in lines if width is None or len(line) <= width), bare[:width])

    def _write(self, text: str) -> None:
        self.stream.write(f"\r\x1b[2K{text}" if self._live else text)
        self.stream.flush()


def seconds_left(jobs: Sequence[Job], runs: Mapping[str, RunState], parallel: int) -> float:
    """About how long a study still takes, NaN if nothing is known yet.

    A run is as fast as it was so far; one that has not begun as fast as others of its agent in its world, or else as
    all others are.

    Examples:
        >>> from torchrl_dceo.studies import Grid
        >>> from torchrl_dceo.studies.display import seconds_left
        >>> from torchrl_dceo.studies.job_state import Progress, RunState
        >>> jobs = list(Grid("maze", ["dceo", "ddqn"], seeds=2, total_frames=100).jobs())
        >>> states = [RunState("done", Progress(100, 30.0)), RunState("running", Progress(50, 10.0))]
        >>> states += [RunState("waiting", Progress())] * 2
        >>> names = [job.name for job in jobs]
        >>> seconds_left(jobs, dict(zip(names, states)), parallel=2)  # 10 + 30 + 20, two at a time
        30.0
    """
    pace: dict[tuple[str | None, str | None], list[float]] = {}
    for job in jobs:
        progress = runs[job.name].progress
        if progress.frames and progress.seconds:
            pace.setdefault((job.world, job.agent), []).append(progress.seconds / progress.frames)
    everything = [value for values in pace.values() for value in values]
    each = []
    for job in jobs:
        run = runs[job.name]
        if run.state in ("done", "failed"):
            continue
        if job.frames is None:
            each.append(60 * (job.minutes or 0.0))
            continue
        known = pace.get((job.world, job.agent)) or everything
        if not known:
            return math.nan
        own = run.progress.seconds / run.progress.frames if run.progress.frames else None
        rate = own or sum(known) / len(known)
        each.append(rate * (job.frames - min(job.frames, run.progress.frames)))
    return max(sum(each) / max(1, parallel), *each) if each else 0.0


def _frames(job: Job, run: RunState) -> int:
    if job.frames is None:
        return 0
    return job.frames if run.state == "done" else min(job.frames, run.progress.frames)


def clock(seconds: float) -> str:
    """A time span as h:mm:ss.

    Examples:
        >>> from torchrl_dceo.studies.display import clock
        >>> clock(75), clock(3675), clock(float("nan"))
        ('1:15', '1:01:15', '?')
    """
    if math.isnan(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
