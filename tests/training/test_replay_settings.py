"""The replay that an agent's settings make for an environment."""

from __future__ import annotations

import pytest

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import ReplaySettings, TrainConfig, Trainer


@pytest.mark.parametrize("parallel", [False, True])
def test_environments_in_processes_of_their_own_are_trained_in(parallel):
    """They answer for every attribute, also for a stack of frames that is not there."""
    env = make_env("EscapeRoom", room_size=3, batch_size=2, seed=0, max_steps=20, parallel=parallel)
    try:
        agent = make_agent("ddqn", env, batch_size=8)
        config = TrainConfig(
            total_frames=80, learning_starts=20, update_period=10, log_period=40, progress=False
        )
        trainer = Trainer(agent, env, config)
        trainer.run()
        batch = trainer.replay.sample()
        assert batch["pixels"].shape[1:] == env.observation_spec["pixels"].shape[1:]
        assert trainer.replay.num_streams == 2
    finally:
        env.close()


def test_stacks_that_an_environment_makes_itself_are_stored_frame_by_frame():
    env = make_env("MontezumaRevenge", batch_size=2, seed=0)
    replay = ReplaySettings(batch_size=4).make(env, 100, seed=0)
    replay.extend(env.rollout(20, break_when_any_done=False))
    assert replay.storage[0]["pixels"].shape[0] == 1 and replay.sample()["pixels"].shape[1] == 4


@pytest.mark.parametrize("envs", [1, 4])
def test_without_a_capacity_there_is_room_for_the_whole_run(envs):
    """Also where every episode has a few steps, and its last observation a row of its own."""
    env = make_env("NineRooms", room_size=3, batch_size=envs, max_steps=2)
    agent = make_agent("ddqn", env, network="mlp")
    config = TrainConfig(total_frames=4000, learning_starts=4000, progress=False, update_period=40)
    trainer = Trainer(agent, env, config=config)
    trainer.run()
    assert len(trainer.replay) == trainer.counters.frames
    assert trainer.replay.sample(64)["steps_to_next_obs"].max() == 2
