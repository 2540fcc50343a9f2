"""``ddqn``: n-step Double DQN with ε-greedy exploration, the learner that every other agent adds to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torchrl.envs import EnvBase
from torchrl.modules import EGreedyModule
from torchrl.objectives import LossModule

from torchrl_dceo._fast.actors import PolicySequence
from torchrl_dceo.agents.agent import Agent, Objective
from torchrl_dceo.agents.builders import assemble, make_main_learner
from torchrl_dceo.agents.configs import LearnerConfig


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
        env (EnvBase): the environment it is for.
        config (LearnerConfig): settings of the main learner.
        main (tuple): the greedy actor and its loss.
        before (mapping of str to Objective, optional): what a batch passes through before that loss, such as a bonus.

    Keyword Args:
        state_keys (sequence of NestedKey): what they read of each state besides the observation.
    """
    actor, loss = main
    explorer = EGreedyModule(
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
