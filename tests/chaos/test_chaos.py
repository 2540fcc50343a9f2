"""The harness of `make chaos` in small: half a minute by default, all kinds of runs in the slow form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def chaos(*arguments: str) -> list[str]:
    """Runs it; returns the lines of its table."""
    command = [sys.executable, "-W", "ignore", str(HERE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.splitlines()


def test_a_little_chaos():
    lines = chaos("--kills", "3", "--kinds", "dceo", "--damages", "3", "--faults", "ddqn")
    tries, held, failures = lines[-1].split("(")[0].split()[1:]
    assert tries == held and failures == "0" and int(tries) >= 15
    assert "(3 kills)" in lines[-1]


@pytest.mark.slow
def test_chaos_of_every_kind():
    lines = chaos("--kills", "14", "--damages", "4", "--faults", "ddqn", "rainbow")
    kinds = ("dceo", "dceo_two_phase", "rnd", "rainbow", "cube with a table", "multi_sync", "study")
    for kind in kinds:
        assert any(line.startswith(kind) and "SIGKILL" in line for line in lines)


def test_the_harness_notices(tmp_path):
    """A run that loses a row, a state that differs by a bit and a refusal that changes a file are failures."""
    sys.path.insert(0, str(HERE.parent))
    import importlib.util

    spec = importlib.util.spec_from_file_location("chaos_main", HERE / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = module.Table()
    table.add("dceo", "SIGKILL", None, 4)
    assert table.show()
    table.add("dceo", "SIGKILL", "the logs differ", 2)
    assert not table.show()
    assert not module._finite({"a": [1.0, {"b": float("nan")}]})
    (tmp_path / "checkpoints" / "000000000100").mkdir(parents=True)
    assert module._saving(tmp_path)
    (tmp_path / "checkpoints" / "000000000100" / "state.json").write_text("{}")
    assert not module._saving(tmp_path)
