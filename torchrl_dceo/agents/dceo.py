"""Deep covering eigenoptions: online, and in two phases."""

from __future__ import annotations

from dataclasses import dataclass

from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.agents.builders import make_eigen_reward, make_laplacian, with_ritz
from torchrl_dceo.agents.configs import LaplacianConfig, LearnerConfig, OptionConfig
from torchrl_dceo.agents.option_agent import make_option_agent


@dataclass
class DCEOConfig(LaplacianConfig, OptionConfig, LearnerConfig):
    """Settings of ``dceo``: main learner, options and Laplacian."""


def make_dceo(env: EnvBase, config: DCEOConfig, *, discovery_frames: int | None = None) -> Agent:
    """Builds the agent: at every update the Laplacian, the options and the main learner all learn."""
    encoder, laplacian_loss = make_laplacian(env, config, config, config)
    encoder, representation = with_ritz(encoder, laplacian_loss, config)
    reward = make_eigen_reward(
        encoder,
        config,
        config,
        mode=config.reward_mode,
        signs=config.signs,
        skip_first=config.skip_first,
    )
    return make_option_agent(
        env,
        config,
        config,
        # The Laplacian first: it leaves f(s) in the batch, which the reward takes instead of computing it again.
        {**representation, "reward": reward},
        reward.num_rewards,
        discovery_frames=discovery_frames,
        window=config.reward_mode == "discounted",
        pair_steps=config.pair_steps,
        measure=config.laplacian_measure,
    )


@dataclass
class DCEOTwoPhaseConfig(DCEOConfig):
    """Settings of ``dceo_two_phase``: those of ``dceo`` and the length of the discovery."""

    discovery_frames: int = 100_000  # T_discovery; ours


def make_dceo_two_phase(env: EnvBase, config: DCEOTwoPhaseConfig) -> Agent:
    """Builds the agent: ε = 1 in the reward-free world first, then a frozen option set serves the main learner."""
    return make_dceo(env, config, discovery_frames=config.discovery_frames)
