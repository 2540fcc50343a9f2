"""``counts``: ddqn with a bonus for rarely visited states, from perfect counts."""

from __future__ import annotations

from dataclasses import dataclass

from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent, Objective
from torchrl_dceo.agents.builders import make_main_learner
from torchrl_dceo.agents.ddqn import DDQNConfig, make_greedy_agent
from torchrl_dceo.envs import StateCounts, find_transform
from torchrl_dceo.modules import CountBonus
from torchrl_dceo.settings import check_at_least


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
