"""Collection by Ray actors; each test starts Ray on this machine and leaves nothing running."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import worker_runs
from worker_runs import ROOMS, act_by_what_is_learned, check_rows, make_trainer, record, ticking

import torchrl_dceo
from torchrl_dceo.envs import StateCounts, find_transform
from torchrl_dceo.training import CollectorConfig
from torchrl_dceo.training.collection.workers import STAMP
from torchrl_dceo.training.errors import RunError

ray = pytest.importorskip("ray")
ray_collection = pytest.importorskip("torchrl_dceo.training.collection.ray")


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """Each test starts a Ray of its own, without reports to its makers, and ends it."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else a busy machine leaves actors nothing
    # Actors look for modules where their Ray does.
    paths = [Path(worker_runs.__file__).parent, Path(torchrl_dceo.__file__).parent.parent]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
    yield
    left = ray.is_initialized()
    ray.shutdown()
    assert not left, "Ray was left running"


def test_streams_options_and_accounting():
    trainer = make_trainer(ticking, "ray")
    batches = record(trainer)
    row = trainer.run()
    check_rows(trainer.replay)
    assert row["frames"] == 400 and row["updates"] == (400 - 100) // 10
    assert {tuple(streams) for _, streams in batches} == {(0, 1), (2, 3)}
    for data, streams in batches:
        assert torch.equal(data[STAMP][:, 0, 0], torch.tensor(list(streams)) // 2)
        begins = data["is_init"].squeeze(-1)
        assert ((data["option"] < 0) | data["option_start"])[begins].all()
    first = [data["action"] for data, _ in batches if data[STAMP][0, 0, 1] == 0]
    assert len(first) == 2 and not torch.equal(*first)


@pytest.mark.slow
def test_workers_act_by_what_was_learned():
    act_by_what_is_learned("ray")


@pytest.mark.slow
def test_a_killed_actor_is_replaced(caplog):
    """In the middle of a run on Nine Rooms: the run ends as planned, and every stored step is possible."""
    trainer = make_trainer(ROOMS, "ray", agent="counts", frames=800, env={"visits": "counts"})
    trainer.config.eval_period = 100
    batches, killed = record(trainer), []

    def kill(trainer_):
        if not killed and trainer_.counters.frames >= 300:
            ray.kill(trainer_._collection._collector.remote_collectors[0])
            killed.append(True)
        return {}

    trainer.probes = (kill,)
    with caplog.at_level(logging.WARNING, logger="torchrl_dceo"):
        row = trainer.run()
    (message,) = [r.message for r in caplog.records if "replaced" in r.message]
    assert message == (
        "the Ray actor of worker 0 has died: all workers are replaced, and the run continues with new episodes"
    )
    assert killed and row["frames"] == 800
    stored = trainer.replay.transitions()
    assert len(stored) > 700
    table = trainer.env.base_env.next_state
    state, successor = stored["state_id"], stored["successor", "state_id"]
    assert (table[state] == successor.unsqueeze(-1)).any(-1).all()
    # The run's counts are those of all that was delivered, before and after.
    starts = sum(int(data["is_init"].sum()) for data, _ in batches)
    assert int(find_transform(trainer.env, StateCounts).counts.sum()) == 800 + starts


@pytest.mark.slow
def test_an_environment_that_fails_is_no_lost_worker():
    """An error of the environment is raised, not tried again."""
    trainer = make_trainer(broken, "ray")
    with pytest.raises(Exception, match="the environment has come to an end"):
        trainer.run()


def broken(batch_size, seed):
    env = ticking(batch_size, seed)
    if seed:  # a worker's; the learner's own has seed 0
        env.base_env._step = fail
    return env


def fail(tensordict):
    raise RuntimeError("the environment has come to an end")


@pytest.fixture
def head(monkeypatch):
    """Something that listens where the head of a cluster would."""
    server = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{server.getsockname()[1]}"
    context = SimpleNamespace(gcs_address=address)
    monkeypatch.setattr(ray_collection.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray_collection, "_HEARTBEAT", 0.05)
    with server:
        yield server, address


@pytest.mark.parametrize("waiting", [True, False])
def test_a_head_that_is_gone_ends_the_run_with_a_sentence(head, waiting):
    """In a call that waits for Ray at once, otherwise at the next one."""
    server, address = head
    before = signal.getsignal(signal.SIGUSR1)
    watch = ray_collection.HeadWatch()
    watch.waiting = waiting
    try:
        time.sleep(0.4)
        watch.check()
        server.close()
        began = time.monotonic()
        sentence = f"the head of the Ray cluster at {address} is gone: start it again and resume"
        with pytest.raises(RunError, match=sentence):
            time.sleep(5)
            assert not waiting, "it was not woken"
            watch.check()
        assert (time.monotonic() - began < 4) == waiting
    finally:
        watch.waiting = False
        watch.close()
    assert signal.getsignal(signal.SIGUSR1) == before


STUCK = """
import signal, sys, time
from types import SimpleNamespace
from torchrl_dceo.training.collection import ray as watched
watched.ray.get_runtime_context = lambda: SimpleNamespace(gcs_address="127.0.0.1:1")
watched._HEARTBEAT, watched._PATIENCE = 0.05, 1.0
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
watched.HeadWatch()
time.sleep(60)
"""


def test_a_call_that_cannot_be_woken_is_ended():
    command = [sys.executable, "-W", "ignore", "-c", STUCK]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    sentence = (
        "the head of the Ray cluster at 127.0.0.1:1 is gone: start it again and resume the run"
    )
    assert ended.returncode == 1 and ended.stderr.strip() == sentence


def test_without_ray_a_sentence_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'torchrl-dceo\[ray\]'"):
        CollectorConfig("ray")
