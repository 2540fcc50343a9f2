"""``python -m torchrl_dceo.cli.plot RUN``: draws the figures of runs again."""
# ruff: noqa: T201  (a command for people: printing is what it is for)

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from torchrl_dceo.analysis.figures.run import draw_run

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 if there is nothing that can be drawn.

    Examples:
        >>> from torchrl_dceo.cli.plot import main
        >>> main(["/nowhere"])
        2
    """
    parser = argparse.ArgumentParser(
        prog="python -m torchrl_dceo.cli.plot",
        description="Draws the pictures of runs again, into their directories.",
    )
    parser.add_argument("run_dir", nargs="+", help="the directory of a run")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for run_dir in options.run_dir:
        try:
            for picture in draw_run(run_dir):
                print(picture)
        except (FileNotFoundError, ValueError, ImportError) as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
