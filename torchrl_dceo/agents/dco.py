"""``dco``: deep covering options (Jinnai et al. 2020), from the first eigenfunction that is not constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent, Objective
from torchrl_dceo.agents.builders import (
    centred,
    make_eigen_reward,
    make_network_fn,
    make_option_agent,
    observation_key,
)
from torchrl_dceo.agents.configs import LaplacianConfig, OptionAgentConfig
from torchrl_dceo.objectives import GraphDrawingLoss
from torchrl_dceo.settings import check_at_least, check_positive


@dataclass
class DCOConfig(OptionAgentConfig):
    """Settings of ``dco``: one eigenfunction, its options and the main learner."""

    num_options: int = 1  # eigenfunctions followed: one is what the method is
    signs: Literal["+", "-", "both"] = "both"  # ours: an option to each end of the eigenfunction
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
    """A network's output with a 1 put before it: the constant eigenfunction needs no learning.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.agents.dco import WithConstant
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
    """Builds the agent: as ``dceo``, but f is the first non-constant eigenfunction alone.

    Graph drawing in two dimensions, the first of which is fixed at 1, is the objective of Jinnai et al.:
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
    )
