"""``ddqn`` and ``ez_greedy``: n-step Double DQN that explores with single or repeated random actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torchrl.envs import EnvBase
from torchrl.objectives import LossModule

from torchrl_dceo._fast.actors import DirectEGreedy, PolicySequence
from torchrl_dceo.agents.agent import Agent, Objective
from torchrl_dceo.agents.builders import assemble
from torchrl_dceo.agents.configs import LearnerConfig, OptionConfig, reward_patience
from torchrl_dceo.agents.learners import make_main_learner
from torchrl_dceo.modules import EZGreedyModule
from torchrl_dceo.settings import by_environment, check_at_least, check_between, check_positive


@dataclass
class DDQNConfig(LearnerConfig):
    """Settings of ``ddqn``: those of the main learner."""


def make_ddqn(env: EnvBase, config: LearnerConfig) -> Agent:
    """Builds the agent for an environment."""
    return make_greedy_agent(env, config, make_main_learner(env, config))


def make_greedy_agent(
    env: EnvBase,
    config: LearnerConfig,
    main: tuple[TensorDictModuleBase, LossModule],
    before: Mapping[str, Objective] | None = None,
    *,
    state_keys: Sequence[NestedKey] = (),
) -> Agent:
    """Builds an ε-greedy agent.

    Args:
        env (EnvBase): the environment.
        config (LearnerConfig): settings of the main learner.
        main (tuple): the greedy actor and its loss.
        before (mapping of str to Objective, optional): objectives before that loss, such as a bonus.

    Keyword Args:
        state_keys (sequence of NestedKey): entries of each state that they read besides the observation.
    """
    actor, loss = main
    explorer = DirectEGreedy(
        env.action_spec_unbatched,
        eps_init=config.eps_init,
        eps_end=config.eps_end,
        annealing_num_steps=config.eps_frames,
    )
    return assemble(
        env,
        config,
        PolicySequence(actor, explorer),
        {**(before or {}), "main": Objective(loss)},
        explorer=explorer,
        state_keys=state_keys,
    )


@dataclass
class EZGreedyConfig(LearnerConfig):
    """Settings of ``ez_greedy``: those of the main learner and of the repetitions."""

    # μ, as for options: the paper (1 is the published method).
    option_prob: float = by_environment(OptionConfig.option_prob)
    zeta_exponent: float = 2.0  # k; the paper, after Dabney et al.
    max_duration: int = 10_000  # ours: the zeta distribution is cut here
    eps_per: Literal["decision", "step"] | None = OptionConfig.eps_per  # as for options
    eps_after_reward: bool = OptionConfig.eps_after_reward  # as for options
    eps_patience: float | None = OptionConfig.eps_patience  # as for options

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between(self, ("option_prob",))
        check_at_least(self, 1, ("max_duration",))
        check_positive(self, ("eps_patience",))
        if not self.zeta_exponent > 1:
            raise ValueError(f"zeta_exponent must be above 1, got {self.zeta_exponent}")


def make_ez_greedy(env: EnvBase, config: EZGreedyConfig) -> Agent:
    """Builds the agent: only the explorer differs from ddqn."""
    main, main_loss = make_main_learner(env, config)
    explorer = EZGreedyModule(
        env.action_spec_unbatched,
        eps_init=config.eps_init,
        eps_end=config.eps_end,
        annealing_num_steps=config.eps_frames,
        option_prob=config.option_prob,
        zeta_exponent=config.zeta_exponent,
        max_duration=config.max_duration,
        eps_per=config.eps_per or "step",
        wait_for_reward=config.eps_after_reward,
        reward_patience=reward_patience(
            config.eps_patience, config.eps_frames, config.eps_after_reward
        ),
    )
    return assemble(
        env,
        config,
        PolicySequence(main, explorer),
        {"main": Objective(main_loss)},
        explorer=explorer,
        transforms=[explorer.make_tensordict_primer()],
    )
