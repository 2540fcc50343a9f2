"""The examples run, and show what they claim."""

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
