"""The examples about saving and offline learning run, and show what they claim."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forked import forked

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(name: str) -> str:
    source = EXAMPLES / name
    assert len(source.read_text().splitlines()) <= 60
    result = forked([source])
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_resume():
    out = run("resume.py")
    assert "interrupted at 2000 frames" in out and "resumed to 3000 frames" in out
    assert "bitwise identical: True" in out and "log identical: True" in out


@pytest.mark.slow
def test_offline():
    *_, last = run("offline.py").splitlines()
    similarity = [float(value) for value in last.split(":")[1].split()]
    assert len(similarity) == 5 and min(similarity[:4]) > 0.8


@pytest.mark.slow
def test_reuse_options():
    out = run("reuse_options.py")
    gains = re.findall(r"climbs by (\S+), a random walk by (\S+)", out)
    assert len(gains) == 8  # four eigenfunctions, in both directions
    assert all(float(option) > float(walk) + 0.2 for option, walk in gains)
    assert 0.9 < float(re.search(r"chose (\d+)%", out)[1]) / 100 <= 1
