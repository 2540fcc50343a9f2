"""The results of a study: logs, figures, tables, provenance, and a report page."""

from __future__ import annotations

import csv
import html
import json
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torchrl_dceo.analysis.statistics.comparison import collect_run
from torchrl_dceo.analysis.statistics.figures import compare
from torchrl_dceo.studies.declaration import Job
from torchrl_dceo.studies.job_state import RunState
from torchrl_dceo.studies.provenance import commands, versions
from torchrl_dceo.studies.report import make_report
from torchrl_dceo.studies.runner import StudyRun, clock
from torchrl_dceo.studies.worker import JOB, read_json

__all__ = ["Results", "make_results"]

_LARGEST_TABLE = 1_000_000  # largest size of copied files
_LONGEST_TABLE = 40  # largest number of shown rows


@dataclass
class Results:
    """The files of :func:`make_results`.

    Attributes:
        folder (Path): the folder.
        figures (list of Path): of runs of agents, one for each environment.
        images (list of Path): of scripts.
        tables (list of Path): of scripts.
        page (Path, optional): the report, if it could be written.
        missing (list of str): a sentence for each missing item.
    """

    folder: Path
    figures: list[Path] = field(default_factory=list)
    images: list[Path] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    page: Path | None = None
    missing: list[str] = field(default_factory=list)


def make_results(study: StudyRun, command: str) -> Results:
    """Collects the logs of a study's runs, finished or not, and writes figures, tables and the report.

    Args:
        study (StudyRun): the runs.
        command (str): the command that reproduces everything.
    """
    results = Results(study.folders.results)
    states = study.states()
    if all(run.state == "waiting" for run in states.values()):
        raise ValueError(f"no run of {study.study.name} has begun yet: there is nothing to draw")
    results.folder.mkdir(parents=True, exist_ok=True)
    runs = _collect(study, states, results)
    if runs:
        _compare(study, results)
    for job in study.jobs:
        folder = study.folders.folder(job)
        if job.environment is None and folder.is_dir():
            _copy(folder, results.folder / job.name, results)
    origin = _origin(study, states, command)
    (results.folder / "study.json").write_text(json.dumps(origin, indent=1) + "\n")
    (results.folder / "README.md").write_text(_readme(origin, results, study.study.metrics))
    _page(results, origin, runs)
    return results


def _collect(
    study: StudyRun, states: Mapping[str, RunState], results: Results
) -> dict[tuple[str, str, int], Path]:
    """Copies the logs into the layout of comparisons, replacing those of an earlier call."""
    runs: dict[tuple[str, str, int], Path] = {}
    own = [job for job in study.jobs if job.environment is not None]
    for environment, agent in dict.fromkeys((str(job.environment), str(job.agent)) for job in own):
        for old in (results.folder / environment / agent).glob("*"):
            if old.name == "config.yaml" or old.match("seed_*.csv"):
                old.unlink()
    for job in own:
        folder, run = study.folders.folder(job), states[job.name]
        if not run.progress.frames:
            if run.state == "failed":
                results.missing.append(f"left out: {job.name}: {run.reason}")
            continue  # it has not written a row yet
        try:
            collect_run(folder, results.folder / str(job.environment), job.agent)
        except (OSError, ValueError, csv.Error) as error:
            # A damaged log, or defaults that have changed between two seeds.
            results.missing.append(f"left out: {error}")
            continue
        assert job.seed is not None
        runs[str(job.environment), str(job.agent), job.seed] = folder
    return runs


def _compare(study: StudyRun, results: Results) -> None:
    try:
        written = compare(results.folder, study.study.metrics)
    except ImportError as error:
        results.missing.append(str(error))
        return
    results.figures += [path for path in written if path.suffix == ".png"]


def _copy(source: Path, target: Path, results: Results) -> None:
    """Images and tables of a script."""
    for path in sorted(source.rglob("*")):
        known = {".png": results.images, ".csv": results.tables}.get(path.suffix)
        if known is None or path.stat().st_size > _LARGEST_TABLE:
            continue
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        known.append(copy)


