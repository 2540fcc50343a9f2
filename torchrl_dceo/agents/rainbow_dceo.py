"""``rainbow_dceo``: fully online Deep Covering Eigenoptions on Rainbow, with the DCEO authors' settings for Atari."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchrl.envs import EnvBase

from torchrl_dceo.agents.dceo import DCEOConfig, make_dceo
from torchrl_dceo.agents.rainbow import RainbowConfig
from torchrl_dceo.training.agent import Agent


@dataclass
class RainbowDCEOConfig(RainbowConfig, DCEOConfig):
    """Settings of ``rainbow_dceo``: those of ``dceo``, with the authors' values for Atari, ``rainbow``'s among them."""

    num_options: int = 5  # the paper, in 3D and Atari
    option_gamma: float | None = None  # the authors: the main learner's
    one_step_options: bool = False  # the authors: n steps, as the main learner
    dimensions: int | None = 20  # the authors
    norm: Literal["squared", "log1p"] = "log1p"  # the authors
    barrier: float = 1.0  # the authors: no factor
    reward_mode: Literal["telescoped", "discounted", "potential"] = "telescoped"  # the authors


def make_rainbow_dceo(env: EnvBase, config: RainbowDCEOConfig) -> Agent:
    """Builds the agent: ``dceo`` with distributions of returns, and other defaults."""
    return make_dceo(env, config)
