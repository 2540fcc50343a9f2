"""Rainbow, alone and as the main learner and options of DCEO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.agents.dceo import DCEOConfig, make_dceo
from torchrl_dceo.agents.ddqn import DDQNConfig, make_ddqn


@dataclass
class RainbowConfig(DDQNConfig):
    """Settings of ``rainbow``: those of the main learner, with the authors' values for Atari."""

    lr: float = 6.25e-5  # the authors, and Hessel et al. 2018
    adam_eps: float = 1.5e-4  # the same
    main_adam_eps: float = 1.5e-4  # the same
    n_steps: int = 3  # the same
    target_tau: float | None = None  # the authors: hard target updates
    target_period: int = 2000  # in updates: 8000 steps at one update per 4; the authors
    eps_end: float = 0.01  # the authors
    eps_frames: int = 250_000  # the authors
    main_learner: Literal["network", "table", "rainbow"] = "rainbow"  # the paper, on Atari
    prioritized: bool = True  # Hessel et al. 2018
    replay_measure: Literal["visits", "distinct"] = "visits"  # the authors
    centre_pixels: bool = False  # the authors: images as they are


def make_rainbow(env: EnvBase, config: RainbowConfig) -> Agent:
    """Builds the agent: ``ddqn`` with another learner and other defaults."""
    return make_ddqn(env, config)


@dataclass
class RainbowDCEOConfig(RainbowConfig, DCEOConfig):
    """Settings of ``rainbow_dceo``: those of ``dceo``, with the authors' values for Atari, including ``rainbow``'s."""

    num_options: int = 5  # the paper, in 3D and Atari
    option_prob: float = 0.9  # the paper, in 3D and Atari
    signs: Literal["+", "-", "both"] = "+"  # the paper
    eps_per: Literal["decision", "step"] | None = "decision"  # the paper
    eps_after_reward: bool = False  # the paper
    option_gamma: float | None = None  # the authors: the main learner's
    one_step_options: bool = False  # the authors: n steps, as the main learner
    dimensions: int | None = 20  # the authors
    norm: Literal["squared", "log1p"] = "log1p"  # the authors
    # The authors weigh orthogonality by 1 against a smoothness without our factor ½: 0.5 here.
    barrier: float | Literal["auto"] = 0.5
    reward_mode: Literal["telescoped", "discounted", "potential"] = "telescoped"  # the authors
    termination: str | Callable | None = None  # the paper and the authors: 1/D


def make_rainbow_dceo(env: EnvBase, config: RainbowDCEOConfig) -> Agent:
    """Builds the agent: ``dceo`` with distributions of returns, and other defaults."""
    return make_dceo(env, config)
