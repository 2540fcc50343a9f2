"""The state of a study on disk: the content of every run's folder, also of damaged ones."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torchrl_dceo.studies import worker
from torchrl_dceo.studies.declaration import Job, program_arguments

__all__ = [
    "DamagedRun",
    "Progress",
    "RunState",
    "State",
    "damage",
    "mark_failed",
    "prepare",
    "read_run",
    "read_state",
]

State = Literal["waiting", "running", "done", "failed", "interrupted"]
# If one of these exists, a training run was started, and is resumed from its newest checkpoint.
_PROGRESS = "progress.csv"
_BEGUN = ("run.json", _PROGRESS)
_REPEAT = "remove the folder of the run to repeat it"
# Settings that identify a run.
_SAME = ("program", "arguments")


@dataclass(frozen=True)
class Progress:
    """The progress of an agent's run.

    Attributes:
        frames (int): frames so far.
        seconds (float): their duration.
    """

    frames: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class RunState:
    """The state of a study's run, read from its folder.

    Attributes:
        state (str): ``"waiting"``, ``"running"``, ``"done"``, ``"failed"`` or ``"interrupted"``.
        progress (Progress): progress according to its log.
        seconds (float): the duration of its last finished attempt.
        reason (str): the reason of a failure: how it ended, and the last line of its log.
    """

    state: State
    progress: Progress
    seconds: float = math.nan
    reason: str = ""


def prepare(
    job: Job,
    folder: Path,
    *,
    threads: int = 1,
    commit: str | None = None,
    keep_checkpoints: bool = False,
) -> None:
    """Creates the folder of a run with the job description for a worker; folders of finished runs are not changed.

    Args:
        job (Job): the run.
        folder (Path): its folder.

    Keyword Args:
        threads (int, optional): threads of its process. Default: ``1``.
        commit (str, optional): the commit of the code.
        keep_checkpoints (bool, optional): keep the checkpoints of a finished run. Default: ``False``.

    Raises:
        ValueError: if there is a run with other settings, or its program is a missing file.
        DamagedRun: if the folder cannot be used.
    """
    program = job.program
    if program.endswith(".py"):
        program = os.path.abspath(program)
        if not os.path.isfile(program):
            raise ValueError(f"there is no file {program}, the program of {job.name}")
    described = {
        "program": program,
        "arguments": list(job.arguments),
        "continued": list(job.continued),
        "hydra": job.hydra,
        "begun": list(_BEGUN) if job.continued != job.arguments else [],
        "python": [sys.executable, "-W", "ignore", *program_arguments(program)],
        "cwd": os.getcwd(),
        "env": _environment(threads),
        "dropped": [] if keep_checkpoints else ["checkpoints"],
        "commit": commit,
    }
    problem = damage(folder)
    if problem:
        raise DamagedRun(problem)
    before = worker.read_json(folder / worker.JOB)
    if before and (folder / worker.STATE).exists():
        for name in _SAME:
            if before.get(name) != described[name]:
                raise ValueError(
                    f"{folder} holds a run with other settings ({_difference(before, described)}): "
                    "choose another --out, or remove it"
                )
    folder.mkdir(parents=True, exist_ok=True)
    run = read_run(folder)
    if before != described and run.state not in ("done", "running"):
        worker.write_json(folder / worker.JOB, described)
    if run.state == "failed":
        # A wrong state "done" would prevent a worker from repeating the run.
        mark_failed(folder, run.reason)


class DamagedRun(Exception):
    """The folder of a run is damaged: this run cannot be started, other runs can."""


def damage(folder: Path) -> str:
    """Describes damage of a run's folder in one sentence; empty if there is none.

    Examples:
        >>> import pathlib, tempfile
        >>> from torchrl_dceo.studies.job_state import damage
        >>> with tempfile.TemporaryDirectory() as name:
        ...     (pathlib.Path(name) / "job.lock").mkdir()
        ...     damage(pathlib.Path(name))
        'job.lock is not a file: remove the folder of the run to repeat it'
    """
    if not folder.exists():
        # A parent may be a file instead of a folder.
        above = next((parent for parent in folder.parents if parent.exists()), folder)
        return "" if above.is_dir() else f"{above} is not a folder: remove it to run this"
    if not folder.is_dir():
        return "there is a file in the place of its folder: remove it to run this"
    for name in (worker.JOB, worker.LOCK, worker.STATE, worker.LOG):
        path = folder / name
        if path.exists() and not (path.is_file() or path.is_char_device()):
            return f"{name} is not a file: {_REPEAT}"
    if (folder / worker.JOB).exists():
        job = worker.read_json(folder / worker.JOB)
        arguments = [job.get(name) for name in ("arguments", "continued", "begun", "python")]
        whole = isinstance(job.get("program"), str) and all(map(_is_list_of_str, arguments))
        if not whole:
            return f"{worker.JOB} does not describe a run: {_REPEAT}"
    return ""


def _is_list_of_str(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _environment(threads: int) -> dict[str, str]:
    package = str(Path(__file__).parents[2])
    path = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), **counts}


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old = [before.get("program"), *before.get("arguments", [])]
    new = [now["program"], *now["arguments"]]
    gone = [str(value) for value in old if value not in new]
    come = [value for value in new if value not in old]
    if not gone and not come:
        return "in another order"
    return f"{' '.join(gone) or 'nothing'} instead of {' '.join(come) or 'nothing'}"


def read_state(folder: Path) -> State:
    """The state of a run, also if its processes ended without writing it."""
    return read_run(folder).state


def _stored_state(folder: Path) -> State:
    if worker.is_held(folder / worker.LOCK):
        return "running"
    stored = worker.read_json(folder / worker.STATE).get("state", "waiting")
    if stored == "running":
        return "interrupted"  # its worker has ended
    return stored if stored in ("done", "failed", "interrupted") else "waiting"


def read_run(folder: Path) -> RunState:
    """Reads the state of a run's folder; a damaged folder counts as a failed run."""
    problem = damage(folder)
    if problem:
        return RunState("failed", Progress(), reason=problem)
    state, stored = _stored_state(folder), worker.read_json(folder / worker.STATE)
    seconds = _number(stored.get("ended")) - _number(stored.get("began"))
    # Only a training run, which can be resumed, has a log of frames.
    job, progress = worker.read_json(folder / worker.JOB), Progress()
    trains = not job or bool(job["begun"])
    try:
        progress = read_progress_end(folder) if trains else progress
    except ValueError as error:
        if state != "running":
            return RunState("failed", progress, seconds, f"{error}: {_REPEAT}")
    if state == "done" and job and trains and not progress.frames:
        reason = f"it is marked as done, but {_PROGRESS} holds no row: {_REPEAT}"
        return RunState("failed", progress, seconds, reason)
    reason = ""
    if state == "failed":
        parts = (str(stored.get("reason", "")), last_line(folder / worker.LOG))
        reason = "; ".join(dict.fromkeys(filter(None, parts)))
    return RunState(state, progress, seconds, reason)


