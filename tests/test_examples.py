"""The examples run, and show what they claim."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import forked

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_example(name: str, *options: str | Path) -> str:
    result = forked([EXAMPLES / name, *options])
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_compose_runs():
    """The first frames; that it learns is another test, which takes minutes."""
    assert len((EXAMPLES / "compose.py").read_text().splitlines()) <= 100
    said = run_example("compose.py", "800")
    assert "active option at each step" in said


@pytest.mark.slow
def test_compose_learns_and_shows_the_option_travelling():
    said = run_example("compose.py")
    assert "active option at each step" in said
    assert float(said.rsplit(":", 1)[1]) > 0.8


def test_the_demo_draws_a_figure_and_a_film(tmp_path):
    """Its form; what it shows takes minutes."""
    said = run_example("demo.py", "--frames", "1500", "--out", tmp_path / "demo")
    assert "greedy return" in said and "a random walk" in said
    assert (tmp_path / "demo" / "demo.png").is_file()
    assert (tmp_path / "demo" / "demo.gif").read_bytes().startswith(b"GIF8")
