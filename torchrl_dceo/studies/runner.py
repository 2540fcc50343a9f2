"""A study under way: which runs are left, starting them, watching them, saying what happened."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchrl_dceo.studies.declaration import Job, Preset, Study
from torchrl_dceo.studies.executors import Executor, Handle
from torchrl_dceo.studies.job_state import RunState, mark_failed, prepare, read_run
from torchrl_dceo.studies.provenance import commit

__all__ = ["StudyFolders", "StudyRun", "Watcher", "find_recipes"]

_POLL = 0.2  # seconds between looks at the workers
_LOOK = 2.0  # seconds between looks at runs that others have started


@dataclass(frozen=True)
class StudyFolders:
    """Where a study's files are.

    Args:
        out (Path): of all studies.
        study (str): its name.
        preset (str): its size; runs of different sizes never meet.
        results (Path, optional): where figures and tables go. Default: beside the runs.
    """

    out: Path
    study: str
    preset: str
    results_dir: Path | None = None

    @property
    def root(self) -> Path:
        """Of this study at this size."""
        return self.out.absolute() / self.study / self.preset

    @property
    def runs(self) -> Path:
        """A folder for each run, ``<world>/<agent>/seed_<k>``."""
        return self.root / "runs"

    @property
    def results(self) -> Path:
        """Logs, figures, tables and the page."""
        return self.root / "results" if self.results_dir is None else self.results_dir.absolute()

    def folder(self, job: Job) -> Path:
        """Of one run."""
        return self.runs / job.name


class Watcher(Protocol):
    """Is told what happens in a study."""

    def ended(self, job: Job, run: RunState, folder: Path) -> None:
        """A run is done, or has failed."""

    def look(self, runs: dict[str, RunState], parallel: int) -> None:
        """The state of all runs, now and then."""


class StudyRun:
    """The runs of a study at one size.

    Args:
        study (Study): what is asked.
        preset (Preset): the runs.
        folders (StudyFolders): where they are.
        recipes (Path): the folder of the recipes.

    Keyword Args:
        threads (int, optional): of each run. Default: ``1``.
        keep_checkpoints (bool, optional): also of runs that are done. Default: ``False``.
    """

    def __init__(
        self,
        study: Study,
        preset: Preset,
        folders: StudyFolders,
        recipes: Path,
        *,
        threads: int = 1,
        keep_checkpoints: bool = False,
    ) -> None:
        self.study = study
        self.preset = preset
        self.folders = folders
        self.recipes = recipes
        self.threads = threads
        self.keep_checkpoints = keep_checkpoints
        self.jobs = preset.jobs()

    def state(self, job: Job) -> RunState:
        """The state of a run."""
        return read_run(self.folders.folder(job))

    def states(self) -> dict[str, RunState]:
        """The state of each run, by its name."""
        return {job.name: self.state(job) for job in self.jobs}

    def run(self, executor: Executor, watcher: Watcher) -> bool:
        """Does all runs that are not done; returns whether all are then.

        A run that fails is reported and stops no other; the next call tries it again. Runs that another process is
        doing are waited for. Whatever ends this one, an interruption too, ends the runs that it has started.
        """
        now = commit(self.recipes.parent)
        for job in self.jobs:
            prepare(
                job,
                self.folders.folder(job),
                self.recipes,
                threads=self.threads,
                commit=now,
                keep_checkpoints=self.keep_checkpoints,
            )
        loop = _Loop(self, executor, watcher)
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
    """The runs of a study that are left: those that wait, those under way here, those under way elsewhere."""

    def __init__(self, study: StudyRun, executor: Executor, watcher: Watcher) -> None:
        self.executor, self.watcher = executor, watcher
        self.folder = study.folders.folder
        self.runs = study.states()
        self.waiting = [j for j in study.jobs if self.runs[j.name].state not in _NOT_OURS]
        self.elsewhere = [j for j in study.jobs if self.runs[j.name].state == "running"]
        self.here: list[tuple[Job, Handle]] = []
        self._looked = -_LOOK

    @property
    def goes_on(self) -> bool:
        return bool(self.waiting or self.here or self.elsewhere)

    def start(self) -> None:
        """Gives the executor as many runs as it has room for."""
        room = len(self.waiting)
        if self.executor.capacity is not None:
            room = max(0, self.executor.capacity - len(self.here) - len(self.elsewhere))
        starting, self.waiting = self.waiting[:room], self.waiting[room:]
        if starting:
            handles = self.executor.start([self.folder(job) for job in starting])
            self.here += zip(starting, handles, strict=True)

    def reap(self) -> None:
        """Takes the runs whose worker has ended, and those of others that have."""
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
            else:
                self.watcher.ended(job, run, self.folder(job))

    def look(self, last: bool = False) -> None:
        """Reads how far the runs are, now and then."""
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
        """What a run is after its worker has ended; one that could not say so itself has failed."""
        run = read_run(folder)
        if run.state in ("waiting", "interrupted"):
            mark_failed(folder, f"its worker ended early: {how}")
            run = read_run(folder)
        return run


_NOT_OURS = ("done", "running")


def find_recipes(given: Path | None = None) -> Path:
    """The folder of the recipes: as given, or beside the package.

    Examples:
        >>> from pathlib import Path
        >>> from torchrl_dceo.studies.runner import find_recipes
        >>> find_recipes(Path("/nowhere"))
        Traceback (most recent call last):
        FileNotFoundError: there are no recipes in /nowhere: say where they are, --recipes DIR
    """
    recipes = Path(__file__).parents[2] / "recipes" if given is None else given.absolute()
    if not any(recipes.glob("*.py")):
        raise FileNotFoundError(
            f"there are no recipes in {recipes}: say where they are, --recipes DIR"
        )
    return recipes
