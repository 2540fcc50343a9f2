"""Runs a study: starts and monitors the remaining runs, with a progress line."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TextIO

from torchrl_dceo.studies.declaration import Job, Preset, Study, check_folder_name
from torchrl_dceo.studies.executors import Executor, Handle
from torchrl_dceo.studies.job_state import (
    DamagedRun,
    RunState,
    damage,
    mark_failed,
    prepare,
    read_run,
)
from torchrl_dceo.studies.provenance import commit
from torchrl_dceo.studies.worker import LOG

__all__ = ["StudyFolders", "StudyLine", "StudyRun", "Watcher", "clock", "seconds_left"]

_POLL = 0.2  # seconds between checks of the workers
_LOOK = 2.0  # seconds between checks of runs of other processes


@dataclass(frozen=True)
class StudyFolders:
    """The folders of a study.

    Args:
        out (Path): the folder of all studies.
        study (str): its name.
        preset (str): its size; runs of different sizes are in separate folders.
        results (Path, optional): the folder of figures and tables. Default: next to the runs.
    """

    out: Path
    study: str
    preset: str
    results_dir: Path | None = None

    def __post_init__(self) -> None:
        for name in (self.study, self.preset):
            check_folder_name("a study or a preset", name)

    @property
    def root(self) -> Path:
        """The folder of this study at this size."""
        return self.out.absolute() / self.study / self.preset

    @property
    def runs(self) -> Path:
        """The parent of the runs' folders, ``<environment>/<agent>/seed_<k>``."""
        return self.root / "runs"

    @property
    def results(self) -> Path:
        """The folder of logs, figures, tables and the page."""
        return self.root / "results" if self.results_dir is None else self.results_dir.absolute()

    def folder(self, job: Job) -> Path:
        """The folder of a run."""
        return self.runs / job.name


class Watcher(Protocol):
    """Callbacks of a study."""

    def ended(self, job: Job, run: RunState, folder: Path) -> None:
        """Called when a run is done or has failed."""

    def look(self, runs: dict[str, RunState], parallel: int) -> None:
        """Called periodically with the state of all runs."""


class StudyRun:
    """The runs of a study at one size.

    Args:
        study (Study): the study.
        preset (Preset): the runs.
        folders (StudyFolders): its folders.

    Keyword Args:
        threads (int, optional): threads of each run. Default: ``1``.
        keep_checkpoints (bool, optional): keep the checkpoints of finished runs. Default: ``False``.
        retries (int, optional): restarts of a failed run within one call. Default: ``0``.
    """

    def __init__(
        self,
        study: Study,
        preset: Preset,
        folders: StudyFolders,
        *,
        threads: int = 1,
        keep_checkpoints: bool = False,
        retries: int = 0,
    ) -> None:
        if retries < 0:
            raise ValueError(f"retries must be at least 0, got {retries}")
        self.study = study
        self.preset = preset
        self.folders = folders
        self.threads = threads
        self.keep_checkpoints = keep_checkpoints
        self.retries = retries
        self.jobs = preset.jobs()

    def state(self, job: Job) -> RunState:
        """The state of a run."""
        return read_run(self.folders.folder(job))

    def states(self) -> dict[str, RunState]:
        """The state of each run, by its name."""
        return {job.name: self.state(job) for job in self.jobs}

    def run(self, executor: Executor, watcher: Watcher) -> bool:
        """Executes all remaining runs; returns whether all runs are done.

        A failed run, or one with a damaged folder, is reported and does not stop the others; the next call retries
        it. Runs of another process are waited for. If this process ends or is interrupted, the runs that it has started
        end too.
        """
        now = commit(Path(__file__).parent)
        damaged = []
        for job in self.jobs:
            try:
                prepare(
                    job,
                    self.folders.folder(job),
                    threads=self.threads,
                    commit=now,
                    keep_checkpoints=self.keep_checkpoints,
                )
            except DamagedRun:
                damaged.append(job)
        loop = _Loop(self, executor, watcher, damaged)
        try:
            while loop.goes_on:
                loop.start()
                loop.reap()
                loop.look()
                time.sleep(_POLL)
        finally:
            executor.stop()
        loop.look(last=True)
        return all(run.state == "done" for run in loop.runs.values())


