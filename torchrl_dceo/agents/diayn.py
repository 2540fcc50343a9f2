"""``diayn``: skills that can be told apart by the states they lead to (Eysenbach et al. 2019), as options."""

from __future__ import annotations

from dataclasses import dataclass

from tensordict.nn import TensorDictModule
from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent, Objective
from torchrl_dceo.agents.builders import (
    centred,
    make_network_fn,
    observation_key,
)
from torchrl_dceo.agents.configs import DiscoveryConfig, OptionAgentConfig
from torchrl_dceo.agents.option_agent import make_option_agent
from torchrl_dceo.modules import DIAYNReward
from torchrl_dceo.objectives import DIAYNLoss


@dataclass
class DIAYNConfig(DiscoveryConfig, OptionAgentConfig):
    """Settings of ``diayn``: skills, main learner and the pretraining of ``dceo_two_phase``, as in the paper."""


def make_diayn(env: EnvBase, config: DIAYNConfig) -> Agent:
    """Builds the agent: discriminator and skills learn without reward first, then serve the main learner, frozen."""
    net = centred(make_network_fn(env, config.network)(config.num_options), env, config)
    discriminator = TensorDictModule(net, in_keys=[observation_key(env)], out_keys=["skill_logits"])
    return make_option_agent(
        env,
        config,
        {
            "discriminator": Objective(DIAYNLoss(discriminator, successor="successor")),
            "reward": Objective(DIAYNReward(discriminator, successor=config.option_successor)),
        },
        config.num_options,
        discovery_frames=config.discovery_frames,
        step_keys=("action", "option"),
    )
