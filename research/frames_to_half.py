"""Frames to the first goal and to a greedy return of 0.5, for every run of a folder of results.

Reads ``<environment>/<agent>/seed_<k>.csv`` and writes ``frames_to_half.csv`` beside them, and a table to the screen::

    python research/frames_to_half.py results/exploration
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

COLUMNS = [
    "environment",
    "agent",
    "seed",
    "first_goal",
    "frames_to_half",
    "frames",
    "greedy_return",
]

Row = Mapping[str, str]


def first_frame(rows: Sequence[Row], column: str, reached: Callable[[float], bool]) -> str:
    """The frames of the first row in which a column has such a value; empty if there is none."""
    return next(
        (row["frames"] for row in rows if row.get(column) and reached(float(row[column]))), ""
    )


def measured(path: Path) -> dict[str, str]:
    """The row of one run."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    returns = [row["eval_return"] for row in rows if row.get("eval_return")]
    return {
        "environment": path.parents[1].name,
        "agent": path.parent.name,
        "seed": path.stem.removeprefix("seed_"),
        "first_goal": first_frame(rows, "train_return", lambda value: value > 0),
        "frames_to_half": first_frame(rows, "eval_return", lambda value: value >= 0.5),
        "frames": rows[-1]["frames"],
        "greedy_return": returns[-1] if returns else "",
    }


def table(rows: Sequence[Row]) -> str:
    """Medians over seeds in which a run that never got there counts as infinite, and every run."""
    lines = [
        "| environment | agent | solved | frames to 0.5, median | every seed |",
        "|---|---|---|---|---|",
    ]
    for environment, agent in dict.fromkeys((row["environment"], row["agent"]) for row in rows):
        own = [row for row in rows if (row["environment"], row["agent"]) == (environment, agent)]
        solved = sum(float(row["greedy_return"] or 0) >= 0.9 for row in own)
        halves = [float(row["frames_to_half"] or "inf") for row in own]
        shown = [f"{half / 1000:.0f}k" if half < float("inf") else "–" for half in halves]
        middle = statistics.median(halves)
        median = f"{middle:,.0f}" if middle < float("inf") else "never"
        lines.append(
            f"| {environment} | `{agent}` | {solved} of {len(own)} | {median} | {', '.join(shown)} |"
        )
    return "\n".join(lines)


def main(folder: str) -> None:
    """Writes the CSV of a folder and prints its table."""
    paths = sorted(Path(folder).glob("*/*/seed_*.csv"))
    if not paths:
        raise SystemExit(f"{folder} holds no <environment>/<agent>/seed_<k>.csv")
    rows = [measured(path) for path in paths]
    with Path(folder, "frames_to_half.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(table(rows))


if __name__ == "__main__":
    main(sys.argv[1])
