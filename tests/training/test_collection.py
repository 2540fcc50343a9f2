"""Collection by worker processes: whose steps they are, that nothing is lost, and that workers learn."""

from __future__ import annotations

import logging
import os
import signal
from functools import partial

import pytest
import torch
from worker_runs import ROOMS, act_by_what_is_learned, check_rows, make_trainer, record, ticking

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import GridWorldEnv, StateCounts, current_map, find_transform, make_env
from torchrl_dceo.training import CollectorConfig, train
from torchrl_dceo.training.collection.workers import STAMP

KINDS = ("multi_sync", "multi_async")


@pytest.mark.parametrize("kind", KINDS)
def test_every_stream_holds_the_steps_of_one_environment_in_order(kind):
    trainer = make_trainer(ticking, kind)
    batches = record(trainer)
    row = trainer.run()
    check_rows(trainer.replay)
    assert row["frames"] == 400 and row["updates"] == (400 - 100) // 10
    # A worker's environments are those of its streams, in each batch.
    for data, streams in batches:
        worker = data[STAMP][:, 0, 0]
        streams = torch.arange(4) if streams is None else torch.tensor(list(streams))
        assert torch.equal(worker, streams // 2)
        # Options begin anew with an episode.
        begins = data["is_init"].squeeze(-1)
        assert begins.any() or data is not batches[0][0]
        assert ((data["option"] < 0) | data["option_start"])[begins].all()
    # The two workers drew different actions.
    first = [data for data, _ in batches if data[STAMP][0, 0, 1] == 0]
    actions = torch.cat([data["action"] for data in first])
    assert actions.shape == (4, 10) and not torch.equal(actions[:2], actions[2:])


@pytest.mark.parametrize("kind", KINDS)
def test_workers_act_by_what_was_learned(kind):
    act_by_what_is_learned(kind)


@pytest.mark.parametrize(
    "kind", [pytest.param("multi_sync", marks=pytest.mark.slow), "multi_async"]
)
def test_a_killed_worker_is_replaced(kind, caplog):
    trainer = make_trainer(ticking, kind, frames=600)
    batches = record(trainer)
    killed = []

    def kill(trainer_):
        if not killed and trainer_.counters.frames >= 200:
            process = trainer_._collection._collector.procs[1]
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            killed.append(process.pid)
        return {}

    trainer.probes = (kill,)
    trainer.config.eval_period = 100
    with caplog.at_level(logging.WARNING, logger="torchrl_dceo"):
        row = trainer.run()
    assert killed and row["frames"] == 600
    (message,) = [r.message for r in caplog.records if "replaced" in r.message]
    assert message == (
        "worker 1 was killed by signal 9: all workers are replaced, and the run continues with new episodes"
    )
    check_rows(trainer.replay)
    # The new workers live other lives than those before.
    begun = [data for data, _ in batches if (data[STAMP][:, 0, 1] == 0).all()]
    assert len({tuple(data["observation"][:, 0, 1].tolist()) for data in begun}) == len(begun)


def test_the_learner_counts_what_workers_visit():
    trainer = make_trainer(ROOMS, "multi_async", agent="counts", env={"visits": "counts"})
    batches = record(trainer)
    row = trainer.run()
    counts = find_transform(trainer.env, StateCounts)
    starts = sum(int(data["is_init"].sum()) for data, _ in batches)
    assert int(counts.counts.sum()) == 400 + starts
    visited = torch.cat(
        [data[k].flatten() for data, _ in batches for k in ("state_id", ("next", "state_id"))]
    )
    assert row["coverage"] == len(visited.unique())
    # The agent's bonus is made of these counts.
    assert torch.equal(trainer.agent.objectives["bonus"]._of_states.__self__.counts, counts.counts)


@pytest.mark.slow
def test_multi_sync_is_reproducible():
    runs = []
    for _ in range(2):
        trainer = make_trainer(ROOMS, "multi_sync", frames=240)
        trainer.run()
        runs.append(trainer)
    first, second = (trainer.replay.state_dict()["rows"] for trainer in runs)
    assert all(torch.equal(first[key], second[key]) for key in first)
    first, second = (trainer.agent.state_dict() for trainer in runs)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_resumed_run_goes_on_with_new_episodes(tmp_path):
    for frames in (200, 400):
        trainer = make_trainer(ticking, "multi_async", frames=frames, run_dir=tmp_path)
        if frames == 400:
            assert trainer.resume() == 200
        row = trainer.run()
    assert row["frames"] == 400 and row["updates"] == 30
    check_rows(trainer.replay)
    assert len(trainer.replay) >= 400 - 2 * 4


@pytest.mark.slow
def test_discovery_and_an_environment_that_changes(tmp_path):
    """The phases have workers of their own, and the maps change when they should, also after an interruption."""
    switching = partial(make_env, "NineRoomsGoalSwitch", room_size=3, switch_steps=50, max_steps=20)
    seen = []
    for frames in (240, 400):
        trainer = make_trainer(
            switching,
            "multi_sync",
            agent="dceo_two_phase",
            agent_settings={"discovery_frames": 80},
            frames=frames,
            run_dir=tmp_path,
            env={"visits": "counts"},
            discovery_env=switching(batch_size=[4], seed=1, coverage=True),
        )
        if frames == 400:
            trainer.resume()
            assert current_map(trainer.env) == 0  # 40 of 50 steps
        batches = record(trainer)
        row = trainer.run()
        seen += [data for data, _ in batches]
    assert row["phase"] == 1 and row["map"] == 1
    # The start moves with the map.
    starts = [data["state_id"][data["is_init"].squeeze(-1)] for data in seen]
    assert len(torch.cat(starts).unique()) == 2


def test_what_cannot_be_is_said():
    env = ROOMS(batch_size=[3])
    with pytest.raises(ValueError, match="builds environments in its workers: pass worker_env"):
        two = GridWorldEnv(
            "S.G", batch_size=[2]
        )  # not by make_env: nobody knows how to build another
        train(make_agent("ddqn", two), two, total_frames=10, collector="multi_sync")
    with pytest.raises(ValueError, match="3 environments cannot be divided among num_workers=2"):
        train(
            make_agent("ddqn", env), env, total_frames=10, collector="multi_sync", worker_env=ROOMS
        )
    with pytest.raises(
        ValueError,
        match=r"collector is 'multi' .did you mean 'multi_sync'.*choose from single, multi_sync",
    ):
        CollectorConfig("multi")
    with pytest.raises(ValueError, match="num_workers must be at least 1, got 0"):
        CollectorConfig("multi_sync", num_workers=0)
