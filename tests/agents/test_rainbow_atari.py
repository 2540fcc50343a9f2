"""Rainbow on Atari: a run that is interrupted continues to the bit, emulator, priorities and frames included."""

from __future__ import annotations

import pytest
import torch

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer

pytest.importorskip("ale_py")


def make_trainer(name: str, frames: int, run_dir) -> Trainer:
    torch.manual_seed(0)
    env = make_env("MontezumaRevenge", seed=0, batch_size=1, visits="counts", max_steps=25)
    agent = make_agent(name, env, batch_size=4, target_period=3)
    config = TrainConfig(
        total_frames=frames,
        learning_starts=16,
        update_period=8,
        replay_capacity=48,  # overwritten before the interruption
        log_period=8,
        checkpoint_period=24,
        progress=False,
    )
    return Trainer(agent, env, config, run_dir=run_dir)


@pytest.mark.fast_only
@pytest.mark.parametrize("name", ["rainbow", "rainbow_dceo"])
def test_resumed_runs_go_on_to_the_bit(name, tmp_path):
    whole = make_trainer(name, 96, tmp_path / "whole")
    expected = whole.run()
    make_trainer(name, 72, tmp_path / "run").run()
    resumed = make_trainer(name, 96, tmp_path / "run")
    assert resumed.resume() == 72
    row = resumed.run()
    del expected["seconds"], row["seconds"]
    assert row == pytest.approx(expected, abs=0, rel=0, nan_ok=True)
    for key, value in whole.agent.state_dict().items():
        assert torch.equal(value, resumed.agent.state_dict()[key]), key
    one, two = whole.replay.sample(), resumed.replay.sample()
    assert torch.equal(one["index"], two["index"]) and torch.equal(one["pixels"], two["pixels"])
    assert one["pixels"].shape == (4, 4, 84, 84)
    # The losses have seen something: the networks differ from those of the start.
    start = make_trainer(name, 96, None).agent.objectives["main"].state_dict()
    learned = resumed.agent.objectives["main"].state_dict()
    assert any(not torch.equal(start[key], learned[key]) for key in start)
