"""``dceo plot RUN`` and ``dceo list``: what there is, and what a run left behind."""
# ruff: noqa: T201  (commands for people: printing is what they are for)

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

__all__ = ["plot", "show_names"]


def plot(arguments: Sequence[str] | None = None) -> int:
    """Draws the figures of runs again; returns 0, or 2 if there is nothing that can be drawn.

    Examples:
        >>> from torchrl_dceo.cli.runs import plot
        >>> plot(["/nowhere"])
        2
    """
    from torchrl_dceo.analysis.figures.run import draw_run  # takes its time to import

    parser = argparse.ArgumentParser(
        prog="dceo plot", description="Draws the figures of runs again, into their directories."
    )
    parser.add_argument("run_dir", nargs="+", help="the directory of a run")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for run_dir in options.run_dir:
        try:
            for figure in draw_run(run_dir):
                print(figure)
        except (FileNotFoundError, ValueError, ImportError) as error:
            print(error, file=sys.stderr)
            return 2
    return 0


def show_names(arguments: Sequence[str] | None = None) -> int:
    """Lists what can be named on the command line; returns 0.

    Examples:
        >>> from torchrl_dceo.cli.runs import show_names
        >>> show_names(["agents"])
        dceo
        dceo_two_phase
        ...
        0
    """
    from torchrl_dceo.agents import AGENTS
    from torchrl_dceo.cli.config import CONF
    from torchrl_dceo.studies.catalogue import STUDIES

    names = {
        "environments": sorted(path.stem for path in (CONF / "env").glob("*.yaml")),
        "agents": list(AGENTS),
        "studies": list(STUDIES),
    }
    uses = {
        "environments": "dceo train env=<name>",
        "agents": "dceo train agent=<name>",
        "studies": "dceo study run <name>",
    }
    parser = argparse.ArgumentParser(prog="dceo list", description="Lists what can be named.")
    parser.add_argument("what", nargs="?", choices=list(names), help="only these, one a line")
    chosen = parser.parse_args(arguments).what
    if chosen is not None:
        print("\n".join(names[chosen]))
        return 0
    for what, each in names.items():
        print(f"{what} ({uses[what]})", *(f"  {name}" for name in each), "", sep="\n")
    return 0
