"""An environment that changes: the agent keeps its state, evaluation follows, a killed run resumes across it."""

from __future__ import annotations

import shutil
import signal

import pytest
import torch
from training_runs import difference, final_state, logged_frames, rows

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import current_map, make_env
from torchrl_dceo.training import TrainConfig, Trainer

SWITCHES = ("NineRoomsGoalSwitch", "NineRoomsTopologySwitch")
NEVER = 10**9
ENVS, SWITCH = 4, 30  # environments, and the steps of each before the change
SMALL = {
    "dceo": {"num_options": 3, "option_prob": 1.0, "eps_end": 0.5},
    "ez_greedy": {"option_prob": 1.0, "eps_end": 0.5},
    "rnd": {"rnd_features": 8},
}


def trained(agent: str, switch_steps: int, frames: int, seed: int = 3) -> tuple[Trainer, list]:
    """A run on the goal switch, in episodes that do not end for a while, and the option in charge after each step."""
    options = []

    def probe(trainer: Trainer) -> dict[str, float]:
        options.append(trainer.state()["carrier"].get("option"))
        return {}

    torch.manual_seed(seed)
    env_settings = {"switch_steps": switch_steps, "max_steps": 1000}  # full size: no goal for long
    env = make_env(
        "NineRoomsGoalSwitch", batch_size=ENVS, seed=seed, visits="counts", **env_settings
    )
    settings = SMALL.get(agent, {})
    if agent in ("dceo", "ez_greedy"):
        settings = {**settings, "eps_after_reward": False}  # no reward is met: ε falls all the same
    built = make_agent(
        agent, env, eps_frames=10 * frames, target_period=7, batch_size=8, **settings
    )
    config = TrainConfig(
        total_frames=frames,
        learning_starts=40,
        log_period=ENVS,
        update_period=4,
        eval_period=ENVS,
        seed=seed,
        progress=False,
    )
    trainer = Trainer(built, env, config, probes=(probe,))
    trainer.run()
    return trainer, options


@pytest.mark.parametrize("agent", ["dceo", "ddqn", "counts", "rnd", "ez_greedy"])
def test_nothing_is_reset_at_a_switch(agent):
    """A run whose environment changes is, to the bit, the run whose environment does not, until an episode ends.

    The new goal is invisible, so whatever differs would have been done to the agent: replay, networks, optimizer,
    targets, ε, counts, and the option in charge.
    """
    frames = ENVS * (SWITCH + 20)
    changed, options = trained(agent, SWITCH, frames)
    same, expected = trained(agent, NEVER, frames)
    assert current_map(changed.env) == 1 and current_map(same.env) == 0
    states = [trainer.state() for trainer in (changed, same)]
    for state in states:
        assert state["counters"]["episodes"] == 0  # else the new start would show
        assert len(state["learning"]["moments"]) > 5
    for part in ("agent", "learning", "replay", "generators"):
        assert difference(states[0][part], states[1][part]) is None
    assert difference(*(state["envs"]["train"]["transforms"] for state in states)) is None
    # Every step can still be sampled, but for the last of each environment: nothing was emptied.
    assert len(changed.replay) == frames - ENVS
    eps = changed.agent.explorer.eps
    assert 0.5 < float(eps) < 1.0 and torch.equal(eps, same.agent.explorer.eps)
    assert difference(options, expected) is None
    if agent in ("dceo", "ez_greedy"):
        # Somewhere the same option was in charge in the last step of the old map and the first of the new one.
        old, new = options[SWITCH - 1], options[SWITCH]
        assert ((old == new) & (old >= 0)).any()


