"""The benchmarks run to their end: each in its short form, as a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run_smoke(name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), "--smoke"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(BENCHMARKS.parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_plain_loop_names_every_contender():
    output = run_smoke("plain_loop")
    for contender in ("ours, ddqn", "plain, ddqn", "TorchRL, ddqn", "ours, dceo", "plain, dceo"):
        assert output.count(contender) == 2, f"{contender} with one and with eight environments"


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs the extra bench")
def test_jax_update_first_shows_that_both_learn_the_same():
    output = run_smoke("jax_update")
    assert output.count("agree to") == 2
    assert "ours / JAX" in output
