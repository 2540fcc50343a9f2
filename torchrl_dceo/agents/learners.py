"""The learning parts of agents: actors with their losses, the explorer with options, and the options' rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import nn
from torchrl.data import TensorSpec
from torchrl.envs import EnvBase
from torchrl.objectives import LossModule

from torchrl_dceo._fast.actors import DistributionalGreedyActor, GreedyActor
from torchrl_dceo._fast.losses import CategoricalDQNLoss, DoubleDQNLoss
from torchrl_dceo.agents.configs import LearnerConfig, OptionAgentConfig, reward_patience
from torchrl_dceo.agents.networks import brightest, centred, make_network_fn, observation_key
from torchrl_dceo.agents.tabular_learner import make_table_learner
from torchrl_dceo.modules import (
    DuelingDistribution,
    EigenReward,
    OptionDistributionalQValueActor,
    OptionExplorationModule,
    OptionQValueActor,
    TopTermination,
    averaged,
)
from torchrl_dceo.modules.distributional import make_support
from torchrl_dceo.modules.networks import MultiHeadNet, StackedNet
from torchrl_dceo.objectives import OptionDistributionalDQNLoss, OptionDQNLoss
from torchrl_dceo.settings import imported

__all__ = [
    "make_categorical_learner",
    "make_categorical_options",
    "make_eigen_reward",
    "make_explorer",
    "make_main_learner",
    "make_options",
    "option_gamma",
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
        key (str): the input entry of the network.
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
        key (str): the input entry of the networks.
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


def make_main_learner(
    env: EnvBase, config: LearnerConfig
) -> tuple[TensorDictModuleBase, LossModule]:
    """The greedy actor and its loss: Double DQN on values or, for Rainbow, on their distributions, or a table."""
    if config.main_learner == "table":
        return make_table_learner(env, config)
    spec = env.action_spec_unbatched
    key = observation_key(env)

    def network(size: int) -> nn.Module:
        # Not divided by its deviation: what lets a network tell neighbours apart at once keeps it from carrying a rare
        # reward over to them.
        net = make_network_fn(env, config)(size)
        return centred(net, env, config, scale=config.main_pixel_scale / brightest(env))

    if config.main_learner == "rainbow":
        return make_categorical_learner(network, config, gamma=config.gamma, key=key, spec=spec)
    net = network(spec.space.n)
    actor = GreedyActor(net, in_keys=[key], spec=spec)
    loss = DoubleDQNLoss(actor, loss_function=config.loss_function)
    loss.make_value_estimator(gamma=config.gamma)
    return actor, loss


def make_options(
    env: EnvBase, config: OptionAgentConfig, num_options: int
) -> tuple[OptionQValueActor, OptionDQNLoss]:
    """The option set and its Double DQN loss, on values or, for Rainbow, on their distributions."""
    spec = env.action_spec_unbatched
    stack = StackedNet if config.independent_networks else MultiHeadNet
    key, gamma = observation_key(env), option_gamma(config)

    def heads(size: int) -> nn.Module:
        networks = stack(make_network_fn(env, config), num_options, size)
        return centred(networks, env, config)

    chosen: dict[str, Any] = {
        "single_step": config.one_step_options,
        "successor": config.option_successor,
        "options_per_update": config.options_per_update,
    }
    actor: OptionQValueActor
    loss: OptionDQNLoss
    if config.main_learner == "rainbow":
        actor, loss = make_categorical_options(
            heads, num_options, config, gamma=gamma, key=key, spec=spec, **chosen
        )
    else:
        net = heads(spec.space.n)
        actor = OptionQValueActor(net, num_options=num_options, in_keys=[key], spec=spec)
        loss = OptionDQNLoss(actor, loss_function=config.loss_function, **chosen)
        loss.make_value_estimator(gamma=gamma)
    if config.average_options and config.target_tau is not None:
        actor = averaged(actor, loss.target_option_network_params)
    return actor, loss


def option_gamma(config: OptionAgentConfig) -> float:
    """The options' own discount, or the main learner's."""
    return config.gamma if config.option_gamma is None else config.option_gamma


def make_explorer(
    env: EnvBase,
    config: OptionAgentConfig,
    num_options: int,
    eps_start: int,
    top: TopTermination | None = None,
) -> OptionExplorationModule:
    """The exploration module of Algorithm 1; ``top`` is the termination of the setting ``"top"``."""
    if config.termination == "top" and top is None:
        raise ValueError(
            "termination 'top' is for options that follow eigenfunctions, which have a top: set it to None (null) for "
            "the length 1/D, or to a function of your own"
        )
    own = config.termination not in (None, "top")
    return OptionExplorationModule(
        env.action_spec_unbatched,
        num_options=num_options,
        eps_init=config.eps_init,
        eps_end=config.eps_end,
        annealing_num_steps=config.eps_frames,
        annealing_start=eps_start,
        option_prob=config.option_prob,
        option_duration=config.option_duration,
        option_eps=config.option_eps,
        option_eps_init=config.option_eps_init,
        eps_per=config.eps_per or ("decision" if own else "step"),
        wait_for_reward=config.eps_after_reward,
        reward_patience=reward_patience(
            config.eps_patience, config.eps_frames, config.eps_after_reward
        ),
        across_episodes=config.options_across_episodes,
        selection=imported(config.selection),
        termination=imported(config.termination) if own else top,
    )


def make_eigen_reward(
    encoder: TensorDictModule,
    config: OptionAgentConfig,
    *,
    mode: Literal["telescoped", "discounted", "potential"],
    signs: Literal["+", "-", "both"],
    skip_first: bool = True,
) -> EigenReward:
    """The rewards of options that follow an encoder's outputs, over the same steps as their loss."""
    if config.one_step_options and mode == "discounted":
        raise ValueError(
            "reward_mode 'discounted' differs from 'telescoped' over several steps only: set "
            "one_step_options=False with it"
        )
    return EigenReward(
        encoder,
        config.num_options,
        skip_first=skip_first,
        signs=signs,
        mode=mode,
        gamma=option_gamma(config),
        single_step=config.one_step_options,
        successor=config.option_successor,
        reuse_representation=True,
    )
