"""The settings that agents share: main learner, options, Laplacian. Each default is written here, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["LaplacianConfig", "LearnerConfig", "OptionConfig"]


@dataclass
class LearnerConfig:
    """The main learner: n-step Double DQN with ε-greedy exploration. Every agent has these."""

    lr: float = 1e-4  # the paper, for all deep experiments
    adam_eps: float = 1e-8  # torch's default; for all but the main learner
    main_adam_eps: float = 1e-5  # ours: see docs/options.md (the authors' Atari code: 1.5e-4)
    gamma: float = 0.99  # the authors' later research code
    n_steps: int = 5  # the paper
    batch_size: int = 32  # the authors' later research code
    target_tau: float | None = 0.01  # ours: soft target updates, see docs/options.md; None: hard
    target_period: int = (
        250  # hard ones, in updates: 1000 steps at one update per 4, as in the authors' code
    )
    loss_function: str = "smooth_l1"  # the authors clip TD errors
    eps_init: float = 1.0  # the authors' later research code
    eps_end: float = 0.1  # the authors' later research code
    eps_frames: int = 100_000  # frames over which ε falls
    network: Literal["auto", "grid", "nature", "mlp"] = (
        "auto"  # auto: grid for images, nature for those of 64 pixels a side or more, mlp for vectors
    )
    centre_pixels: bool = True  # ours, for every network that sees images: see docs/options.md
    main_pixel_scale: float = 2.0  # ours: 255 becomes this in the main learner's centred images
    max_grad_norm: float | None = None  # ours: no clipping of the gradient
    main_learner: Literal["network", "table", "rainbow"] = (
        "network"  # the paper: a table on the cube, Rainbow on Atari (its options too)
    )
    table_step_size: float = 0.1  # of that table; the paper, for tabular agents
    num_atoms: int = 51  # of Rainbow's distributions; Bellemare et al. 2017
    v_max: float = 10.0  # their largest return, and minus the smallest; the authors
    prioritized: bool = False  # whether transitions are drawn by their last error
    priority_alpha: float = 0.5  # how much it counts; Hessel et al. 2018
    priority_beta: float = 0.5  # how much weights correct for it; the authors: constant


@dataclass
class OptionConfig:
    """A set of options and how they are used."""

    num_options: int = 10  # the paper: 10, 3 on the cube, 5 in 3D and Atari
    option_prob: float = 0.9  # μ; the paper: see each recipe
    option_duration: float = 10.0  # D; the paper, everywhere
    option_eps: float = 0.01  # the authors' later research code
    options_across_episodes: bool = (
        False  # the paper; in the authors' code an option outlives its episode
    )
    option_gamma: float | None = (
        0.95  # ours, see docs/options.md; None: the main learner's, as the paper
    )
    independent_networks: bool = False  # one network an option instead of a shared trunk
    options_per_update: int | None = None  # None: all; the authors' code trains 1 or 3
    average_options: bool = False  # act by soft target networks, see docs/options.md
    one_step_options: bool = (
        True  # ours: see docs/options.md; the paper's options take n steps, as the main learner
    )

    @property
    def option_successor(self) -> str:
        """Where in a batch the state after an option's transition is."""
        return "successor" if self.one_step_options else "next"


@dataclass
class LaplacianConfig:
    """The representation f and the rewards made from it."""

    dimensions: int | None = None  # d; None: as many as the options need (the authors' code: 20)
    objective: Literal["generalized", "graph_drawing", "allo"] = "generalized"  # the paper
    norm: Literal["squared", "log1p"] = "squared"  # the paper; log1p is the authors' released code
    barrier: float = 0.1  # ours: above half of the eigenvalues wanted, see docs/representation.md
    estimator: Literal["pairs", "split"] = "pairs"  # ours: lower variance
    laplacian_measure: Literal["visits", "distinct"] = (
        "visits"  # the paper; distinct: every distinct observation alike, see docs/laplacian.md
    )
    ritz_period: int | None = None  # updates between two Rayleigh-Ritz solutions; None: none
    pair_steps: int = 1  # between the states of a pair; the paper (the authors' code: n)
    skip_first: bool = True  # ours: the first eigenfunction is constant
    signs: Literal["+", "-", "both"] = "+"  # the paper
    reward_mode: Literal["telescoped", "discounted", "potential"] = (
        "potential"  # ours, the policies of the authors' telescoped one: see docs/options.md
    )
