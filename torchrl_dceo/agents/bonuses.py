"""``counts`` and ``rnd``: ddqn with an exploration bonus."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchrl.envs import EnvBase
from torchrl.objectives import RNDLoss

from torchrl_dceo.agents.agent import Agent, Objective
from torchrl_dceo.agents.ddqn import DDQNConfig, make_greedy_agent
from torchrl_dceo.agents.learners import make_main_learner
from torchrl_dceo.agents.networks import make_network_fn, observation_key
from torchrl_dceo.envs import StateCounts, find_transform
from torchrl_dceo.modules import CountBonus, RNDBonus, RunningNormalizer
from torchrl_dceo.settings import check_at_least, check_positive


@dataclass
class CountsConfig(DDQNConfig):
    """Settings of ``counts``: those of ``ddqn`` and the weight of the bonus."""

    bonus_scale: float = 0.1  # β; ours, tuned within the paper's search (1e-4, 1e-3, 1e-2, 0.1, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, ("bonus_scale",))


def make_counts(env: EnvBase, config: CountsConfig) -> Agent:
    """Builds the agent: ddqn on rewards to which β/√n(s') was added, with the counts of the environment."""
    counts = find_transform(env, StateCounts)
    if counts is None:
        raise ValueError(
            "counts needs an environment that counts its states: build it with "
            "make_env(…, visits='counts') or append a StateCounts transform"
        )
    bonus = CountBonus(counts.bonus, scale=config.bonus_scale, state_key=("next", counts.state_key))
    return make_greedy_agent(
        env,
        config,
        make_main_learner(env, config),
        {"bonus": Objective(bonus, logged=bonus.logged_keys)},
        state_keys=(counts.state_key,),
    )


@dataclass
class RNDConfig(DDQNConfig):
    """Settings of ``rnd``: those of ``ddqn`` and of the bonus."""

    bonus_scale: float = 0.5  # β; within the paper's search in 0.25, 0.5, 0.75, 1
    rnd_features: int = 128  # ours: outputs of predictor and random network (Burda et al.: 512)
    observation_clip: float = 5.0  # Burda et al.: normalised observations lie within ±5
    predictor_fraction: float = 1.0  # ours: batches are small (Burda et al.: 0.25 of large ones)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, ("bonus_scale",))
        check_at_least(self, 1, ("rnd_features",))
        check_positive(self, ("observation_clip", "predictor_fraction"))


def make_rnd(env: EnvBase, config: RNDConfig) -> Agent:
    """Builds the agent: ddqn on rewards to which β times the normalised prediction error at s' was added."""
    main = make_main_learner(env, config)
    key = observation_key(env)
    shape = env.observation_spec[key].shape[len(env.batch_size) :]
    make_network = make_network_fn(env, config)
    normalizer = RunningNormalizer(shape, clip=config.observation_clip)
    predictor = nn.Sequential(normalizer, make_network(config.rnd_features))
    target = nn.Sequential(normalizer, make_network(config.rnd_features))
    loss = RNDLoss(predictor, target, update_fraction=config.predictor_fraction)
    loss.set_keys(observation=("next", key))
    bonus = RNDBonus(
        predictor,
        target,
        scale=config.bonus_scale,
        normalizer=normalizer,
        observation_key=("next", key),
    )
    # The bonus first: it updates the statistics that the predictor's loss uses too.
    before = {
        "bonus": Objective(bonus, logged=bonus.logged_keys),
        "predictor": Objective(loss),
    }
    return make_greedy_agent(env, config, main, before)
