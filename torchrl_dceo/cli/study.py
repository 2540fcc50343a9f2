"""The command line: ``dceo study list | run | status | figure | report``."""
# ruff: noqa: T201  (a command for people: printing is what it is for)

from __future__ import annotations

import argparse
import errno
import logging
import runpy
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from torchrl_dceo.settings import choices
from torchrl_dceo.studies.catalogue import STUDIES
from torchrl_dceo.studies.declaration import Grid, Preset, Study
from torchrl_dceo.studies.executors import EXECUTORS, Executor, make_executor
from torchrl_dceo.studies.job_state import RunState, State
from torchrl_dceo.studies.runner import StudyFolders, StudyLine, StudyRun
from torchrl_dceo.studies.worker import LOG

__all__ = ["main"]

_PROGRAM = "dceo study"
_COMMANDS = ("list", "run", "status", "figure", "report")
_STATES: tuple[State, ...] = ("done", "running", "failed", "interrupted", "waiting")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, 1 if a run failed, 2 for a mistake, 130 after Ctrl-C.

    Examples:
        >>> from torchrl_dceo.cli.study import main
        >>> main(["status", "onlin"])
        2
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
        return _mistake(f"unknown command {choices(arguments[0], _COMMANDS)}")
    options = _parser().parse_args(arguments)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "run": _run,
        "status": _status,
        "figure": _figure,
        "report": _report,
    }
    try:
        return commands[options.command](options)
    except (ValueError, FileNotFoundError, ImportError) as error:
        return _mistake(str(error))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else str(error.strerror)
        where = f" ({error.filename})" if error.filename else ""
        _mistake(f"{what}{where}: what is done is kept; make room and give the command again")
        return 1


