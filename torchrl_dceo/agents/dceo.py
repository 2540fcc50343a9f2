"""``dceo``: fully online Deep Covering Eigenoptions, the paper's Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from tensordict.nn import TensorDictSequential
from torchrl.envs import EnvBase

from torchrl_dceo.agents.parts import (
    LaplacianConfig,
    LearnerConfig,
    OptionConfig,
    make_explorer,
    make_laplacian,
    make_main_learner,
    make_optimizer,
    make_options,
    make_replay_settings,
    make_targets,
    option_gamma,
)
from torchrl_dceo.modules import EigenReward
from torchrl_dceo.training.agent import Agent


@dataclass
class DCEOConfig(LaplacianConfig, OptionConfig, LearnerConfig):
    """Settings of ``dceo``: main learner, options and Laplacian."""


def make_dceo(
    env: EnvBase, config: DCEOConfig, *, eps_start: int | None = None, phases: tuple = ()
) -> Agent:
    """Builds the agent: at every update the Laplacian, the options and the main learner all learn."""
    main, main_loss = make_main_learner(env, config)
    encoder, laplacian_loss = make_laplacian(env, config, config)
    reward = EigenReward(
        encoder,
        config.num_options,
        skip_first=config.skip_first,
        signs=config.signs,
        mode=config.reward_mode,
        gamma=option_gamma(config, config) if config.reward_mode == "discounted" else None,
        reuse_representation=True,
    )
    options, option_loss = make_options(env, config, config, reward.num_rewards)
    start = config.eps_start if eps_start is None else eps_start
    explorer = make_explorer(env, config, config, reward.num_rewards, start)
    # The Laplacian first: it leaves f(s) in the batch, which the reward takes instead of computing it again.
    objectives = {
        "laplacian": laplacian_loss,
        "reward": reward,
        "option": option_loss,
        "main": main_loss,
    }
    return Agent(
        TensorDictSequential(main, options, explorer),
        objectives,
        explorer=explorer,
        optimizer=make_optimizer(config, objectives),
        targets=make_targets(config, [option_loss, main_loss]),
        replay=make_replay_settings(config, window=config.reward_mode == "discounted"),
        transforms=[explorer.make_tensordict_primer()],
        max_grad_norm=config.max_grad_norm,
        **({"phases": phases} if phases else {}),
    )
