"""The settings that agents share: main learner, options, Laplacian. Each default is defined only here.

A comment names the origin of each value. "Tuned" means on Nine Rooms; "the authors" is the code released with the
paper (Atari), "their later code" the research code published after it (grids, 3D).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torchrl_dceo.hashing import HASHES
from torchrl_dceo.settings import (
    by_environment,
    check_at_least,
    check_between,
    check_positive,
    check_types,
    choices,
)

__all__ = [
    "DiscoveryConfig",
    "LaplacianConfig",
    "LearnerConfig",
    "OptionAgentConfig",
    "OptionConfig",
    "reward_patience",
]


_NETWORKS = ("auto", "grid", "nature", "nature_small", "mlp")


class _Checked:
    """Base of the configs: checks the types of the fields before the subclasses check ranges."""

    def __post_init__(self) -> None:
        check_types(self)


@dataclass
class LearnerConfig(_Checked):
    """The main learner: n-step Double DQN with ε-greedy exploration. Every agent has these."""

    lr: float = 5e-4  # ours, tuned within the paper's range (1e-3 … 5e-5; it settled on 1e-4)
    adam_eps: float = 1e-8  # torch's default; for all but the main learner
    # Ours: without reward values collapse with 1e-8; the authors' 1.5e-4 learns later (docs/concepts/options.md).
    main_adam_eps: float = 1e-5
    gamma: float = 0.99  # their later code
    n_steps: int = 5  # the paper
    batch_size: int = 32  # their later code
    # Ours: soft target updates, twice as fast as hard ones and steadier (docs/concepts/options.md); None: hard ones.
    target_tau: float | None = 0.01
    # Updates between hard ones, if target_tau is None: 1000 frames at one update per 4, their later code.
    target_period: int = 250
    loss_function: str = "smooth_l1"  # the authors clip TD errors
    eps_init: float = 1.0  # their later code
    eps_end: float = 0.1  # their later code
    eps_frames: int = 100_000  # ours: a third of a run, as many frames as their later code has
    # auto, grid, nature, nature_small (Mnih et al. 2013: a third of the time) or mlp. The paper: its grid network for
    # images, three layers of 256 for vectors; auto: nature from 64 pixels per side.
    # Or your own, called with the shape of an observation and the number of outputs: a function, or its name
    # "package.module:function".
    network: str | Callable = "auto"
    # Convolutional networks multiply in bf16; weights, losses and optimizer stay float32. Ours; the paper: off.
    bf16: bool = False
    centre_pixels: bool = True  # ours, for all networks on images (docs/concepts/options.md)
    # Ours: the value of the brightest pixel (255, or that of the spec) in the main learner's centred images.
    main_pixel_scale: float = 2.0
    max_grad_norm: float | None = None  # ours: no clipping of the gradient
    # Of main learner and options; ours (their later code, in 3D: rmsprop, centred, decay 0.95).
    optimizer: Literal["adam", "rmsprop"] = "adam"
    rmsprop_eps: float = 0.01 / 32**2  # under the root; their later code, in 3D
    # Of all other networks (f, discriminator, predictor); None: lr (their later code, in 3D: 1e-4).
    representation_lr: float | None = None
    # The paper: a table on the cube, Rainbow on Atari (its options too).
    main_learner: Literal["network", "table", "rainbow"] = "network"
    table_step_size: float = 0.1  # of that table; the paper, for tabular agents
    num_atoms: int = 51  # of Rainbow's distributions; Bellemare et al. 2017
    v_max: float = 10.0  # their largest return; the smallest is -v_max; the authors
    # Ours: all distinct observations are equally likely, so that rare ones, such as a goal, are sampled as often as the
    # start (docs/concepts/options.md); visits: all transitions are equally likely, as in DQN and the paper.
    replay_measure: Literal["visits", "distinct"] = "distinct"
    # Ours: of a distinct observation, every action tried there is equally likely, so that rare ones, such as the step
    # into a goal, are learned too, and the Laplacian is that of the uniformly random walk (docs/concepts/options.md).
    replay_by_action: bool = True
    # Ours: only this many of the last transitions of each of them, so that a changed environment is learned anew; None:
    # all of them.
    replay_newest: int | None = 10
    # When two observations are the same one, for distinct: exact (all bytes equal), cell (images in the same coarse
    # cell, docs/concepts/replay.md), simhash (vectors), or your own function from observations [N, ...] to int64 [N] or
    # its name "package.module:function". Ours; the paper has no such measure.
    observation_hash: str | Callable = "exact"
    prioritized: bool = False  # ours: uniform draws, as DQN; Rainbow draws by the last error
    priority_alpha: float = 0.5  # exponent of the priority; Hessel et al. 2018
    priority_beta: float = 0.5  # exponent of the importance weights; the authors: constant
    # TorchRL's Σwℓ/Σw over a prioritized batch; True: mean(wℓ), the authors.
    weighted_mean: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, ("lr", "adam_eps", "main_adam_eps", "main_pixel_scale", "v_max"))
        check_positive(self, ("rmsprop_eps", "representation_lr"))
        check_positive(self, ("max_grad_norm", "target_tau", "table_step_size"))
        check_between(self, ("gamma", "target_tau", "eps_init", "eps_end", "table_step_size"))
        check_between(self, ("priority_beta",))
        check_at_least(self, 0, ("priority_alpha",))
        check_at_least(self, 1, ("n_steps", "batch_size", "target_period", "eps_frames"))
        check_at_least(self, 1, ("replay_newest",))
        check_at_least(self, 2, ("num_atoms",))
        for name, known in (("network", _NETWORKS), ("observation_hash", HASHES)):
            given = getattr(self, name)
            if isinstance(given, str) and ":" not in given and given not in known:
                raise ValueError(f"{name} is {choices(given, known)}, package.module:function")


@dataclass
class OptionConfig(_Checked):
    """The options and their use."""

    num_options: int = by_environment(10)  # the paper, on grids (3 on the cube, 5 in 3D and Atari)
    option_prob: float = by_environment(0.8)  # μ; the paper, online on Nine Rooms and Maze
    option_duration: float = 10.0  # D; the paper, everywhere
    option_eps: float = 0.01  # their later code
    # Ours: None, constant; the authors: 1.0, which decays to option_eps together with ε.
    option_eps_init: float | None = None
    # Frames before ε decays, after a discovery phase; ours: none (the authors: 20,000, their warm-up).
    eps_start: int = 0
    # Ours: ε is the fraction of exploratory steps, as without options; decision: the paper, where options make it 46 %
    # at 0.1. None: step, or decision with a termination of your own.
    eps_per: Literal["decision", "step"] | None = None
    # Ours: ε decays from the first reward on, before which there is nothing to exploit; False: at once, the paper.
    eps_after_reward: bool = True
    # Ours: after this share of eps_frames of greedy steps without a reward ε starts anew, as before the first one, so
    # that an environment that has changed is explored again; None: never, the paper.
    eps_patience: float | None = 0.125
    options_across_episodes: bool = False  # the paper; True: as in the authors' code
    # ours (docs/concepts/options.md); None: the main one, as the paper
    option_gamma: float | None = 0.95
    independent_networks: bool = False  # ours: one trunk with one head per option, 3 times as fast
    options_per_update: int | None = None  # ours: all of them (the authors' code: 1 or 3)
    # Updates between hard ones of the options' targets, if target_tau is None; ours: None, the main learner's (the
    # authors: 8000 of each option's own).
    option_target_period: int | None = None
    # True: act with the target networks, averaged weights; better climb, less coverage (docs/concepts/options.md).
    average_options: bool = False
    # Ours: better climb than over n steps, which is the paper's (docs/concepts/options.md).
    one_step_options: bool = True
    # Your own functions or their import paths; see torchrl_dceo.modules.OptionExplorationModule.
    selection: str | Callable | None = None  # None: uniform, the paper, or as set by direction
    # None: 1/D, the paper; "top", for options that follow eigenfunctions: 1/D, and where no action gains anything.
    termination: str | Callable | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, ("num_options", "option_duration", "options_per_update"))
        check_at_least(self, 1, ("option_target_period",))
        check_at_least(self, 0, ("eps_start",))
        check_positive(self, ("eps_patience",))
        check_between(self, ("option_prob", "option_eps", "option_eps_init", "option_gamma"))

    @property
    def option_successor(self) -> str:
        """The batch entry of the state after an option's transition."""
        return "successor" if self.one_step_options else "next"


