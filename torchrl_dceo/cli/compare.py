"""Compares the agents of a study: ``python -m torchrl_dceo.cli.compare results/<study>``.

``python -m torchrl_dceo.cli.compare collect <run dir>... --out results/<study>/<world>`` puts runs into it.
"""
# ruff: noqa: T201  (a command for people: printing is what it is for)

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torchrl_dceo.analysis.statistics.comparison import collect_run, log_in_study
from torchrl_dceo.analysis.statistics.figures import METRICS, compare

__all__ = ["main"]

_COMMAND = "python -m torchrl_dceo.cli.compare"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 if something cannot be read.

    Examples:
        >>> from torchrl_dceo.cli.compare import main
        >>> main(["/nowhere"])
        2
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if arguments[:1] == ["collect"]:
            _collect(arguments[1:])
        else:
            _compare(arguments)
    except (FileNotFoundError, ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _compare(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog=_COMMAND,
        description="Figures and tables of a study, written into it. "
        f"`{_COMMAND} collect` puts runs into a study.",
    )
    parser.add_argument("study", help="the folder, laid out as <world>/<agent>/seed_<k>.csv")
    parser.add_argument("--x", default="frames", help="frames (default), updates or seconds")
    parser.add_argument("--metrics", nargs="+", default=list(METRICS), help="columns of the logs")
    parser.add_argument("--repetitions", type=int, default=2000, help="bootstrap samples")
    options = parser.parse_args(arguments)
    for path in compare(options.study, options.metrics, options.x, options.repetitions):
        print(path)
        if path.suffix == ".md":
            print(f"\n{path.read_text()}")


def _collect(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog=f"{_COMMAND} collect", description="Copies the logs of runs into a study."
    )
    parser.add_argument("run_dir", nargs="+", help="the directory of a recipe's run")
    parser.add_argument("--out", required=True, help="the folder of the world: <study>/<world>")
    parser.add_argument("--name", help="the folder of the agent, if not the agent's name")
    options = parser.parse_args(arguments)
    taken: dict[Path, str] = {}
    for run_dir in options.run_dir:
        path = log_in_study(run_dir, options.out, options.name)
        if path in taken:
            raise ValueError(f"{taken[path]} and {run_dir} are of one agent and seed: {path}")
        taken[path] = run_dir
    for run_dir in options.run_dir:
        print(collect_run(run_dir, options.out, options.name))


if __name__ == "__main__":
    sys.exit(main())
