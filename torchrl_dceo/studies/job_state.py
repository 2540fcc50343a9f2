"""The state of a study on disk: what every run's folder says."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torchrl_dceo.studies import worker
from torchrl_dceo.studies.declaration import Job

__all__ = ["Progress", "RunState", "State", "mark_failed", "prepare", "read_run", "read_state"]

State = Literal["waiting", "running", "done", "failed", "interrupted"]
# A recipe's run was begun if one of these is there: it goes on from its newest checkpoint then.
_BEGUN = ("run.json", "progress.csv")
# What makes a run another one.
_SAME = ("script", "arguments")


@dataclass(frozen=True)
class Progress:
    """How far a run of an agent is.

    Attributes:
        frames (int): done so far.
        seconds (float): that they took.
    """

    frames: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class RunState:
    """A run of a study, as its folder says.

    Attributes:
        state (str): ``"waiting"``, ``"running"``, ``"done"``, ``"failed"`` or ``"interrupted"``.
        progress (Progress): of its log.
        seconds (float): how long its last attempt took, as far as it has ended.
        reason (str): why it failed: how it ended, and the last line of its log.
    """

    state: State
    progress: Progress
    seconds: float = math.nan
    reason: str = ""


def prepare(
    job: Job,
    folder: Path,
    recipes: Path,
    *,
    threads: int = 1,
    commit: str | None = None,
    keep_checkpoints: bool = False,
) -> None:
    """Makes the folder of a run and writes into it what a worker has to know; that of one that is done stays as it is.

    Args:
        job (Job): the run.
        folder (Path): its folder.
        recipes (Path): where the recipes are.

    Keyword Args:
        threads (int, optional): of its process. Default: ``1``.
        commit (str, optional): of the code that it will run.
        keep_checkpoints (bool, optional): also once it is done: each holds the whole replay. Default: ``False``.

    Raises:
        ValueError: if a run with other settings was begun there.
    """
    script = script_path(job, recipes)
    if not script.is_file():
        raise ValueError(
            f"there is no {job.script} beside the package ({script}): say where the recipes are, --recipes DIR"
        )
    described = {
        "script": job.script,
        "arguments": list(job.arguments),
        "continued": list(job.continued),
        "hydra": job.hydra,
        "begun": list(_BEGUN) if job.continued != job.arguments else [],
        "program": [sys.executable, "-W", "ignore", str(script)],
        "cwd": str(script.parent.parent),
        "env": _environment(threads),
        "dropped": [] if keep_checkpoints else ["checkpoints"],
        "commit": commit,
    }
    before = worker.read_json(folder / worker.JOB)
    if before and (folder / worker.STATE).exists():
        for name in _SAME:
            if before.get(name) != described[name]:
                raise ValueError(
                    f"{folder} holds a run with other settings ({_difference(before, described)}): "
                    "choose another --out, or remove it"
                )
    folder.mkdir(parents=True, exist_ok=True)
    if before != described and read_state(folder) not in ("done", "running"):
        worker.write_json(folder / worker.JOB, described)


def script_path(job: Job, recipes: Path) -> Path:
    """Where the program of a job is: a recipe in the folder of recipes, anything else from the root beside it."""
    head, _, rest = job.script.partition("/")
    return recipes / rest if head == "recipes" else recipes.parent / job.script


def _environment(threads: int) -> dict[str, str]:
    package = str(Path(__file__).parents[2])
    path = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), **counts}


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old = [before.get("script"), *before.get("arguments", [])]
    new = [now["script"], *now["arguments"]]
    gone = [str(value) for value in old if value not in new]
    come = [value for value in new if value not in old]
    if not gone and not come:
        return "in another order"
    return f"{' '.join(gone) or 'nothing'} instead of {' '.join(come) or 'nothing'}"


def read_state(folder: Path) -> State:
    """What a run is doing, whatever happened to those who were to say so."""
    if worker.is_held(folder / worker.LOCK):
        return "running"
    stored = worker.read_json(folder / worker.STATE).get("state", "waiting")
    if stored == "running":
        return "interrupted"  # its worker is no more
    return stored if stored in ("done", "failed", "interrupted") else "waiting"


def read_run(folder: Path) -> RunState:
    """All that a run's folder says."""
    state, stored = read_state(folder), worker.read_json(folder / worker.STATE)
    seconds = stored.get("ended", math.nan) - stored.get("began", math.nan)
    reason = ""
    if state == "failed":
        said = last_line(folder / worker.LOG)
        reason = "; ".join(filter(None, (stored.get("reason", ""), said)))
    return RunState(state, read_progress_end(folder), seconds, reason)


def mark_failed(folder: Path, reason: str) -> None:
    """Writes down that a run failed whose worker could not: it was killed, or never came to life."""
    stored = worker.read_json(folder / worker.STATE)
    worker.write_json(folder / worker.STATE, {**stored, "state": "failed", "reason": reason})


def last_line(path: Path) -> str:
    """The last line of a log that says something, but for our own headings."""
    for line in reversed(_tail(path).splitlines()):
        text = line.split("\r")[-1].strip()
        if text and not text.startswith("== "):
            return text[:300]
    return ""


def read_progress_end(folder: Path) -> Progress:
    """How far a run is, from the last whole row of its log."""
    path = folder / "progress.csv"
    try:
        with path.open() as file:
            names = file.readline().strip().split(",")
    except OSError:
        return Progress()
    rows = _tail(path).split("\n")[:-1]
    values = rows[-1].split(",") if rows else []
    row = dict(zip(names, values, strict=False))
    try:
        return Progress(int(float(row["frames"])), float(row.get("seconds") or 0.0))
    except (KeyError, ValueError):
        return Progress()


def _tail(path: Path, size: int = 8192) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