def reward_patience(share: float | None, eps_frames: int, after_reward: bool) -> int | None:
    """The greedy steps without a reward after which ε starts anew, from the settings; ``None``: it never does."""
    if share is None or not after_reward:
        return None
    return max(1, round(share * eps_frames))


@dataclass
class OptionAgentConfig(OptionConfig, LearnerConfig):
    """A main learner and options: the config of :func:`~torchrl_dceo.agents.builders.make_option_agent`."""

    eps_frames: int = 40_000  # ours: from the first reward on, see eps_after_reward

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.option_target_period is not None and self.target_tau is not None:
            raise ValueError(
                f"option_target_period={self.option_target_period} is for hard target updates: set target_tau to None "
                f"(null), got {self.target_tau}"
            )


@dataclass
class DiscoveryConfig(_Checked):
    """Options that are discovered without reward and then frozen."""

    discovery_frames: int = by_environment(100_000)  # T_discovery; ours: a third of the run
    option_prob: float = 0.9  # μ; the paper, two phases on Nine Rooms and Maze

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, ("discovery_frames",))


@dataclass
class LaplacianConfig(_Checked):
    """The representation f and the rewards computed from it."""

    dimensions: int | None = None  # d; None: as many as the options need (the authors' code: 20)
    objective: Literal["generalized", "graph_drawing", "allo", "omm"] = "generalized"  # the paper
    norm: Literal["squared", "log1p"] = "squared"  # the paper; log1p is the authors' released code
    # Ours: slightly above half of the largest eigenvalue in use (docs/concepts/representation.md); "auto": kept there
    # by an estimate, for environments on which 0.1 was not tuned. With ALLO any number means 2.
    barrier: float | Literal["auto"] = 0.1
    least_barrier: float = 0.1  # lower bound of "auto"; ours: f follows a moving frontier
    estimator: Literal["pairs", "split"] = "pairs"  # ours: lower variance at no cost
    # Ours: None, as replay_measure (docs/concepts/laplacian.md); visits: the paper.
    laplacian_measure: Literal["visits", "distinct"] | None = None
    # Ours: its expectations are over the states of the data; False: the main learner's prioritized batch, the authors.
    laplacian_uniform: bool = True
    ritz_period: int | None = None  # ours: updates between two Rayleigh-Ritz solutions; None: none
    pair_steps: int = 1  # between the states of a pair; the paper (the authors' code: n)
    skip_first: bool = True  # ours: the first eigenfunction is constant
    # Ours: with both signs ten options, as many as the paper has on grids (docs/concepts/options.md).
    num_options: int = 5
    # Ours: with one sign it is random whether an option leads to the goal (docs/concepts/options.md); the paper: "+".
    signs: Literal["+", "-", "both"] = "both"
    # Ours: same policies as the authors' telescoped reward, learned faster (docs/concepts/options.md).
    reward_mode: Literal["telescoped", "discounted", "potential"] = "potential"
    encoder: str | Callable | None = None  # the network of f, as network; None: the same
    # κ: preference for options that lead away from recently visited states (DirectedSelection). Ours, tuned
    # (results/exploration); 0: uniform choice, the paper, and always so with replay_measure="visits" or a selection=.
    direction: float = 3.0
    # Ours: an option that has reached its top leaves its time to another one (docs/concepts/options.md); as the paper's
    # tabular options end. None: 1/D alone, as its deep ones. With an option_reward of your own: None.
    termination: str | Callable | None = by_environment("top")
    # Your own option reward, called like EigenReward(encoder, num_options, successor=…). It returns a module that
    # writes option_reward [*, N]. None: the eigenfunctions, the paper.
    option_reward: str | Callable | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.barrier != "auto":
            check_positive(self, ("barrier",))
        check_at_least(self, 0, ("least_barrier", "direction"))
        check_at_least(self, 1, ("dimensions", "pair_steps", "ritz_period"))
        if self.laplacian_measure is not None and not self.laplacian_uniform:
            raise ValueError(
                f"laplacian_measure {self.laplacian_measure!r} needs a batch of the Laplacian's own: set "
                "laplacian_uniform to True"
            )
