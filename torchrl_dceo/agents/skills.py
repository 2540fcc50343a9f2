"""``diayn`` and ``cic``: options that follow learned skills, in the two phases of ``dceo_two_phase``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tensordict.nn import TensorDictModule
from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent, Objective
from torchrl_dceo.agents.builders import make_option_agent
from torchrl_dceo.agents.configs import DiscoveryConfig, OptionAgentConfig
from torchrl_dceo.agents.networks import centred, make_network_fn, observation_key
from torchrl_dceo.modules import CICReward, DIAYNReward, SkillScores
from torchrl_dceo.objectives import CICLoss, DIAYNLoss
from torchrl_dceo.settings import check_at_least, check_positive


@dataclass
class DIAYNConfig(DiscoveryConfig, OptionAgentConfig):
    """Settings of ``diayn``: skills, main learner and the pretraining of ``dceo_two_phase``, as in the paper."""


def make_diayn(env: EnvBase, config: DIAYNConfig) -> Agent:
    """Builds the agent: discriminator and skills learn without reward; the main learner then uses them, frozen."""
    net = centred(make_network_fn(env, config)(config.num_options), env, config)
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


@dataclass
class CICConfig(DiscoveryConfig, OptionAgentConfig):
    """Settings of ``cic``: skills, main learner and the length of the pretraining."""

    cic_features: int = 64  # of the representation and both embeddings; Laskin et al.
    temperature: float = 0.5  # the authors' code
    negatives: Literal["skills", "batch"] = "skills"  # ours: discrete skills can be enumerated
    entropy_scale: float = 1.0  # α; ours
    skill_scale: float = 1.0  # β; ours: the authors' code has 0, for continuous skills
    num_neighbours: int = 5  # k; ours: batches are small (the authors: 16 in batches of 1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, ("temperature",))
        check_at_least(self, 1, ("cic_features", "num_neighbours"))


def make_cic(env: EnvBase, config: CICConfig) -> Agent:
    """Builds the agent: representation and skills learn without reward; the main learner then uses them, frozen."""
    net = centred(make_network_fn(env, config)(config.cic_features), env, config)
    encoder = TensorDictModule(net, in_keys=[observation_key(env)], out_keys=["cic_features"])
    scores = SkillScores(
        config.cic_features,
        config.num_options,
        embedding_features=config.cic_features,
        temperature=config.temperature,
    )
    reward = CICReward(
        encoder,
        scores,
        entropy_scale=config.entropy_scale,
        skill_scale=config.skill_scale,
        num_neighbours=config.num_neighbours,
        successor=config.option_successor,
    )
    loss = CICLoss(encoder, scores, negatives=config.negatives, successor="successor")
    return make_option_agent(
        env,
        config,
        {
            "contrastive": Objective(loss),
            "reward": Objective(reward, logged=reward.logged_keys),
        },
        config.num_options,
        discovery_frames=config.discovery_frames,
        step_keys=("action", "option"),
    )
