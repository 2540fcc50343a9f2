"""The 3D recipes train, resume exactly, and draw."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from needs_miniworld import needs_miniworld

ROOT = Path(__file__).parents[2]
EIGENFUNCTIONS = "torchrl_dceo.studies.experiments.miniworld_eigenfunctions"
SMALL = [
    "env.samples=1",
    "env.obs_width=40",
    "env.obs_height=40",
    "env.max_steps=20",
    "num_envs=2",
    "learning_starts=40",
    "update_period=8",
    "log_period=40",
    "checkpoint_period=80",
    "eval_period=80",
    "eval_episodes=2",
    "replay_capacity=400",
    "progress=false",
    "agent.batch_size=8",
]


def run(recipe: str, *arguments: str) -> None:
    programs = {
        "miniworld_bound": [str(ROOT / "research" / "miniworld_bound.py")],
        "miniworld_eigenfunctions": ["-m", EIGENFUNCTIONS],
    }
    program = programs.get(recipe, [str(ROOT / "recipes" / f"{recipe}.py")])
    command = [sys.executable, "-W", "ignore", *program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "progress.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def correlations(folder: Path) -> list[dict[str, float]]:
    with (folder / "correlations.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


@needs_miniworld
@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["miniworld_four_rooms", "miniworld_my_way_home"])
@pytest.mark.parametrize("agent", ["dceo", "ddqn", "rnd", "cic"])
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path, recipe, agent):
    settings = [f"agent={agent}", "discovery_frames=80", *SMALL]
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run(recipe, *settings, "total_frames=160", f"run_dir={whole}")
    run(recipe, *settings, "total_frames=80", f"run_dir={halves}")
    run(recipe, "total_frames=160", f"resume={halves}")
    assert rows(whole) == rows(halves)
    names = {path.name for path in halves.iterdir()}
    assert "learning_curve.png" in names
    if agent in ("dceo", "cic"):
        assert {"option_ways.png", "birds_eye.npz"} <= names and names & {
            "option.mp4",
            "option.gif",
        }
    assert ("birds_eye.png" in names) == (agent == "dceo")


@needs_miniworld
@pytest.mark.slow
def test_the_bound_on_what_a_picture_tells(tmp_path):
    """The eigenfunctions that it teaches are a path's cosines on a corridor, and the table has a row a heading."""
    sys.path.insert(0, str(ROOT / "research"))
    from miniworld_bound import floor_eigenfunctions

    free = np.zeros((3, 40), bool)
    free[1] = True
    places = np.arange(40) + 0.5
    for k, f in enumerate(floor_eigenfunctions(free).T, start=1):
        cosine = np.sqrt(2) * np.cos(np.pi * k * places / 40)
        assert np.allclose(f * np.sign(f[0]), cosine, atol=1e-6)

    arguments = ["--pictures", "260", "--updates", "2", "--batch-size", "8", "--out", str(tmp_path)]
    run("miniworld_bound", *arguments)
    table = correlations(tmp_path)
    assert [row["heading"] for row in table] == [0, 90, 180, 270]
    for row in table:
        along = [value for name, value in row.items() if name not in ("heading", "best")]
        assert len(along) == 24 and row["best"] == max(along)


@needs_miniworld
def test_eigenfunctions_are_measured_and_drawn_at_four_headings(tmp_path):
    tiny = "--frames 400 --num-envs 2 --max-steps 40 --pair-steps 30 --updates 2 --batch-size 40 --views 2"
    run("miniworld_eigenfunctions", *tiny.split(), "--out", str(tmp_path))
    table = correlations(tmp_path)
    assert [row["heading"] for row in table] == [0, 90, 180, 270]
    assert all(set(row) == {"heading", "f2", "f3"} for row in table)
    pictures = {f"heading_{heading}.png" for heading in (0, 90, 180, 270)}
    assert {path.name for path in tmp_path.iterdir()} == {
        *pictures,
        "correlations.csv",
        "birds_eye.npz",
    }


@needs_miniworld
def test_eigenfunctions_of_an_agent_that_cannot_turn_have_one_heading(tmp_path):
    tiny = "--frames 400 --num-envs 2 --max-steps 40 --pair-steps 30 --updates 2 --batch-size 40 --views 1"
    arguments = [*tiny.split(), "--env", "MiniWorldFourRoomsStrafe", "--out", str(tmp_path)]
    run("miniworld_eigenfunctions", *arguments)
    assert [row["heading"] for row in correlations(tmp_path)] == [0]
    # The walks start anywhere: without that, no image of the other rooms would be learned from.
    from torchrl_dceo.studies.experiments.miniworld_eigenfunctions import view_settings

    options = {"views": 1, "obs_width": 8, "obs_height": 6, "samples": 1, "distinct_walls": False}
    for name, expected in (("MiniWorldFourRoomsStrafe", "anywhere"), ("MiniWorldFourRooms", None)):
        assert view_settings(Namespace(env=name, **options)).get("starts") == expected


def test_pairs_of_eigenfunctions_lie_within_an_episode():
    command = [sys.executable, "-m", EIGENFUNCTIONS, "--out", "nowhere"]
    done = subprocess.run(
        [*command, "--pair-steps", "251"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "--pair-steps must lie between 1 and --max-steps, 250, got 251" in done.stderr


@needs_miniworld
@pytest.mark.slow
def test_eigenfunctions_of_random_walks_separate_the_rooms(tmp_path):
    """The package's Four Rooms, walls all alike, seen all around: minutes of a core."""
    run("miniworld_eigenfunctions", "--out", str(tmp_path))
    assert min(row["f2"] for row in correlations(tmp_path)) > 0.7
