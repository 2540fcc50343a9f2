"""Deep covering eigenoptions: online, and in two phases."""

from __future__ import annotations

from dataclasses import dataclass

from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import EnvBase
from torchrl.objectives import LossModule

from torchrl_dceo.agents.agent import Agent, Objective
from torchrl_dceo.agents.builders import (
    centred,
    make_eigen_reward,
    make_network_fn,
    make_option_agent,
    observation_key,
)
from torchrl_dceo.agents.configs import DiscoveryConfig, LaplacianConfig, OptionAgentConfig
from torchrl_dceo.modules import RayleighRitz, RayleighRitzStep
from torchrl_dceo.objectives import ALLOLoss, GeneralizedLaplacianLoss, GraphDrawingLoss, OMMLoss
from torchrl_dceo.settings import imported


@dataclass
class DCEOConfig(LaplacianConfig, OptionAgentConfig):
    """Settings of ``dceo``: main learner, options and Laplacian."""


def make_laplacian(env: EnvBase, config: DCEOConfig) -> tuple[TensorDictModule, Objective]:
    """The encoder f and the objective that makes it the Laplacian's eigenfunctions."""
    dimensions = config.dimensions
    if dimensions is None:
        dimensions = config.num_options + int(config.skip_first)
    kind = config.network if config.encoder is None else config.encoder
    net = centred(make_network_fn(env, config, kind)(dimensions), env, config)
    encoder = TensorDictModule(net, in_keys=[observation_key(env)], out_keys=["representation"])
    successor = "successor" if config.pair_steps == 1 else "later"
    if config.objective == "allo":
        allo = ALLOLoss(
            encoder,
            barrier="auto" if config.barrier == "auto" else 2.0,
            estimator=config.estimator,
            successor=successor,
        )
        return encoder, Objective(
            allo, uniform=config.laplacian_uniform, after_update=allo.dual_step
        )
    if config.objective == "omm":
        omm = OMMLoss(encoder, successor=successor)
        return encoder, Objective(omm, uniform=config.laplacian_uniform)
    kinds = {"generalized": GeneralizedLaplacianLoss, "graph_drawing": GraphDrawingLoss}
    loss = kinds[config.objective](
        encoder,
        barrier=config.barrier,
        norm=config.norm,
        estimator=config.estimator,
        successor=successor,
    )
    if loss.automatic_barrier is not None:
        loss.automatic_barrier.least = config.least_barrier
    return encoder, Objective(loss, uniform=config.laplacian_uniform)


def with_ritz(
    encoder: TensorDictModule, laplacian: Objective, config: DCEOConfig
) -> tuple[TensorDictModule, dict[str, Objective]]:
    """The encoder that rewards follow and the objectives that make it: with ``ritz_period``, the eigenfunctions in the
    span that the loss finds."""
    if config.ritz_period is None:
        return encoder, {"laplacian": laplacian}
    linear = [module for module in encoder.modules() if isinstance(module, nn.Linear)][-1]
    ritz = RayleighRitz(linear.out_features)
    loss = laplacian.module
    assert isinstance(loss, LossModule)
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
    return rotated, {
        "laplacian": laplacian,
        "ritz": Objective(step, uniform=config.laplacian_uniform),
    }


def make_dceo(env: EnvBase, config: DCEOConfig, *, discovery_frames: int | None = None) -> Agent:
    """Builds the agent: at every update the Laplacian, the options and the main learner all learn."""
    encoder, laplacian = make_laplacian(env, config)
    encoder, representation = with_ritz(encoder, laplacian, config)
    reward: nn.Module
    if config.option_reward is None:
        reward = make_eigen_reward(
            encoder,
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
        # The Laplacian first: it leaves f(s) in the batch, which the reward takes instead of computing it again.
        {**representation, "reward": Objective(reward)},
        num_options,
        discovery_frames=discovery_frames,
        window=config.reward_mode == "discounted",
        pair_steps=config.pair_steps,
        uniform_measure=config.laplacian_measure,
    )


@dataclass
class DCEOTwoPhaseConfig(DiscoveryConfig, DCEOConfig):
    """Settings of ``dceo_two_phase``: those of ``dceo`` and of the discovery."""


def make_dceo_two_phase(env: EnvBase, config: DCEOTwoPhaseConfig) -> Agent:
    """Builds the agent: ε = 1 without reward first, then a frozen option set serves the main learner."""
    return make_dceo(env, config, discovery_frames=config.discovery_frames)
