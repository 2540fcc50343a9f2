"""Compares the agents of a study: ``python -m torchrl_dceo.analysis.compare results/<study>``.

``python -m torchrl_dceo.analysis.compare collect <run dir>... --out results/<study>/<world>`` puts runs into it.
"""
# ruff: noqa: T201  (a command for people: printing is what it is for)

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torchrl_dceo.analysis.compare_output import draw_comparison, summary_csv, summary_table
from torchrl_dceo.analysis.comparison import summarize
from torchrl_dceo.analysis.improvement import improvements
from torchrl_dceo.analysis.statistics_output import (
    draw_statistics,
    improvement_csv,
    improvement_table,
)
from torchrl_dceo.analysis.study_folder import collect_run, log_in_study, read_study
from torchrl_dceo.analysis.style import agent_colours

__all__ = ["compare", "main"]

_COMMAND = "python -m torchrl_dceo.analysis.compare"
_METRICS = ("eval_return", "train_return", "coverage")


def compare(
    folder: str | Path,
    metrics: Sequence[str] = _METRICS,
    x: str = "frames",
    repetitions: int = 2000,
) -> list[Path]:
    """Draws ``<world>.png`` for each world of a study and writes ``summary.csv`` and ``summary.md``, into the study.

    Performance profiles and probabilities of improvement go to ``statistics.png`` and, where there are two agents or
    more, to ``improvement.csv`` and into ``summary.md``.

    Args:
        folder (path-like): the study, laid out as ``<world>/<agent>/seed_<k>.csv``.
        metrics (sequence of str, optional): the columns to draw and to summarise. Default: returns and coverage.
        x (str, optional): the column along which curves are drawn. Default: ``"frames"``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.

    Returns:
        list of Path: what was written.
    """
    study, folder = read_study(folder), Path(folder)
    written = []
    # One colour an agent in all worlds of the study.
    colours = agent_colours(agent.name for agents in study.values() for agent in agents)
    for world, agents in study.items():
        written.append(folder / f"{world}.png")
        figure = draw_comparison(world, agents, metrics, x, repetitions, colours)
        figure.savefig(written[-1])
    summaries = summarize(study, metrics, repetitions)
    returns = [metric for metric in metrics if metric.endswith("return")]
    pairs = improvements(summaries, metrics, repetitions)
    metric = returns[0] if returns else metrics[0]
    statistics = draw_statistics(summaries, pairs, metric, repetitions, colours)
    if statistics is not None:
        written.append(folder / "statistics.png")
        statistics.savefig(written[-1])
    texts = {"summary.csv": summary_csv(summaries)}
    if pairs:
        texts["improvement.csv"] = improvement_csv(pairs)
    texts["summary.md"] = summary_table(summaries, *returns[:1]) + improvement_table(pairs, metric)
    for name, text in texts.items():
        written.append(folder / name)
        written[-1].write_text(text)
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 if something cannot be read.

    Examples:
        >>> from torchrl_dceo.analysis.compare import main
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
    parser.add_argument("--metrics", nargs="+", default=list(_METRICS), help="columns of the logs")
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
