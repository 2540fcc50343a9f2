"""Sweeps by ``--multirun``: one run after the other, two at a time, and with one that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from training_runs import rows

RECIPE = Path(__file__).parent.parent.parent / "recipes" / "nine_rooms.py"


def sweep(folder, *arguments):
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            str(RECIPE),
            "--multirun",
            "env.room_size=3",
            "learning_starts=100",
            "num_envs=4",
            "update_period=20",
            "log_period=100",
            "checkpoint_period=null",
            f"hydra.sweep.dir={folder}",
            *arguments,
        ],
        cwd=folder.parent,
        capture_output=True,
        text=True,
    )


def test_a_run_that_fails_stops_no_other(tmp_path):
    taken = tmp_path / "sweep" / "ddqn" / "seed_0_0"
    taken.mkdir(parents=True)
    (taken / "progress.csv").write_text("frames\n1\n")
    (taken / "config.yaml").write_text("kept: as it is\n")
    result = sweep(tmp_path / "sweep", "agent=ddqn", "seed=0,1", "total_frames=200")
    assert result.returncode == 1
    assert f"{taken} already holds a run: resume it, or choose another run_dir" in result.stderr
    assert "already holds a run" in (taken / "launch.log").read_text()
    assert (taken / "config.yaml").read_text() == "kept: as it is\n"
    done = tmp_path / "sweep" / "ddqn" / "seed_1_1"
    assert [row["frames"] for row in rows(done)] == ["100", "200"]
    assert (done / "learning_curve.png").is_file()


@pytest.mark.slow
def test_two_at_a_time_give_the_numbers_of_one_after_the_other(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    arguments = ("agent=dceo,ddqn", "seed=0,1", "total_frames=400")
    one = sweep(tmp_path / "one", *arguments)
    two = sweep(tmp_path / "two", *arguments, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert one.returncode == 0, one.stderr
    assert two.returncode == 0, two.stderr
    runs = sorted(
        path.parent.relative_to(tmp_path / "one") for path in tmp_path.glob("one/*/*/progress.csv")
    )
    assert [str(run) for run in runs] == [
        "dceo/seed_0_0", "dceo/seed_1_1", "ddqn/seed_0_2", "ddqn/seed_1_3"
    ]  # fmt: skip
    for run in runs:
        assert rows(tmp_path / "one" / run) == rows(tmp_path / "two" / run)
        # Each worker says which run it speaks of.
        assert any(line.startswith(f"{run}  [") for line in two.stderr.splitlines())
    assert rows(tmp_path / "one" / runs[0]) != rows(tmp_path / "one" / runs[1])


@pytest.mark.slow
def test_a_run_that_fails_beside_another_stops_it_not(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    taken = tmp_path / "sweep" / "ddqn" / "seed_0_0"
    taken.mkdir(parents=True)
    (taken / "progress.csv").write_text("frames\n1\n")
    parallel = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    result = sweep(tmp_path / "sweep", "agent=ddqn", "seed=0,1,2", "total_frames=200", *parallel)
    assert result.returncode == 1 and "already holds a run" in result.stderr
    for run in ("seed_1_1", "seed_2_2"):
        assert len(rows(tmp_path / "sweep" / "ddqn" / run)) == 2