def _number(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number else math.nan


def mark_failed(folder: Path, reason: str) -> None:
    """Records the failure of a run whose worker was killed or never started."""
    stored = worker.read_json(folder / worker.STATE)
    worker.write_json(folder / worker.STATE, {**stored, "state": "failed", "reason": reason})


def last_line(path: Path) -> str:
    """The last non-empty line of a log, except our own headings."""
    for line in reversed(_tail(path).splitlines()):
        text = line.split("\r")[-1].strip()
        if text and not text.startswith("== "):
            return text[:300]
    return ""


def read_progress_end(folder: Path) -> Progress:
    """The progress of a run, from the last complete row of its log.

    Raises:
        ValueError: if the file is not a log.
    """
    path = folder / _PROGRESS
    if not path.exists():
        return Progress()
    try:
        with path.open("rb") as file:
            head = file.readline(65_536)
    except OSError as error:
        raise ValueError(f"{_PROGRESS} cannot be read ({error.strerror})") from None
    names = head.decode(errors="replace").strip().split(",")
    rows = _tail(path).split("\n")[:-1]
    if not head.endswith(b"\n") and not rows:
        return Progress()  # its first line is being written
    if "frames" not in names:
        raise ValueError(f"{_PROGRESS} is not a log: its first line has no column frames")
    if b"\n" in head and len(rows) == 1 and rows[0].strip() == ",".join(names):
        return Progress()  # no row yet
    row = dict(zip(names, rows[-1].split(","), strict=False))
    try:
        return Progress(int(float(row["frames"])), float(row.get("seconds") or 0.0))
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{_PROGRESS} is damaged: its last row is {rows[-1][:40]!r}") from None


def _tail(path: Path, size: int = 8192) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""
