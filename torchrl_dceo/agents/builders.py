"""Builders of an agent's pieces, each from an environment's specs and its config."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import nn
from torchrl.data import TensorSpec
from torchrl.envs import EnvBase
from torchrl.objectives import HardUpdate, LossModule, SoftUpdate
from torchrl.objectives.utils import TargetNetUpdater

from torchrl_dceo.agents.agent import Agent, ReplaySettings
from torchrl_dceo.agents.configs import LaplacianConfig, LearnerConfig, OptionConfig
from torchrl_dceo.modules import (
    Centred,
    CentringFit,
    DistributionalGreedyActor,
    DuelingDistribution,
    EigenReward,
    GreedyActor,
    OptionDistributionalQValueActor,
    OptionExplorationModule,
    OptionQValueActor,
    RayleighRitz,
    RayleighRitzStep,
    averaged,
)
from torchrl_dceo.modules.distributional import make_support
from torchrl_dceo.modules.networks import MultiHeadNet, StackedNet, grid_net, mlp_net, nature_net
from torchrl_dceo.objectives import (
    ALLOLoss,
    CategoricalDQNLoss,
    DoubleDQNLoss,
    GeneralizedLaplacianLoss,
    GraphDrawingLoss,
    OptionDistributionalDQNLoss,
    OptionDQNLoss,
)

__all__ = [
    "make_categorical_learner",
    "make_categorical_options",
]


class _Atoms(Protocol):
    num_atoms: int
    v_max: float


def make_categorical_learner(
    make_network: Callable[[int], nn.Module],
    config: _Atoms,
    *,
    gamma: float,
    key: str,
    spec: TensorSpec,
) -> tuple[DistributionalGreedyActor, CategoricalDQNLoss]:
    """The greedy actor and its double C51 loss.

    Args:
        make_network (callable): a network from its number of outputs.
        config: has ``num_atoms`` and ``v_max``.

    Keyword Args:
        gamma (float): the discount.
        key (str): what the network reads.
        spec (TensorSpec): the action spec.
    """
    dueling = DuelingDistribution(config.num_atoms, spec.space.n)
    actor = DistributionalGreedyActor(
        nn.Sequential(make_network(dueling.num_inputs), dueling),
        support=make_support(config.num_atoms, config.v_max),
        in_keys=[key],
        spec=spec,
    )
    return actor, CategoricalDQNLoss(actor, gamma=gamma)


def make_categorical_options(
    make_heads: Callable[[int], nn.Module],
    num_options: int,
    config: _Atoms,
    *,
    gamma: float,
    key: str,
    spec: TensorSpec,
    **loss_settings: Any,
) -> tuple[OptionDistributionalQValueActor, OptionDistributionalDQNLoss]:
    """The option set and its double C51 loss.

    Args:
        make_heads (callable): networks of all options from the number of outputs of each.
        num_options (int): N.
        config: has ``num_atoms`` and ``v_max``.

    Keyword Args:
        gamma (float): the options' discount.
        key (str): what the networks read.
        spec (TensorSpec): the action spec.
        loss_settings: those of :class:`~torchrl_dceo.objectives.OptionDistributionalDQNLoss`.
    """
    dueling = DuelingDistribution(config.num_atoms, spec.space.n)
    actor = OptionDistributionalQValueActor(
        nn.Sequential(make_heads(dueling.num_inputs), dueling),
        num_options=num_options,
        support=make_support(config.num_atoms, config.v_max),
        in_keys=[key],
        spec=spec,
    )
    loss = OptionDistributionalDQNLoss(actor, **loss_settings)
    loss.make_value_estimator(gamma=gamma)
    return actor, loss


NetworkFn = Callable[[int], nn.Module]


_LARGE_IMAGE = 64  # pixels a side


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
        return encoder, ALLOLoss(
            encoder, barrier=2.0, estimator=config.estimator, successor=successor
        )
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


def with_ritz(
    encoder: TensorDictModule, loss: LossModule, config: LaplacianConfig
) -> tuple[TensorDictModule, dict[str, nn.Module]]:
    """The encoder that rewards follow and the objectives that make it: with ``ritz_period``, the eigenfunctions in the
    span that the loss finds."""
    if config.ritz_period is None:
        return encoder, {"laplacian": loss}
    linear = [module for module in encoder.modules() if isinstance(module, nn.Linear)][-1]
    ritz = RayleighRitz(linear.out_features)
    loss.set_keys(representation="span")
    step = RayleighRitzStep(
        ritz,
        period=config.ritz_period,
        successor="successor" if config.pair_steps == 1 else "later",
    )
    rotated = TensorDictModule(
        nn.Sequential(encoder.module, ritz),
        in_keys=list(encoder.in_keys),
        out_keys=list(encoder.out_keys),
    )
    return rotated, {"laplacian": loss, "ritz": step}


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
    measure: Literal["visits", "distinct"] = "visits",
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
        measure=measure,
        state_keys=state_keys,
        step_keys=step_keys,
        prioritized=config.prioritized,
        alpha=config.priority_alpha,
        beta=config.priority_beta,
    )


CENTRING = "centring"


def with_centring(agent: Agent, env: EnvBase) -> Agent:
    """The agent itself, with a :class:`~torchrl_dceo.modules.CentringFit` before its objectives if it needs one."""
    parts = (agent.policy, *agent.objectives.values())
    if not any(isinstance(module, Centred) for part in parts for module in part.modules()):
        return agent
    fit = CentringFit(parts, in_key=observation_key(env))
    agent.objectives = nn.ModuleDict({CENTRING: fit, **agent.objectives})
    agent.phases = tuple(
        phase
        if phase.objectives is None
        else dataclasses.replace(phase, objectives=(CENTRING, *phase.objectives))
        for phase in agent.phases
    )
    return agent