def test_evaluation_is_in_the_map_of_training():
    """Also at the very frame of the change, whose step was still made in the old map."""
    torch.manual_seed(0)
    train_env, eval_env = (
        make_env(
            "NineRoomsGoalSwitch",
            room_size=3,
            switch_steps=15,
            batch_size=size,
            seed=0,
            max_steps=50,
        )
        for size in (2, 3)
    )
    seen = []

    def probe(trainer: Trainer) -> dict[str, float]:
        seen.append((trainer.counters.frames, current_map(trainer.eval_env)))
        return {}

    config = TrainConfig(
        total_frames=60,
        update_period=2,
        learning_starts=100,
        eval_period=10,
        log_period=10,
        progress=False,
    )
    agent = make_agent("ddqn", train_env)
    trainer = Trainer(agent, train_env, config, eval_env=eval_env, probes=(probe,))
    assert trainer.run()["map"] == 1
    assert seen == [(10, 0), (20, 0), (30, 0), (40, 1), (50, 1), (60, 1)]
    starts = eval_env.base_env.cells[eval_env.reset()["state_id"]]
    assert (starts == torch.tensor([1, 1])).all()  # where episodes start in the second map


def test_discovery_never_sees_the_change():
    torch.manual_seed(0)
    env_settings = {"room_size": 3, "switch_steps": 5, "batch_size": 2}
    env, discovery = (
        make_env("NineRoomsGoalSwitch", coverage=c, **env_settings) for c in (False, True)
    )
    agent = make_agent("dceo_two_phase", env, discovery_frames=40, num_options=2)
    config = TrainConfig(total_frames=60, learning_starts=100, log_period=4, progress=False)
    Trainer(agent, env, config, discovery_env=discovery).run()
    assert current_map(discovery) == 0
    assert current_map(env) == 1  # 10 steps each, with the goal


def cut_back(run_dir, copy, count: int):
    """A copy of a run as if it had been killed after so many checkpoints."""
    shutil.copytree(run_dir, copy)
    for later in sorted((copy / "checkpoints").iterdir())[count:]:
        shutil.rmtree(later)
    return copy


@pytest.mark.parametrize("name", SWITCHES)
def test_resumes_across_the_switch_from_each_checkpoint(runs, tmp_path, name):
    """One before the change, one exactly at it, one after it."""
    spec = {
        "agent": "dceo",
        "frames": 1200,
        "name": name,
        "env_settings": {"room_size": 3, "switch_steps": 60, "max_steps": 25},
        "checkpoint_period": 300,
        "keep_checkpoints": 9,
        "eval_period": 200,
    }
    runs.run(run_dir=tmp_path / "whole", **spec)
    log = rows(tmp_path / "whole")
    assert [row["map"] for row in log] == ["0"] * 6 + ["1"] * 6
    for count in (1, 2, 3):
        copy = cut_back(tmp_path / "whole", tmp_path / f"from{count}", count)
        runs.run(run_dir=copy, resume=True, **spec)
        assert difference(final_state(copy), final_state(tmp_path / "whole")) is None
        assert rows(copy) == log


def test_killed_shortly_before_the_switch(runs, tmp_path):
    spec = {
        "agent": "counts",
        "frames": 1500,
        "name": "NineRoomsTopologySwitch",
        "env_settings": {"room_size": 3, "switch_steps": 80, "max_steps": 25},
    }
    runs.run(run_dir=tmp_path / "whole", **spec)
    killed = tmp_path / "killed"
    status = runs.run_until(
        lambda: logged_frames(killed) >= 700,
        signal.SIGKILL,
        delay=0.0,
        run_dir=killed,
        **spec,
    )
    assert status == -signal.SIGKILL and logged_frames(killed) < 1500
    runs.run(run_dir=killed, resume=True, **spec)
    assert difference(final_state(killed), final_state(tmp_path / "whole")) is None
    assert rows(killed) == rows(tmp_path / "whole")


def test_an_object_environment_resumes_in_mid_episode(runs, tmp_path):
    """The key in the hand, the broken wall and the generators of every environment are part of the run."""
    spec = {
        "agent": "dceo",
        "frames": 400,
        "name": "ObstructedKey",
        "env_settings": {"room_size": 3, "max_steps": 300},
        "batch_size": (4,),
        "learning_starts": 100,
        "checkpoint_period": 200,
        "eval_period": 400,
    }
    runs.run(run_dir=tmp_path / "whole", **spec)
    copy = cut_back(tmp_path / "whole", tmp_path / "cut", 1)
    runs.run(run_dir=copy, resume=True, **spec)
    assert difference(final_state(copy), final_state(tmp_path / "whole")) is None
    assert rows(copy) == rows(tmp_path / "whole")
