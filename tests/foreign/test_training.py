"""Every agent trains in environments that the package has never seen, from Python and from the command line."""

from __future__ import annotations

import csv
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import pytest
import torch
from foreign.never_seen import Meadow, MeadowDictionary, MeadowFloats, Ring
from forked import forked
from torchrl.envs import CatFrames, GymEnv, RewardSum, SerialEnv, TransformedEnv

from torchrl_dceo.agents import AGENTS, make_agent
from torchrl_dceo.cli.train import check
from torchrl_dceo.envs import make_env, prepare_env, saves_state
from torchrl_dceo.training import load_agent, train

TESTS = Path(__file__).parents[1]
PHASES = {"discovery_frames": 120}
DISCOVERING = ("dceo_two_phase", "diayn", "cic")


def run(name, env, *, discovery_env=None, frames=260, **kwargs):
    torch.manual_seed(0)
    settings = {"batch_size": 8, "eps_frames": 200}
    if name in DISCOVERING:
        settings |= PHASES
    agent = make_agent(name, env, **settings)
    row = train(
        agent,
        env,
        discovery_env=discovery_env,
        total_frames=frames,
        learning_starts=60,
        update_period=4,
        log_period=20,
        replay_capacity=600,
        progress=False,
        **kwargs,
    )
    return agent, row


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("env_class", [Meadow, Ring])
def test_every_agent_trains_in_an_environment_never_seen(name, env_class):
    other = env_class() if name in DISCOVERING else None
    _, row = run(name, env_class(), discovery_env=other)
    assert row["frames"] == 260 and row["updates"] >= 20 and row["episodes"] > 0
    losses = [value for key, value in row.items() if key.startswith("loss")]
    assert losses and all(abs(value) < float("inf") for value in losses)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GymEnv("CartPole-v1"),
        lambda: gymnasium.make("CartPole-v1"),
        lambda: gymnasium.make("MiniGrid-FourRooms-v0"),
        lambda: TransformedEnv(GymEnv("CartPole-v1"), RewardSum()),
        lambda: TransformedEnv(
            GymEnv("CartPole-v1"), CatFrames(N=2, dim=-1, in_keys=["observation"])
        ),
        lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")),
        lambda: Ring(batch_size=[4]),
        lambda: MeadowDictionary(),
        lambda: MeadowFloats(),
        lambda: make_env("gym", entry_point=Meadow, frame_stack=2, batch_size=2, slip=0.1),
    ],
    ids=[
        "GymEnv",
        "gymnasium",
        "MiniGrid",
        "transformed",
        "stacked",
        "serial",
        "batched",
        "dictionary",
        "floats",
        "gym",
    ],
)
def test_every_kind_of_environment_can_be_trained_in(make):
    import minigrid  # noqa: F401

    env = make()
    _, row = run("dceo", env)
    assert row["updates"] >= 40 and row["episodes"] > 0


def test_counts_are_shared_by_agent_and_training():
    env = Meadow()
    agent, row = run("counts", env)
    assert 5 < row["coverage"] <= 25
    ids = prepare_env(env).reset()["state_id"]
    assert agent.objectives["bonus"].scale > 0 and 0 <= int(ids) < 2**20


def test_a_run_that_cannot_save_its_environment_is_resumed_at_the_next_episode(tmp_path, caplog):
    assert not saves_state(prepare_env(Meadow()))

    def stop(trainer):
        if trainer.counters.frames == 200:
            raise KeyboardInterrupt
        return {}

    periods = {"run_dir": tmp_path, "checkpoint_period": 100, "eval_period": 20}
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        run("dceo", Meadow(), probes=(stop,), **periods)
    said = [record.getMessage() for record in caplog.records if "resumes at" in record.getMessage()]
    assert len(said) == 1 and "GymWrapper cannot be saved in mid-episode" in said[0]
    agent, row = run("dceo", Meadow(), resume=True, **periods)
    assert row["frames"] == 260
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(r["frames"]) for r in rows] == list(range(20, 261, 20))
    # What it learned is what is loaded.
    learned = load_agent(tmp_path, Meadow())
    assert learned.metadata["agent"]["name"] == "dceo" and learned.metadata["frames"] == 260
    for name, value in agent.state_dict().items():
        assert torch.equal(learned.agent.state_dict()[name], value), name