def _mistake(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2


def _list(options: argparse.Namespace) -> int:
    for study in STUDIES.values():
        print(f"{study.name}\n    {study.question}")
        for name, preset in study.presets.items():
            if name != "smoke":
                jobs = preset.jobs()
                print(f"    {name}: {len(jobs)} run{'s' * (len(jobs) != 1)}; {preset.size}")
    print(f"\n{_PROGRAM} run <study> [--size laptop|paper|smoke]")
    return 0


def _run(options: argparse.Namespace) -> int:
    study = _study_run(options)
    executor = make_executor(
        options.executor,
        jobs=options.jobs,
        folder=study.folders.root,
        **{name: getattr(options, name) for name in _CLUSTER},
    )
    _report_failed_before(study)
    line = StudyLine(study.jobs)
    before = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        complete = study.run(executor, line)
        line.close()
        if not options.no_figure:
            _results(study, options)
    except KeyboardInterrupt:
        line.close()
        return _interrupted(options, executor)
    finally:
        signal.signal(signal.SIGTERM, before)
    if not complete:
        failed = sum(run.state != "done" for run in study.states().values())
        them = "it" if failed == 1 else "them"
        print(
            f"{failed} of {len(study.jobs)} runs failed; to try {them} again: {_command(options)}",
            file=sys.stderr,
        )
    return 0 if complete else 1


def _as_interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _interrupted(options: argparse.Namespace, executor: Executor) -> int:
    what = (
        "Stopped watching: runs continue in the queue (scancel ends them)"
        if executor.outlives
        else "Stopped"
    )
    print(f"{what}. To resume: {_command(options)}", file=sys.stderr)
    return 130


def _report_failed_before(study: StudyRun) -> None:
    for job in study.jobs:
        run = study.state(job)
        if run.state == "failed":
            print(f"trying again: {job.name} had failed: {run.reason}", file=sys.stderr)


def _status(options: argparse.Namespace) -> int:
    study = _study_run(options)
    states = study.states()
    groups: dict[str, list[RunState]] = {}
    for job in study.jobs:
        label = job.name if job.environment is None else f"{job.environment}/{job.agent}"
        groups.setdefault(label, []).append(states[job.name])
    width = max(len(label) for label in groups)
    for label, runs in groups.items():
        counts = Counter(run.state for run in runs)
        parts = [f"{counts[state]} {state}" for state in _STATES if counts[state]]
        frames = sum(run.progress.frames for run in runs)
        parts += [f"{frames:,} frames"] if frames else []
        print(f"{label:{width}}  {', '.join(parts)}")
    for job in study.jobs:
        if states[job.name].state == "failed":
            print(f"\nfailed  {job.name}: {states[job.name].reason}")
            print(f"        its log: {study.folders.folder(job) / LOG}")
    running = sum(run.state == "running" for run in states.values())
    print(f"\n{StudyLine(study.jobs).text(states, max(1, running))}")
    return 0


def _figure(options: argparse.Namespace) -> int:
    _results(_study_run(options), options)
    return 0


def _results(study: StudyRun, options: argparse.Namespace) -> None:
    from torchrl_dceo.studies.results import make_results  # slow to import

    results = make_results(study, _command(options))
    for sentence in results.missing:
        print(sentence, file=sys.stderr)
    summary = results.folder / "summary.md"
    if results.figures and summary.is_file():
        print(summary.read_text())
    for path in [*results.figures, *results.images, results.folder / "README.md", results.page]:
        if path is not None:
            print(path)


def _report(options: argparse.Namespace) -> int:
    from torchrl_dceo.studies.report import report_folder  # slow to import

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    print(
        report_folder(
            options.folder,
            title=options.title,
            summary=options.summary,
            out=options.out,
            repetitions=options.repetitions,
        )
    )
    return 0


def _study_run(options: argparse.Namespace) -> StudyRun:
    study = _find_study(options.study)
    preset = study.preset(options.size).restricted(
        environments=options.environments, agents=options.agents, seeds=options.seeds
    )
    if options.set:
        preset = _with_overrides(preset, options.set)
    return StudyRun(
        study,
        preset,
        StudyFolders(options.out, study.name, options.size, options.results),
        threads=getattr(options, "threads", 1),
        keep_checkpoints=getattr(options, "keep_checkpoints", False),
        retries=getattr(options, "retries", 0),
    )


def _find_study(name: str) -> Study:
    if name in STUDIES:
        return STUDIES[name]
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise FileNotFoundError(f"there is no file {name} with a study")
        study = runpy.run_path(name).get("STUDY")
        if not isinstance(study, Study):
            raise ValueError(f"{name} does not define STUDY, a torchrl_dceo.studies.Study")
        return study
    raise ValueError(
        f"unknown study {choices(name, list(STUDIES))}, or give a Python file with a STUDY"
    )


def _with_overrides(preset: Preset, overrides: Sequence[str]) -> Preset:
    for given in overrides:
        if "=" not in given:
            raise ValueError(f"--set takes KEY=VALUE as training does, got {given!r}")
        if given.split("=")[0] in ("env", "agent", "seed", "run_dir", "resume", "total_frames"):
            raise ValueError(f"{given.split('=')[0]} is the study's own: --set cannot change it")
    grids = [part for part in preset.parts if isinstance(part, Grid)]
    if not grids:
        raise ValueError("this study runs whole scripts: --set has nothing to change")
    parts = [
        replace(part, overrides=(*part.overrides, *overrides)) if isinstance(part, Grid) else part
        for part in preset.parts
    ]
    return replace(preset, parts=parts)


def _command(options: argparse.Namespace) -> str:
    """The command line that repeats or resumes this study."""
    usual = vars(_parser().parse_args(["run", options.study]))
    given = ["run", options.study, "--size", options.size]
    for name, value in vars(options).items():
        if name not in ("command", "study", "size") and value != usual[name]:
            values = value if isinstance(value, list) else [] if value is True else [value]
            given += [f"--{name.replace('_', '-')}", *map(str, values)]
    return f"{_PROGRAM} {shlex.join(given)}"


_OUT = Path("runs/studies")
_CLUSTER = ("partition", "time", "memory", "gpus", "account", "threads", "address")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Studies of many runs: run, compare and report them."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(_COMMANDS))
    commands.add_parser("list", help="the studies and their sizes")
    texts = {
        "run": "run what is not done, then draw; also resumes after an interruption",
        "status": "the state of every run of a study",
        "figure": "draw the figures of the finished runs",
    }
    for name, text in texts.items():
        _common(commands.add_parser(name, help=text, description=f"{name}: {text}."))
    _places(commands.choices["run"])
    report = commands.add_parser("report", help="write a folder of results as one HTML page")
    report.add_argument("folder", type=Path, help="e.g. results/online")
    report.add_argument("--title", help="default: that of study.json or the README")
    report.add_argument("--summary", help="a sentence beneath the title")
    report.add_argument("--out", type=Path, help="the page (default: report.html in the folder)")
    report.add_argument("--repetitions", type=int, default=2000, help="bootstrap samples")
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("study", help="a name from `list`, or a Python file that defines STUDY")
    add(
        *("--size", "--preset"),
        dest="size",
        default="laptop",
        help="laptop (default), paper or smoke; --preset is the same",
    )
    add("--environments", "--worlds", nargs="+", default=[], help="only these")
    add("--agents", nargs="+", default=[], help="only these")
    add("--seeds", nargs="+", default=[], action=_Seeds, help="these instead: 0 1 2, or 0-9")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="for every run: device=cuda")
    add("--out", type=Path, default=_OUT, help=f"of all studies' runs (default: {_OUT})")
    add("--results", type=Path, help="of logs, figures and page (default: beside the runs)")


def _places(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--executor", default="local", metavar="|".join(EXECUTORS), help="where runs take place")
    add("--jobs", type=int, help="runs at a time (default: 2 on this machine)")
    add("--threads", type=int, default=1, help="of each run (default: 1)")
    add("--retries", type=int, default=0, help="further tries of a run that fails (default: 0)")
    add("--no-figure", action="store_true", help="leave the drawing to `figure`")
    add("--keep-checkpoints", action="store_true", help="also of runs that are done")
    slurm = parser.add_argument_group("Slurm")
    slurm.add_argument("--partition")
    slurm.add_argument("--account")
    slurm.add_argument(
        "--time", type=int, default=24 * 60, help="minutes of a run (default: a day)"
    )
    slurm.add_argument("--memory", type=float, default=4.0, help="GB of a run (default: 4)")
    slurm.add_argument("--gpus", type=int, default=0, help="of a run (default: 0); also for Ray")
    ray = parser.add_argument_group("Ray")
    ray.add_argument("--address", help="of a cluster (default: one on this machine)")


class _Seeds(argparse.Action):
    """Numbers, and ranges of them."""

    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        seeds: list[int] = []
        for value in values:
            first, dash, last = value.partition("-")
            if not first.isdigit() or (dash and not last.isdigit()):
                parser.error(f"--seeds takes numbers and ranges such as 0-9, got {value!r}")
            seeds += range(int(first), int(last if dash else first) + 1)
        setattr(namespace, self.dest, seeds)
