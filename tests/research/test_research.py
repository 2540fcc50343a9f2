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
    ],
)
def test_an_investigation_writes_its_table(name, arguments, tmp_path):
    run(name, tmp_path / "table.csv", *arguments)
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 2 and all(value != "" for value in rows[0].values())
