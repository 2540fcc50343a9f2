"""The investigations of research/ still run, in their smallest form."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

RESEARCH = Path(__file__).parents[2] / "research"


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, "-W", "ignore", RESEARCH / f"{name}.py", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("option_quality", ["--updates", "100"]),
        ("learner_quality", ["--updates", "1000", "--seeds", "0"]),
        ("perfect_options", ["--environments", "Maze", "--episodes", "20"]),
        ("goal_sensitivity", ["--environments", "Maze", "--steps", "100", "--repeats", "2"]),
    ],
)
def test_an_investigation_writes_its_table(name, arguments, tmp_path):
    run(name, tmp_path / "table.csv", *arguments)
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 2 and all(value != "" for value in rows[0].values())


def test_frames_to_half_reads_the_logs_of_a_folder(tmp_path):
    logs = {
        "maze/dceo/seed_3": [
            (1000, "0", ""),
            (2000, "0.1", "0.4"),
            (3000, "0", "0.5"),
            (4000, "1", "1.0"),
        ],
        "maze/dceo/seed_4": [(1000, "nan", "0.0"), (2000, "0.0", "0.0")],
        "maze/rnd/seed_3": [(1000, "1", "0.9")],
    }
    for name, rows in logs.items():
        path = tmp_path / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("frames", "train_return", "eval_return"), *rows])
    text = run("frames_to_half", tmp_path)
    with (tmp_path / "frames_to_half.csv").open() as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    assert rows == [
        ("maze", "dceo", "3", "2000", "3000", "4000", "1.0"),
        ("maze", "dceo", "4", "", "", "2000", "0.0"),
        ("maze", "rnd", "3", "1000", "1000", "1000", "0.9"),
    ]
    # A run that never gets there counts in the median.
    assert "| maze | `dceo` | 1 of 2 | never | 3k, – |" in text
    assert "| maze | `rnd` | 1 of 1 | 1,000 | 1k |" in text