def test_environments_that_save_themselves_are_not_warned_of(tmp_path, caplog):
    env = make_env("S...G", slip=0.0, seed=0)
    with caplog.at_level(logging.WARNING):
        run("ddqn", env, run_dir=tmp_path)
    assert not [r for r in caplog.records if "resumes at" in r.getMessage()]


def command(*words, **kwargs):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "torchrl_dceo", *map(str, words)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def finish(*words, **kwargs):
    done = forked(["-m", "torchrl_dceo", *words], env={"PYTHONPATH": str(TESTS)}, **kwargs)
    return done.returncode, done.stdout, done.stderr


MEADOW = ("env=gym", "env.id=null", "env.entry_point=foreign.never_seen:make_meadow")
SHORT = (
    "num_envs=2",
    "learning_starts=60",
    "eval_episodes=2",
    "eval_period=200",
    "log_period=50",
    "progress=false",
)


def test_the_command_line_trains_in_it_is_killed_and_resumes(tmp_path):
    run_dir = tmp_path / "run"
    words = (
        "train",
        *MEADOW,
        *SHORT,
        "agent=dceo",
        "checkpoint_period=50",
        "total_frames=200_000",
        f"run_dir={run_dir}",
    )
    process = command(*words)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(run_dir.glob("checkpoints/*/state.json")):
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with (run_dir / "progress.csv").open() as file:
        before = int(list(csv.DictReader(file))[-1]["frames"])
    code, out, err = finish("train", f"resume={run_dir}", f"total_frames={before + 200}")
    assert code == 0, err
    assert "resumes at the next episode" in out + err
    with (run_dir / "progress.csv").open() as file:
        frames = [int(row["frames"]) for row in csv.DictReader(file)]
    assert frames[-1] == before + 200 and frames == sorted(set(frames))


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_trains_in_it_by_the_command_line(name, tmp_path):
    more = [f"agent.{key}={value}" for key, value in PHASES.items() if name in DISCOVERING]
    words = (*MEADOW, *SHORT, f"agent={name}", *more, "total_frames=400", f"run_dir={tmp_path}")
    code, _, err = finish("train", *words)
    assert code == 0, err
    with (tmp_path / "progress.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert int(last["frames"]) == 400 and 1 < int(float(last["coverage"])) <= 25


def test_the_command_line_refuses_what_is_not_supported(tmp_path):
    code, _, err = finish("train", "env=gym", "env.id=Pendulum-v1", f"run_dir={tmp_path / 'run'}")
    assert code == 1 and "Traceback" not in err
    assert (
        "continuous actions of shape [1] are not supported: supported are discrete actions" in err
    )
    assert not (tmp_path / "run" / "progress.csv").exists()


@pytest.mark.parametrize(
    ("entry_point", "sentence"),
    [
        ("foreign.odd:out_of_order", "RuntimeError: no licence was found (odd.py, line "),
        ("foreign.odd:NoReset", "RuntimeError: the server does not answer (odd.py, line "),
        ("foreign.odd:nothing", "an environment must be TorchRL's EnvBase, gymnasium.Env or"),
        ("foreign.odd:Blind", "this environment has no observation that a network could read"),
    ],
)
def test_an_environment_that_cannot_be_built_gets_one_sentence(entry_point, sentence):
    words = ["env=gym", "env.id=null", f"env.entry_point={entry_point}"]
    with pytest.raises(SystemExit, match=re.escape(sentence)) as end:
        check(words)
    assert "\n" not in str(end.value)
