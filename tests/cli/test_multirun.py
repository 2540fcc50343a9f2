"""Sweeps by ``--multirun``: one run after the other, two at a time, and with one that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import forked
from training_runs import rows

RECIPES = Path(__file__).parent.parent.parent / "recipes"
SHORT = (
    "env.room_size=3",
    "learning_starts=100",
    "num_envs=4",
    "update_period=20",
    "log_period=100",
    "checkpoint_period=null",
)


def sweep(folder, *arguments):
    """A sweep in a folder of its own, as a person gives it: where it writes is Hydra's to find out."""
    folder.mkdir(exist_ok=True)
    return forked([RECIPES / "nine_rooms.py", "--multirun", *SHORT, *arguments], cwd=folder)


def runs(folder):
    """The directories of a sweep's runs by their names."""
    (place,) = folder.glob("runs/sweep/*")
    return {str(path.parent.relative_to(place)): path.parent for path in place.rglob("train.log")}


def test_a_run_that_fails_stops_no_other(tmp_path):
    taken, free = tmp_path / "taken", tmp_path / "free"
    taken.mkdir()
    (taken / "progress.csv").write_text("frames\n1\n")
    (taken / "config.yaml").write_text("kept: as it is\n")
    result = sweep(tmp_path / "sweep", "agent=ddqn", f"run_dir={taken},{free}", "total_frames=200")
    assert result.returncode == 1
    assert f"{taken} already holds a run: resume it, or choose another run_dir" in result.stderr
    log = runs(tmp_path / "sweep")["nine_rooms/ddqn/seed_0_0"] / "train.log"
    assert "already holds a run" in log.read_text()
    assert (taken / "config.yaml").read_text() == "kept: as it is\n"
    assert [row["frames"] for row in rows(free)] == ["100", "200"]
    assert (free / "learning_curve.png").is_file()


def test_the_directories_of_a_sweep_name_environment_agent_and_seed(tmp_path):
    """README's own sweep, shortened."""
    words = ["--multirun", "seed=0,1", "agent=dceo,ddqn", *SHORT[1:], "total_frames=100"]
    result = forked([RECIPES / "maze.py", *words], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    names = {"maze/dceo/seed_0_0", "maze/ddqn/seed_0_1", "maze/dceo/seed_1_2", "maze/ddqn/seed_1_3"}
    assert set(runs(tmp_path)) == names
    assert all((path / "progress.csv").is_file() for path in runs(tmp_path).values())


@pytest.mark.slow
def test_two_at_a_time_give_the_numbers_of_one_after_the_other(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    arguments = ("agent=dceo,ddqn", "seed=0,1", "total_frames=400")
    one = sweep(tmp_path / "one", *arguments)
    two = sweep(tmp_path / "two", *arguments, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert one.returncode == 0, one.stderr
    assert two.returncode == 0, two.stderr
    first, second = runs(tmp_path / "one"), runs(tmp_path / "two")
    assert sorted(first) == [
        "nine_rooms/dceo/seed_0_0", "nine_rooms/dceo/seed_1_1",
        "nine_rooms/ddqn/seed_0_2", "nine_rooms/ddqn/seed_1_3",
    ]  # fmt: skip
    for name in first:
        assert rows(first[name]) == rows(second[name])
        # Each worker says which run it speaks of.
        label = name.removeprefix("nine_rooms/")
        assert any(line.startswith(f"{label}  [") for line in two.stderr.splitlines())
    assert rows(first["nine_rooms/dceo/seed_0_0"]) != rows(first["nine_rooms/dceo/seed_1_1"])


@pytest.mark.slow
def test_a_run_that_fails_beside_another_stops_it_not(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    taken, free = tmp_path / "taken", tmp_path / "free"
    taken.mkdir()
    (taken / "progress.csv").write_text("frames\n1\n")
    parallel = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    given = ("agent=ddqn", f"run_dir={taken},{free}", "total_frames=200")
    result = sweep(tmp_path / "sweep", *given, *parallel)
    assert result.returncode == 1 and "already holds a run" in result.stderr
    assert len(rows(free)) == 2
