"""The skills of ``cic`` lead to different places."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import state_values
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer
from torchrl_dceo.training.probes import SkillProbe, option_actor

ROOM = "\n".join(["." * 7] * 3 + ["...S..."] + ["." * 7] * 3)
SKILLS = 5
STEPS = 10


def mutual_information(skill: Tensor, state: Tensor, num_states: int) -> float:
    """Of two samples, in nats, from their joint frequencies."""
    joint = torch.zeros(SKILLS, num_states).index_put_((skill, state), torch.ones(()), True)
    joint = joint / joint.sum()
    product = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    return float((joint * (joint / product).log()).nan_to_num().sum())


def final_states(trainer: Trainer, skill: Tensor, state: Tensor) -> Tensor:
    """Where each skill's greedy policy ends, with the slips of the environment."""
    env = trainer.env.base_env
    greedy = state_values(option_actor(trainer.agent), trainer.env).argmax(-1)  # [S, N]
    for _ in range(STEPS):
        action = greedy[state, skill]
        slips = torch.rand(action.shape) < 0.15
        action = torch.where(slips, torch.randint(env.num_actions, action.shape), action)
        state = env.next_state[state, action]
    return state


@pytest.mark.fast_only
def test_skills_and_final_states_share_information_beyond_chance():
    torch.manual_seed(0)
    env_settings = {"batch_size": 16, "max_steps": 50}
    env = make_env(ROOM, seed=0, **env_settings)
    agent = make_agent("cic", env, num_options=SKILLS, lr=1e-3, discovery_frames=12_000)
    trainer = Trainer(
        agent,
        env,
        TrainConfig(
            total_frames=12_000, learning_starts=500, update_period=16, progress=False, seed=0
        ),
        discovery_env=make_env(ROOM, seed=1, coverage=True, **env_settings),
    )
    skill = torch.randint(SKILLS, (2000,))
    start = torch.randint(trainer.env.base_env.num_states, (2000,))
    before = SkillProbe()(trainer)["option_return"]
    trainer.run()
    after = SkillProbe()(trainer)["option_return"]

    num_states = env.base_env.num_states
    end = final_states(trainer, skill, start)
    information = mutual_information(skill, end, num_states)
    shuffled = [
        mutual_information(skill[torch.randperm(len(skill))], end, num_states) for _ in range(100)
    ]
    assert information > 0.8 > 5 * max(shuffled)
    assert information < math.log(SKILLS) + 1e-6
    assert after > before + 2.0
