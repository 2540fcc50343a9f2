"""A run that is interrupted and resumed is the run that never was, to the last bit."""

from __future__ import annotations

import random
import shutil
import signal
from dataclasses import fields

import pytest
from training_runs import difference, final_state, logged_frames, rows

from torchrl_dceo.agents import AGENTS

FRAMES = 6000


@pytest.fixture(scope="module")
def whole(runs, tmp_path_factory):
    """The run that is never interrupted."""
    path = tmp_path_factory.mktemp("whole")
    runs.run(run_dir=path, agent="dceo", frames=FRAMES)
    return path


def test_killed_at_five_random_moments(runs, whole, tmp_path):
    moments, spec = random.Random(0), {"run_dir": tmp_path, "agent": "dceo", "frames": FRAMES}
    for frames in sorted(moments.sample(range(100, FRAMES - 1000), 5)):
        status = runs.run_until(
            lambda frames=frames: logged_frames(tmp_path) >= frames,
            signal.SIGKILL,
            delay=moments.uniform(0, 0.1),
            resume="auto",
            **spec,
        )
        assert status == -signal.SIGKILL
        assert logged_frames(tmp_path) < FRAMES
    runs.run(resume=True, **spec)
    assert difference(final_state(tmp_path), final_state(whole)) is None
    assert rows(tmp_path) == rows(whole)


def test_the_run_did_everything(whole):
    """What the comparison rests on: all parts with a state were at work."""
    state, log = final_state(whole), rows(whole)
    assert [int(row["frames"]) for row in log] == list(range(100, FRAMES + 1, 100))
    assert [row["eval_return"] != "" for row in log] == [
        f % 600 == 0 for f in range(100, FRAMES + 1, 100)
    ]
    assert int(state["replay"]["writer"]["ring"]["head"].min()) > 250  # it went round
    assert state["counters"]["updates"] == (FRAMES - 300) // 20
    assert all(target["counter"] > 0 for target in state["learning"]["targets"])
    assert len(state["learning"]["moments"]) > 20
    eps, last = (float(state["agent"][f"explorer.{name}"]) for name in ("eps", "eps_end"))
    # A reward was met, ε fell, and started anew after too many greedy steps without another.
    logged = [float(row["eps"]) for row in log]
    lowest = last / (
        last + (1 - last) * 10
    )  # of decisions, which take at most the ten steps of an option on average
    assert lowest <= min(logged) < 0.5 < eps and logged[0] == 1
    assert {"train", "eval", "discovery"} == set(state["envs"])
    assert "option" in state["carrier"] and "pixels" in state["carrier"]
    assert float(state["last_row"]["train_return"]) >= 0


def test_two_seeds_differ_and_the_same_seed_does_not(runs, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        runs.run(run_dir=tmp_path / name, agent="dceo", frames=600, seed=seed)
    a, b, c = (final_state(tmp_path / name) for name in "abc")
    assert difference(a, b) is None
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert difference(a["agent"], c["agent"]) is not None
    assert difference(a["replay"]["rows"], c["replay"]["rows"]) is not None
    assert rows(tmp_path / "a") != rows(tmp_path / "c")


def cut_back(run_dir, copy, count: int):
    """A copy of a run as if it had been killed after so many checkpoints."""
    shutil.copytree(run_dir, copy)
    for later in sorted((copy / "checkpoints").iterdir())[count:]:
        shutil.rmtree(later)
    return copy


# Discovery ends at 300 frames: between checkpoints, or exactly at one.
@pytest.mark.parametrize("period", [200, 300])
def test_two_phases_resume_from_each_checkpoint(runs, tmp_path, period):
    spec = {
        "agent": "dceo_two_phase",
        "frames": 600,
        "agent_settings": {"discovery_frames": 300},
        "batch_size": (),
        "learning_starts": 100,
        "checkpoint_period": period,
        "keep_checkpoints": 9,
        "eval_period": 200,
    }
    runs.run(run_dir=tmp_path / "whole", **spec)
    folders = sorted((tmp_path / "whole" / "checkpoints").iterdir())
    assert [int(folder.name) for folder in folders] == list(range(period, 601, period))
    assert {row["phase"] for row in rows(tmp_path / "whole")} == {"0", "1"}
    for count in range(1, len(folders)):
        copy = cut_back(tmp_path / "whole", tmp_path / f"from{count}", count)
        runs.run(run_dir=copy, resume=True, **spec)
        assert difference(final_state(copy), final_state(tmp_path / "whole")) is None
        assert rows(copy) == rows(tmp_path / "whole")


@pytest.mark.parametrize("agent", [name for name in AGENTS if not name.startswith("dceo")])
def test_every_agent_resumes(runs, tmp_path, agent):
    """Bonuses, normalisation and discriminators have states too."""
    spec = {"agent": agent, "learning_starts": 100, "checkpoint_period": 200}
    if "discovery_frames" in {field.name for field in fields(AGENTS[agent].config)}:
        spec["agent_settings"] = {"discovery_frames": 300}
    if agent == "dco":
        spec["agent_settings"]["num_options"] = 1
    runs.run(run_dir=tmp_path / "whole", frames=400, **spec)
    cut = cut_back(tmp_path / "whole", tmp_path / "cut", 1)
    runs.run(run_dir=cut, frames=400, resume=True, **spec)
    assert difference(final_state(cut), final_state(tmp_path / "whole")) is None
    assert rows(cut) == rows(tmp_path / "whole") and len(rows(cut)) == 4


def test_a_longer_run_goes_on_where_the_shorter_ended(runs, whole, tmp_path):
    runs.run(run_dir=tmp_path, agent="dceo", frames=600)
    runs.run(run_dir=tmp_path, agent="dceo", frames=1200, resume=True)
    assert rows(tmp_path) == rows(whole)[:12]
    runs.run(run_dir=tmp_path, agent="dceo", frames=1200, resume=True)  # nothing left to do
    assert rows(tmp_path) == rows(whole)[:12]


def test_the_evaluation_at_an_old_end_is_taken_back(runs, whole, tmp_path):
    """A run that ends between two evaluations is evaluated there; a longer one is not."""
    runs.run(run_dir=tmp_path / "a", agent="dceo", frames=800)
    short = rows(tmp_path / "a")
    assert short[-1]["eval_return"] != "" == rows(whole)[7]["eval_return"]
    runs.run(run_dir=tmp_path / "a", agent="dceo", frames=800, resume=True)  # nothing left to do
    assert rows(tmp_path / "a") == short
    runs.run(run_dir=tmp_path / "a", agent="dceo", frames=1300, resume=True)
    runs.run(run_dir=tmp_path / "b", agent="dceo", frames=1300)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert rows(tmp_path / "a")[:12] == rows(whole)[:12]
    assert difference(final_state(tmp_path / "a"), final_state(tmp_path / "b")) is None
