"""``dceo_two_phase``: options discovered without reward, then frozen, the paper's Algorithm 3."""

from __future__ import annotations

from dataclasses import dataclass

from torchrl.envs import EnvBase

from torchrl_dceo.agents.dceo import DCEOConfig, make_dceo
from torchrl_dceo.training.agent import Agent


@dataclass
class DCEOTwoPhaseConfig(DCEOConfig):
    """Settings of ``dceo_two_phase``: those of ``dceo`` and the length of the discovery."""

    discovery_frames: int = 100_000  # T_discovery; ours


def make_dceo_two_phase(env: EnvBase, config: DCEOTwoPhaseConfig) -> Agent:
    """Builds the agent: ε = 1 in the reward-free world first, then a frozen option set serves the main learner."""
    return make_dceo(env, config, discovery_frames=config.discovery_frames)