def _origin(study: StudyRun, states: dict[str, RunState], command: str) -> dict[str, Any]:
    folder = study.folders.folder
    described = {job.name: read_json(folder(job) / JOB) for job in study.jobs}
    commits = {one["commit"] for one in described.values() if one.get("commit")}
    grid = [job for job in study.jobs if job.environment is not None]
    return {
        "study": study.study.name,
        "title": study.study.title,
        "question": study.study.question,
        "preset": study.folders.preset,
        "size": study.preset.size,
        "command": command,
        "commands": commands(study.jobs, lambda job: _short(folder(job))),
        "commits": sorted(commits),
        "versions": versions(),
        "environments": list(dict.fromkeys(job.environment for job in grid)),
        "agents": list(dict.fromkeys(job.agent for job in grid)),
        "seeds": sorted({job.seed for job in grid if job.seed is not None}),
        "done": sum(run.state == "done" for run in states.values()),
        "written": time.strftime("%Y-%m-%d %H:%M:%S"),
        "runs": [_described(job, states[job.name], _short(folder(job))) for job in study.jobs],
    }


def _described(job: Job, run: RunState, folder: str) -> dict[str, Any]:
    seconds = run.progress.seconds or run.seconds
    return {
        "environment": job.environment,
        "agent": job.agent,
        "seed": job.seed,
        "name": job.name,
        "state": run.state,
        "frames": run.progress.frames or None,
        "seconds": None if math.isnan(seconds) else round(seconds, 1),
        "folder": folder,
        "command": job.command(folder),
    }


def _short(path: Path) -> str:
    """A path relative to the current directory, if it is inside."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _readme(origin: dict[str, Any], results: Results, metrics: Sequence[str]) -> str:
    seconds = sum(run["seconds"] or 0 for run in origin["runs"])
    packages = ", ".join(f"{name} {origin['versions'].get(name)}" for name in ("torch", "torchrl"))
    commit = ", ".join(f"`{name}`" for name in origin["commits"]) or "unknown"
    summary = results.folder / "summary.md"
    parts = [
        f"# {escaped(origin['title'])}",
        f"{escaped(origin['question'])} Preset `{origin['preset']}`: {escaped(origin['size'])}.",
        f"    {origin['command']}",
        f"Commit {commit}, {packages}, Python {origin['versions']['python']}; {origin['done']} of "
        f"{len(origin['runs'])} runs done, {clock(seconds)} of computing in all.",
    ]
    if results.figures:
        parts += [
            f"![{escaped(path.stem)}]({_link(path, results.folder)})" for path in results.figures
        ]
        reward_free = not any(name.endswith("return") for name in metrics)
        parts.append(_coverage(results.folder) if reward_free else summary.read_text().strip())
    parts += [f"![{escaped(path.stem)}]({_link(path, results.folder)})" for path in results.images]
    for path in results.tables:
        table = _table(path)
        name = _link(path, results.folder)
        parts.append(f"`{name}`:\n\n{table}" if table else f"[{name}]({name})")
    parts.append("The runs, one by one (`study.json` has every one):")
    parts.append("\n".join(f"    {line}" for line in origin["commands"]))
    return "\n\n".join(parts) + "\n"


def _coverage(folder: Path) -> str:
    """The table of a study without reward: states visited."""
    with (folder / "summary.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "final_coverage"]
    lines = ["| environment | agent | runs | states visited, IQM | mean | std |", f"|{'---|' * 6}"]
    for row in rows:
        spread = f"{row['iqm']} [{row['low']}, {row['high']}]" if row["low"] else row["iqm"]
        cells = (
            row["environment"],
            row["agent"],
            row["runs"],
            spread,
            row["mean"],
            row["std"] or "–",
        )
        lines.append(f"| {' | '.join(map(escaped, cells))} |")
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Escapes text for Markdown tables: one line, no HTML tags, no cell separators.

    Examples:
        >>> from torchrl_dceo.studies.results import escaped
        >>> escaped("<b>a|b</b>")
        '&lt;b&gt;a\\\\|b&lt;/b&gt;'
    """
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def _link(path: Path, folder: Path) -> str:
    return quote(os.path.relpath(path, folder))


def _table(path: Path) -> str:
    """A CSV file as a Markdown table, empty if it is too long for one."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    if not 1 < len(rows) <= _LONGEST_TABLE:
        return ""
    lines = [f"| {' | '.join(map(escaped, row))} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]])


def _page(results: Results, origin: dict[str, Any], runs: dict[tuple[str, str, int], Path]) -> None:
    try:
        results.page = make_report(
            results.folder,
            title=f"{origin['title']} ({origin['size']})",
            summary=origin["question"],
            commands=[origin["command"], *origin["commands"]],
            runs=runs or None,
            images=results.images,
            tables=[path for path in results.tables if _table(path)],
        )
    except (ImportError, ValueError) as error:
        results.missing.append(f"no report page: {error}")
