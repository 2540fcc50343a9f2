from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_compose_learns_and_shows_the_option_travelling():
    source = EXAMPLES / "compose.py"
    assert len(source.read_text().splitlines()) <= 100
    result = subprocess.run(
        [sys.executable, "-W", "ignore", source], capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    assert "option in charge, step by step" in result.stdout
    assert float(result.stdout.rsplit(":", 1)[1]) > 0.8


@pytest.mark.slow
def test_montezuma_eigenfunctions_draws_the_room(tmp_path):
    command = [sys.executable, "-W", "ignore", EXAMPLES / "montezuma_eigenfunctions.py"]
    small = ["--steps", "2400", "--updates", "20", "--samples", "1000", "--dimensions", "3"]
    result = subprocess.run(
        [*command, *small, "--out", tmp_path], capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    rows = (tmp_path / "eigenfunctions.csv").read_text().splitlines()
    assert rows[0] == "x,y,samples,f1,f2,f3" and len(rows) > 50
    assert (tmp_path / "eigenfunctions.png").stat().st_size > 10_000
