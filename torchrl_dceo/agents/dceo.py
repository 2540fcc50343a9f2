"""Deep covering eigenoptions: online, and in two phases."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.agents.builders import make_eigen_reward, make_laplacian
from torchrl_dceo.agents.configs import DiscoveryConfig, LaplacianConfig, OptionAgentConfig
from torchrl_dceo.agents.option_agent import make_option_agent
from torchrl_dceo.typos import imported


@dataclass
class DCEOConfig(LaplacianConfig, OptionAgentConfig):
    """Settings of ``dceo``: main learner, options and Laplacian."""


def make_dceo(env: EnvBase, config: DCEOConfig, *, discovery_frames: int | None = None) -> Agent:
    """Builds the agent: at every update the Laplacian, the options and the main learner all learn."""
    encoder, laplacian_loss = make_laplacian(env, config, config, config)
    reward: nn.Module
    if config.option_reward is None:
        reward = make_eigen_reward(
            encoder,
            config,
            config,
            mode=config.reward_mode,
            signs=config.signs,
            skip_first=config.skip_first,
        )
        num_options = reward.num_rewards
    else:
        num_options = config.num_options
        make_reward = imported(config.option_reward)
        reward = make_reward(encoder, num_options, successor=config.option_successor)
    return make_option_agent(
        env,
        config,
        config,
        # The Laplacian first: it leaves f(s) in the batch, which the reward takes instead of computing it again.
        {"laplacian": laplacian_loss, "reward": reward},
        num_options,
        discovery_frames=discovery_frames,
        window=config.reward_mode == "discounted",
        pair_steps=config.pair_steps,
    )


@dataclass
class DCEOTwoPhaseConfig(DiscoveryConfig, DCEOConfig):
    """Settings of ``dceo_two_phase``: those of ``dceo`` and of the discovery."""


def make_dceo_two_phase(env: EnvBase, config: DCEOTwoPhaseConfig) -> Agent:
    """Builds the agent: ε = 1 in the reward-free world first, then a frozen option set serves the main learner."""
    return make_dceo(env, config, discovery_frames=config.discovery_frames)
