"""``ddqn``: n-step Double DQN with ε-greedy exploration, the learner that every other agent adds to."""

from __future__ import annotations

from dataclasses import dataclass

from torchrl.envs import EnvBase
from torchrl.modules import EGreedyModule

from torchrl_dceo._fast.actors import PolicySequence
from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.agents.builders import (
    make_main_learner,
    make_optimizer,
    make_replay_settings,
    make_targets,
)
from torchrl_dceo.agents.configs import LearnerConfig


@dataclass
class DDQNConfig(LearnerConfig):
    """Settings of ``ddqn``: those of the main learner."""


def make_ddqn(env: EnvBase, config: DDQNConfig) -> Agent:
    """Builds the agent for an environment."""
    main, main_loss = make_main_learner(env, config)
    explorer = EGreedyModule(
        env.action_spec_unbatched,
        eps_init=config.eps_init,
        eps_end=config.eps_end,
        annealing_num_steps=config.eps_frames,
    )
    objectives = {"main": main_loss}
    return Agent(
        PolicySequence(main, explorer),
        objectives,
        explorer=explorer,
        optimizer=make_optimizer(config, objectives),
        targets=make_targets(config, [main_loss]),
        replay=make_replay_settings(config),
        max_grad_norm=config.max_grad_norm,
    )
