from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_example(name: str, *options: str | Path) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", EXAMPLES / name, *options],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_compose_runs():
    """The first frames; that it learns is another test, which takes minutes."""
    assert len((EXAMPLES / "compose.py").read_text().splitlines()) <= 100
    said = run_example("compose.py", "800")
    assert "option in charge, step by step" in said


@pytest.mark.slow
def test_compose_learns_and_shows_the_option_travelling():
    said = run_example("compose.py")
    assert "option in charge, step by step" in said
    assert float(said.rsplit(":", 1)[1]) > 0.8


@pytest.mark.slow
def test_montezuma_eigenfunctions_draws_the_room(tmp_path):
    small = ["--steps", "2400", "--updates", "20", "--samples", "1000", "--dimensions", "3"]
    run_example("montezuma_eigenfunctions.py", *small, "--out", tmp_path)
    rows = (tmp_path / "eigenfunctions.csv").read_text().splitlines()
    assert rows[0] == "x,y,samples,f1,f2,f3" and len(rows) > 50
    assert (tmp_path / "eigenfunctions.png").stat().st_size > 10_000


def test_object_eigenfunctions_shows_the_key_and_the_wall_as_bottlenecks(tmp_path):
    small = ["--room-size", "3", "--steps", "2", "--samples", "2000", "--dimensions", "3"]
    run_example("object_eigenfunctions.py", *small, "--out", tmp_path)
    with (tmp_path / "separation.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Only the exact functions: two steps of learning tell nothing.
    apart = {
        (row["world"], row["function"], row["after"]): float(row["auc"])
        for row in rows
        if row["kind"] == "exact"
    }
    assert apart["EscapeRoom", "f2", "with the key"] == 1.0
    assert apart["ObstructedKey", "f2", "… and key in hand"] == 1.0
    assert apart["ObstructedKey", "f3", "wall broken"] == 1.0
    # Both lie before the key: f_2 hardly knows the wall, so these levels overlap.
    assert 0.5 < apart["ObstructedKey", "f2", "wall broken"] < 0.95
    for world in ("EscapeRoom", "ObstructedKey"):
        assert (tmp_path / f"{world}.png").stat().st_size > 10_000
        states = (tmp_path / f"{world}.csv").read_text().splitlines()[1:]
        assert len(states) == int(next(row["states"] for row in rows if row["world"] == world))
