"""Every benchmark runs, in a smoke form: what its numbers are is not looked at."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from needs_miniworld import needs_miniworld

FOLDER = Path(__file__).parents[1] / "benchmarks"
# The arguments that make each short.
SMOKE = {
    "atari": "--steps 4 --turns 1",
    "atari_env": "--steps 20 --turns 1 --games 2",
    "collectors": "--frames 400 --kinds single multi_sync",
    "envs": "--steps 20",
    "estimators": "--updates 1 --samples 2000",
    "loop": "--frames 200",
    "miniworld": "--steps 10 --learning-steps 8",
    "replay": "--rows 1000 --checkpoint-rows 1000",
    "spectra": "--maps GridMaze13 --objectives graph_drawing --out {out}",
    "spectra_online": "--maps NineRooms --seeds 0:1 --variants visits --frames 1100 --out {out}",
    "throughput": "--rounds 1 --frames 200",
    "update": "--turns 1",
}
# Compare with packages of the extra `bench`, which the suite does without.
NEED_MORE = {"jax_update": "jax", "plain_loop": "stable_baselines3"}
SCRIPTS = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def test_every_benchmark_has_a_smoke_form():
    assert set(SCRIPTS) == {*SMOKE, *NEED_MORE}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[needs_miniworld, pytest.mark.slow] if name == "miniworld" else ())
        for name in SCRIPTS
        if name in SMOKE
    ],
)
def test_runs(name, tmp_path):
    options = SMOKE[name].format(out=tmp_path / "table.csv").split()
    command = [sys.executable, "-W", "ignore", str(FOLDER / f"{name}.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"\d", done.stdout)


def test_ratios_are_measured():
    """No time of another program is written into a benchmark to divide by."""
    for path in FOLDER.glob("*.py"):
        constants = re.findall(
            r"^[A-Z_]+(?:, [A-Z_]+)* = .*#.*(?:ms|steps/s)", path.read_text(), re.M
        )
        assert not constants, f"{path.name}: {constants}"
