"""Writes the page of any folder of results: ``python -m torchrl_dceo.studies.report <results folder>``."""
# ruff: noqa: T201  (a command for people: printing is what it is for)

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from torchrl_dceo.studies.report.page import make_report
from torchrl_dceo.studies.report.provenance import read_provenance

__all__ = ["main"]

# What compare writes: the page has all of it.
_OWN_TABLES = {"summary.csv", "improvement.csv"}
_OWN_PICTURES = {"statistics.png"}
_PICTURES = {".png", ".jpg", ".jpeg", ".gif"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 if something cannot be read.

    Examples:
        >>> from torchrl_dceo.studies.report.__main__ import main
        >>> main(["/nowhere"])
        2
    """
    parser = argparse.ArgumentParser(
        prog="python -m torchrl_dceo.studies.report",
        description="Writes a folder of results as one HTML page.",
    )
    parser.add_argument("folder", type=Path, help="e.g. results/deep_online")
    parser.add_argument("--title", help="default: what study.json or the README says")
    parser.add_argument("--summary", help="a sentence beneath the title")
    parser.add_argument("--out", type=Path, help="the page (default: report.html in the folder)")
    parser.add_argument("--repetitions", type=int, default=2000, help="bootstrap samples")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        print(_report(options))
    except (FileNotFoundError, ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _report(options: argparse.Namespace) -> Path:
    folder: Path = options.folder
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    found = read_provenance(folder)
    # Logs of runs are drawn, not listed; a folder of something else shows all it has, at any depth.
    has_logs = any(folder.glob("*/*/seed_*.csv"))
    files = sorted(folder.glob("*") if has_logs else folder.rglob("*"))
    worlds = {path.name for path in folder.iterdir() if path.is_dir()}
    pictures = [
        path
        for path in files
        if path.suffix.lower() in _PICTURES
        and path.name not in _OWN_PICTURES
        and path.stem not in worlds
    ]
    tables = [path for path in files if path.suffix == ".csv" and path.name not in _OWN_TABLES]
    return make_report(
        folder,
        title=options.title or found.title,
        summary=found.summary if options.summary is None else options.summary,
        commands=found.commands,
        pictures=pictures,
        tables=tables,
        out=options.out,
        repetitions=options.repetitions,
    )


if __name__ == "__main__":
    sys.exit(main())
