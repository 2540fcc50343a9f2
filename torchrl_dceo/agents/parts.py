"""The pieces that agents are put together from, each built from an environment's specs and a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import nn
from torchrl.envs import EnvBase
from torchrl.objectives import HardUpdate, LossModule, SoftUpdate
from torchrl.objectives.utils import TargetNetUpdater

from torchrl_dceo.agents.categorical import make_categorical_learner, make_categorical_options
from torchrl_dceo.modules import (
    Centred,
    EigenReward,
    GreedyActor,
    OptionExplorationModule,
    OptionQValueActor,
    averaged,
)
from torchrl_dceo.modules.networks import MultiHeadNet, StackedNet, grid_net, mlp_net, nature_net
from torchrl_dceo.objectives import (
    ALLOLoss,
    DoubleDQNLoss,
    GeneralizedLaplacianLoss,
    GraphDrawingLoss,
    OptionDQNLoss,
)
from torchrl_dceo.training.agent import ReplaySettings

NetworkFn = Callable[[int], nn.Module]
_LARGE_IMAGE = 64  # pixels a side


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
    pair_steps: int = 1  # between the states of a pair; the paper (the authors' code: n)
    skip_first: bool = True  # ours: the first eigenfunction is constant
    signs: Literal["+", "-", "both"] = "+"  # the paper
    reward_mode: Literal["telescoped", "discounted", "potential"] = (
        "potential"  # ours, the policies of the authors' telescoped one: see docs/options.md
    )


def observation_key(env: EnvBase) -> str:
    """The entry that networks read: ``pixels`` or ``observation``."""
    for key in ("pixels", "observation"):
        if key in env.observation_spec.keys():
            return key
    raise KeyError(
        f"agents read 'pixels' or 'observation'; this environment has {sorted(env.observation_spec.keys())}"
    )


def make_network_fn(env: EnvBase, kind: str) -> NetworkFn:
    """A maker of networks from their number of outputs, fit for the environment's observation."""
    shape = env.observation_spec[observation_key(env)].shape[len(env.batch_size) :]
    if kind == "auto":
        kind = "mlp" if len(shape) != 3 else "grid" if min(shape[1:]) < _LARGE_IMAGE else "nature"
    if kind == "mlp":
        size = shape.numel()
        flatten = [nn.Flatten(-len(shape))] if len(shape) > 1 else []
        return lambda out: nn.Sequential(*flatten, *mlp_net(size, out))
    nets = {"grid": grid_net, "nature": nature_net}
    if kind not in nets:
        raise ValueError(f"network must be one of 'auto', 'grid', 'nature', 'mlp', got {kind!r}")
    return lambda out: nets[kind](shape, out)


def centred(
    network: nn.Module, env: EnvBase, config: LearnerConfig, *, scale: float | None = None
) -> nn.Module:
    """The network on centred images, where observations are images and the config says so."""
    shape = env.observation_spec[observation_key(env)].shape[len(env.batch_size) :]
    return (
        Centred(network, shape, scale=scale)
        if config.centre_pixels and len(shape) == 3
        else network
    )


def make_main_learner(
    env: EnvBase, config: LearnerConfig
) -> tuple[TensorDictModuleBase, LossModule]:
    """The greedy actor and its Double DQN loss, on values or, for Rainbow, on their distributions."""
    spec = env.action_spec_unbatched
    key = observation_key(env)

    def network(size: int) -> nn.Module:
        # Not divided by its deviation: what lets a network tell neighbours apart at once keeps it from carrying a rare
        # reward over to them.
        net = make_network_fn(env, config.network)(size)
        return centred(net, env, config, scale=config.main_pixel_scale / 255)

    if config.main_learner == "rainbow":
        return make_categorical_learner(network, config, gamma=config.gamma, key=key, spec=spec)
    net = network(spec.space.n)
    actor = GreedyActor(net, in_keys=[key], spec=spec)
    loss = DoubleDQNLoss(actor, loss_function=config.loss_function)
    loss.make_value_estimator(gamma=config.gamma)
    return actor, loss


def make_options(
    env: EnvBase, learner: LearnerConfig, config: OptionConfig, num_options: int
) -> tuple[OptionQValueActor, OptionDQNLoss]:
    """The option set and its Double DQN loss, on values or, for Rainbow, on their distributions."""
    spec = env.action_spec_unbatched
    stack = StackedNet if config.independent_networks else MultiHeadNet
    key, gamma = observation_key(env), option_gamma(learner, config)

    def heads(size: int) -> nn.Module:
        networks = stack(make_network_fn(env, learner.network), num_options, size)
        return centred(networks, env, learner)

    chosen: dict[str, Any] = {
        "successor": config.option_successor,
        "options_per_update": config.options_per_update,
    }
    actor: OptionQValueActor
    loss: OptionDQNLoss
    if learner.main_learner == "rainbow":
        actor, loss = make_categorical_options(
            heads, num_options, learner, gamma=gamma, key=key, spec=spec, **chosen
        )
    else:
        net = heads(spec.space.n)
        actor = OptionQValueActor(net, num_options=num_options, in_keys=[key], spec=spec)
        loss = OptionDQNLoss(actor, loss_function=learner.loss_function, **chosen)
        loss.make_value_estimator(gamma=gamma)
    if config.average_options and learner.target_tau is not None:
        actor = averaged(actor, loss.target_option_network_params)
    return actor, loss


