"""A study of real training: small, and interrupted in the middle."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_study import wait_for

from torchrl_dceo.cli import study as cli

ROOT = Path(__file__).parents[2]


def test_a_study_of_one_run_ends_in_a_page(tmp_path, capsys):
    # A path that Hydra would read as something else.
    out = tmp_path / "my runs, {1}"
    given = ["online", "--preset", "smoke", "--agents", "ddqn", "--seeds", "4", "--out", str(out)]
    assert cli.main(["run", *given]) == 0
    run = out / "online" / "smoke" / "runs" / "nine_rooms" / "ddqn" / "seed_4"
    assert (run / "learning_curve.png").is_file() and not (run / "checkpoints").exists()
    results = out / "online" / "smoke" / "results"
    assert {"nine_rooms.png", "summary.csv", "study.json", "README.md", "report.html"} <= {
        path.name for path in results.iterdir()
    }
    assert "Return, learning online" in (results / "report.html").read_text()
    assert str(results / "report.html") in capsys.readouterr().out
    assert cli.main(["status", *given]) == 0
    assert "1/1 runs done" in capsys.readouterr().out


MINE = """
from torchrl_dceo.studies import Grid, Preset, Study
from torchrl_dceo.studies.catalogue.deep import SMOKE

own = ["update_period=8", "checkpoint_period=1000"]
small = [each for each in SMOKE if not each.startswith(("update_period", "checkpoint_period"))]
grid = Grid("nine_rooms", ["dceo"], 1, 4000, ["env.room_size=3", *small, *own])
STUDY = Study("mine", "Mine", "Does it go on?", {"smoke": Preset("4,000 frames", [grid])})
"""


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_an_interrupted_run_is_the_run_that_never_was(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    given = [str(mine), "--preset", "smoke", "--seeds", "0", "--no-figure"]

    def study(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "torchrl_dceo", "study", "run", *given]
        return subprocess.Popen(
            [*command, "--out", str(tmp_path / name)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(name: str) -> Path:
        return tmp_path / name / "mine" / "smoke" / "runs" / "nine_rooms" / "dceo" / "seed_0"

    whole = study("whole")
    whole.communicate()
    assert whole.returncode == 0
    first = study("halves")
    log = run("halves") / "progress.csv"
    wait_for(lambda: log.is_file() and len(log.read_text().splitlines()) > 15, 300)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate()
    assert first.returncode == 130 and "To resume: " in said
    assert len(rows(log)) < 40
    second = study("halves")
    second.communicate()
    assert second.returncode == 0
    assert rows(log) == rows(run("whole") / "progress.csv")
    assert "resume=" in (run("halves") / "log.txt").read_text()