class _Loop:
    """The remaining runs of a study: waiting, running here, running in other processes."""

    def __init__(
        self, study: StudyRun, executor: Executor, watcher: Watcher, damaged: Sequence[Job]
    ) -> None:
        self.executor, self.watcher = executor, watcher
        self.folder = study.folders.folder
        self.runs = study.states()
        self.retries = dict.fromkeys((job.name for job in study.jobs), study.retries)
        for job in damaged:
            watcher.ended(job, self.runs[job.name], self.folder(job))
        self.waiting = [
            job
            for job in study.jobs
            if self.runs[job.name].state not in _NOT_OURS and job not in damaged
        ]
        self.elsewhere = [j for j in study.jobs if self.runs[j.name].state == "running"]
        self.here: list[tuple[Job, Handle]] = []
        self._looked = -_LOOK

    @property
    def goes_on(self) -> bool:
        return bool(self.waiting or self.here or self.elsewhere)

    def start(self) -> None:
        """Starts as many runs as the executor's capacity allows."""
        room = len(self.waiting)
        if self.executor.capacity is not None:
            room = max(0, self.executor.capacity - len(self.here) - len(self.elsewhere))
        starting, self.waiting = self.waiting[:room], self.waiting[room:]
        if starting:
            handles = self.executor.start([self.folder(job) for job in starting])
            self.here += zip(starting, handles, strict=True)

    def reap(self) -> None:
        """Collects the runs whose worker has ended, here or in other processes."""
        going, ended = [], []
        for job, handle in self.here:
            how = handle.ended()
            if how is None:
                going.append((job, handle))
            else:
                ended.append((job, how))
        self.here = going
        for job, how in ended:
            run = self._after(self.folder(job), how)
            self.runs[job.name] = run
            if run.state == "running":
                self.elsewhere.append(job)  # another worker has it
                continue
            self.watcher.ended(job, run, self.folder(job))
            if run.state == "failed" and self.retries[job.name] and not damage(self.folder(job)):
                self.retries[job.name] -= 1
                self.waiting.append(job)

    def look(self, last: bool = False) -> None:
        """Reads the progress of the runs periodically."""
        now = time.monotonic()
        if not last and now - self._looked < _LOOK:
            return
        self._looked = now
        for job in [*(job for job, _ in self.here), *self.elsewhere]:
            self.runs[job.name] = read_run(self.folder(job))
        for job in [j for j in self.elsewhere if self.runs[j.name].state != "running"]:
            self.elsewhere.remove(job)
            if self.runs[job.name].state == "done":
                self.watcher.ended(job, self.runs[job.name], self.folder(job))
            else:
                self.waiting.append(job)
        self.watcher.look(self.runs, max(1, len(self.here) + len(self.elsewhere)))

    @staticmethod
    def _after(folder: Path, how: str) -> RunState:
        """The state of a run after its worker has ended; if the worker wrote none, the run has failed."""
        run = read_run(folder)
        if run.state in ("waiting", "interrupted"):
            reason = f"its worker ended early: {how}"
            try:
                mark_failed(folder, reason)
            except OSError as error:  # a full disk: the study continues without the file
                return replace(run, state="failed", reason=f"{reason} ({error.strerror})")
            run = read_run(folder)
        return run


_NOT_OURS = ("done", "running")


class StudyLine:
    """A progress line on the terminal, and a line above it for each finished run.

    If the stream is not a terminal, the line is printed once per minute.

    Args:
        jobs (sequence of Job): the study's runs.
        stream (text stream, optional): default: standard error.

    Examples:
        >>> import io
        >>> from torchrl_dceo.studies import Grid
        >>> from torchrl_dceo.studies.runner import StudyLine
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
        """Prints that a run is done, or the reason of its failure and its log."""
        took = "" if math.isnan(run.seconds) else f" ({clock(run.seconds)})"
        text = f"done    {job.name}{took}"
        if run.state != "done":
            text = f"{run.state}  {job.name}: {run.reason}\n        its log: {folder / LOG}"
        self._write(f"{text}\n")

    def look(self, runs: Mapping[str, RunState], parallel: int) -> None:
        """Prints the progress of the study."""
        now = time.monotonic()
        if self._live:
            self._write(self.text(runs, parallel, shutil.get_terminal_size().columns - 1))
        elif now - self._shown >= 60:
            self._shown = now
            self._write(f"{self.text(runs, parallel)}\n")

    def close(self) -> None:
        """Ends the line."""
        if self._live:
            self.stream.write("\n")
            self.stream.flush()

    def text(self, runs: Mapping[str, RunState], parallel: int, width: int | None = None) -> str:
        """The progress line; shortened if it must fit into a number of columns."""
        counts = Counter(run.state for run in runs.values())
        total = sum(job.frames or 0 for job in self.jobs)
        frames = sum(_frames(job, runs[job.name]) for job in self.jobs)
        # Frames if there are any; a study of scripts has none.
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
    """Estimates the remaining time of a study; NaN if nothing is known yet.

    A run is assumed to keep its speed; one that has not started has the speed of its agent in its environment,
    or else the mean speed.

    Examples:
        >>> from torchrl_dceo.studies import Grid
        >>> from torchrl_dceo.studies.runner import seconds_left
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
            pace.setdefault((job.environment, job.agent), []).append(
                progress.seconds / progress.frames
            )
    everything = [value for values in pace.values() for value in values]
    each = []
    for job in jobs:
        run = runs[job.name]
        if run.state in ("done", "failed"):
            continue
        if job.frames is None:
            each.append(60 * (job.minutes or 0.0))
            continue
        known = pace.get((job.environment, job.agent)) or everything
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
        >>> from torchrl_dceo.studies.runner import clock
        >>> clock(75), clock(3675), clock(float("nan"))
        ('1:15', '1:01:15', '?')
    """
    if math.isnan(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