def option_gamma(learner: LearnerConfig, config: OptionConfig) -> float:
    """The options' own discount, or the main learner's."""
    return learner.gamma if config.option_gamma is None else config.option_gamma


def make_explorer(
    env: EnvBase, learner: LearnerConfig, config: OptionConfig, num_options: int, eps_start: int
) -> OptionExplorationModule:
    """Algorithm 1's behaviour."""
    return OptionExplorationModule(
        env.action_spec_unbatched,
        num_options=num_options,
        eps_init=learner.eps_init,
        eps_end=learner.eps_end,
        annealing_num_steps=learner.eps_frames,
        annealing_start=eps_start,
        option_prob=config.option_prob,
        option_duration=config.option_duration,
        option_eps=config.option_eps,
        across_episodes=config.options_across_episodes,
    )


def make_laplacian(
    env: EnvBase, learner: LearnerConfig, options: OptionConfig, config: LaplacianConfig
) -> tuple[TensorDictModule, LossModule]:
    """The encoder f and the loss that makes it the Laplacian's eigenfunctions."""
    dimensions = config.dimensions
    if dimensions is None:
        dimensions = options.num_options + int(config.skip_first)
    net = centred(make_network_fn(env, learner.network)(dimensions), env, learner)
    encoder = TensorDictModule(net, in_keys=[observation_key(env)], out_keys=["representation"])
    successor = "successor" if config.pair_steps == 1 else "later"
    if config.objective == "allo":
        return encoder, ALLOLoss(encoder, estimator=config.estimator, successor=successor)
    kinds = {"generalized": GeneralizedLaplacianLoss, "graph_drawing": GraphDrawingLoss}
    if config.objective not in kinds:
        raise ValueError(
            f"objective must be 'generalized', 'graph_drawing' or 'allo', got {config.objective!r}"
        )
    loss = kinds[config.objective](
        encoder,
        barrier=config.barrier,
        norm=config.norm,
        estimator=config.estimator,
        successor=successor,
    )
    return encoder, loss


def make_eigen_reward(
    encoder: TensorDictModule,
    learner: LearnerConfig,
    options: OptionConfig,
    *,
    mode: Literal["telescoped", "discounted", "potential"],
    signs: Literal["+", "-", "both"],
    skip_first: bool = True,
) -> EigenReward:
    """The rewards of options that follow an encoder's outputs, over the steps that their loss learns from."""
    if options.one_step_options and mode == "discounted":
        raise ValueError(
            "reward_mode 'discounted' differs from 'telescoped' over several steps only: set "
            "one_step_options=False with it"
        )
    return EigenReward(
        encoder,
        options.num_options,
        skip_first=skip_first,
        signs=signs,
        mode=mode,
        gamma=option_gamma(learner, options),
        successor=options.option_successor,
        reuse_representation=True,
    )


def make_targets(config: LearnerConfig, losses: Sequence[LossModule]) -> list[TargetNetUpdater]:
    """One updater for each loss with target networks."""
    if config.target_tau is not None:
        return [SoftUpdate(loss, tau=config.target_tau) for loss in losses]
    return [HardUpdate(loss, value_network_update_interval=config.target_period) for loss in losses]


def make_optimizer(
    config: LearnerConfig, modules: Mapping[str, nn.Module]
) -> torch.optim.Optimizer:
    """One fused Adam over everything that learns: faster than one for each loss, and the same arithmetic.

    The main learner has an ε of its own. Until the first reward is found its gradients are all but 0, and Adam divides
    them by their own size: full steps in random directions, thousands of them, until no unit is left that a picture
    switches on.
    """
    groups: dict[float, dict[int, nn.Parameter]] = {}
    for name, module in modules.items():
        if isinstance(module, LossModule):
            group = groups.setdefault(
                config.main_adam_eps if name == "main" else config.adam_eps, {}
            )
            group.update({id(p): p for p in module.parameters() if p.requires_grad})
    return torch.optim.Adam(
        [{"params": list(group.values()), "eps": eps} for eps, group in groups.items()],
        lr=config.lr,
        fused=True,
    )


def make_replay_settings(
    config: LearnerConfig,
    *,
    window: bool = False,
    pair_steps: int = 1,
    state_keys: Sequence[NestedKey] = (),
    step_keys: Sequence[NestedKey] = ("action",),
) -> ReplaySettings:
    """How the learner wants its transitions."""
    return ReplaySettings(
        n_steps=config.n_steps,
        gamma=config.gamma,
        batch_size=config.batch_size,
        window=window,
        pair_steps=pair_steps,
        state_keys=state_keys,
        step_keys=step_keys,
        prioritized=config.prioritized,
        alpha=config.priority_alpha,
        beta=config.priority_beta,
    )
