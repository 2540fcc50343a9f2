"""The examples about one's own parts, and about using what was learned, run and show what they claim."""

from __future__ import annotations

import re
from pathlib import Path

from forked import forked

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> str:
    source = EXAMPLES / name
    assert len(source.read_text().splitlines()) <= 65
    result = forked([source])
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_own_environment():
    out = run("own_environment.py")
    assert "12 squares visited, greedy return 1" in out
    assert "2 options over ['pixels']" in out


def test_own_network():
    assert re.search(
        r"\d+ parameters, [1-9]\d* updates, [1-9]\d* states visited", run("own_network.py")
    )


def test_own_option_reward():
    out = run("own_option_reward.py")
    moved = {
        name: (float(right), float(down))
        for name, right, down in re.findall(r"(\w+): (\S+) to the right, (\S+) down", out)
    }
    assert moved["right"][0] > 0.15 and moved["left"][0] < -0.15
    assert moved["down"][1] > 0.15 and moved["up"][1] < -0.15


def test_own_termination():
    lengths = [
        float(length) for length in re.findall(r"takes (\S+) steps", run("own_termination.py"))
    ]
    assert len(lengths) == 3 and lengths[0] > 1.5 * max(lengths[1:])


def test_options_in_sb3():
    out = run("options_in_sb3.py")
    assert len(re.findall(r"option \d took \d+ steps", out)) == 4
    assert "is not installed; run pip install" in out or "first actions of its policy" in out
