"""Agents whose options follow eigenfunctions: ``dceo`` online and in two phases, and ``dco``.

``dco`` are deep covering options (Jinnai et al. 2020), from the first eigenfunction that is not constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.objectives import LossModule

from torchrl_dceo.agents.agent import Agent, Objective
from torchrl_dceo.agents.builders import make_option_agent
from torchrl_dceo.agents.configs import DiscoveryConfig, LaplacianConfig, OptionAgentConfig
from torchrl_dceo.agents.learners import make_eigen_reward
from torchrl_dceo.agents.networks import centred, make_network_fn, observation_key
from torchrl_dceo.modules import (
    DirectedSelection,
    EigenReward,
    RayleighRitz,
    RayleighRitzStep,
    TopTermination,
)
from torchrl_dceo.objectives import ALLOLoss, GeneralizedLaplacianLoss, GraphDrawingLoss, OMMLoss
from torchrl_dceo.settings import by_environment, check_at_least, check_positive, imported


@dataclass
class DCEOConfig(LaplacianConfig, OptionAgentConfig):
    """Settings of ``dceo``: main learner, options and Laplacian."""


def make_laplacian(env: EnvBase, config: DCEOConfig) -> tuple[TensorDictModule, Objective]:
    """The encoder f and the objective that trains it to the Laplacian's eigenfunctions."""
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


def make_selection(reward: EigenReward, config: DCEOConfig) -> DirectedSelection | None:
    """The selection of options; ``None``: uniform, or the config's ``selection``."""
    measure = config.laplacian_measure or config.replay_measure
    if config.direction == 0 or config.selection is not None or measure == "visits":
        return None
    return DirectedSelection(reward, strength=config.direction)


def make_termination(reward: EigenReward, config: OptionAgentConfig) -> TopTermination | None:
    """The termination of the setting ``"top"``; ``None``: that of another setting."""
    if config.termination != "top":
        return None
    return TopTermination(reward, duration=config.option_duration)


def make_dceo(env: EnvBase, config: DCEOConfig, *, discovery_frames: int | None = None) -> Agent:
    """Builds the agent: every update trains the representation, the options and the main learner."""
    encoder, laplacian = make_laplacian(env, config)
    encoder, representation = with_ritz(encoder, laplacian, config)
    reward: nn.Module
    selection = termination = None
    if config.option_reward is None:
        reward = make_eigen_reward(
            encoder,
            config,
            mode=config.reward_mode,
            signs=config.signs,
            skip_first=config.skip_first,
        )
        num_options = reward.num_rewards
        selection = make_selection(reward, config)
        termination = make_termination(reward, config)
    else:
        if config.termination == "top":
            config = replace(config, termination=None)
        num_options = config.num_options
        make_reward = imported(config.option_reward)
        reward = make_reward(encoder, num_options, successor=config.option_successor)
    return make_option_agent(
        env,
        config,
        # The Laplacian first: it writes f(s) into the batch, so that the reward does not compute it again.
        {**representation, "reward": Objective(reward)},
        num_options,
        discovery_frames=discovery_frames,
        window=config.reward_mode == "discounted",
        pair_steps=config.pair_steps,
        uniform_measure=config.laplacian_measure,
        selection=selection,
        termination=termination,
    )


@dataclass
class DCEOTwoPhaseConfig(DiscoveryConfig, DCEOConfig):
    """Settings of ``dceo_two_phase``: those of ``dceo`` and of the discovery phase."""


def make_dceo_two_phase(env: EnvBase, config: DCEOTwoPhaseConfig) -> Agent:
    """Builds the agent: discovery with ε = 1 without reward, then training of the main learner with frozen options."""
    return make_dceo(env, config, discovery_frames=config.discovery_frames)


@dataclass
class DCOConfig(OptionAgentConfig):
    """Settings of ``dco``: one eigenfunction, its options and the main learner."""

    num_options: int = 1  # the number of eigenfunctions; the method uses one
    signs: Literal["+", "-", "both"] = "both"  # ours: an option to each end of the eigenfunction
    # As in dceo.
    termination: str | Callable | None = by_environment(LaplacianConfig.termination)
    norm: Literal["squared", "log1p"] = "squared"  # Jinnai et al.
    # As in dceo: with 1 two of three seeds never learned Nine Rooms (results/tuning).
    barrier: float | Literal["auto"] = LaplacianConfig.barrier
    estimator: Literal["pairs", "split"] = LaplacianConfig.estimator  # as in dceo
    # As in dceo.
    reward_mode: Literal["telescoped", "discounted", "potential"] = LaplacianConfig.reward_mode
    discovery_frames: int | None = None  # None: online, as Jinnai et al.; else as dceo_two_phase

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.barrier != "auto":
            check_positive(self, ("barrier",))
        check_at_least(self, 1, ("discovery_frames",))
        if self.num_options != 1:
            raise ValueError(
                f"dco follows one eigenfunction, so num_options must be 1, got {self.num_options}: "
                "use dceo for more, or signs='both' for an option to each of its ends"
            )


class WithConstant(nn.Module):
    """Prepends a 1 to a network's output: the constant eigenfunction is known.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.agents.dceo import WithConstant
        >>> WithConstant(torch.nn.Linear(3, 1))(torch.zeros(5, 3))[:, 0].tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, observation: Tensor) -> Tensor:
        """Maps observations to ``[*, 1 + out]``."""
        f = self.net(observation)
        return torch.cat([torch.ones_like(f[..., :1]), f], -1)


def make_dco(env: EnvBase, config: DCOConfig) -> Agent:
    """Builds the agent: like ``dceo``, but f is only the first non-constant eigenfunction.

    The objective of Jinnai et al. is graph drawing in two dimensions, of which the first is fixed at 1:
    ½ E[(f(s) - f(s'))²] + β E[(f(u)² - 1)(f(v)² - 1) + 2 f(u) f(v)].
    """
    encoder = TensorDictModule(
        WithConstant(centred(make_network_fn(env, config)(1), env, config)),
        in_keys=[observation_key(env)],
        out_keys=["representation"],
    )
    loss = GraphDrawingLoss(
        encoder,
        barrier=config.barrier,
        norm=config.norm,
        estimator=config.estimator,
        successor="successor",
    )
    reward = make_eigen_reward(encoder, config, mode=config.reward_mode, signs=config.signs)
    return make_option_agent(
        env,
        config,
        {"laplacian": Objective(loss, uniform=True), "reward": Objective(reward)},
        reward.num_rewards,
        discovery_frames=config.discovery_frames,
        window=config.reward_mode == "discounted",
        termination=make_termination(reward, config),
    )
