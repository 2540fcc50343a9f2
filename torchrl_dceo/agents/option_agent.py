"""What agents with options have in common: a way to discover them, the options, and the main learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torchrl.envs import EnvBase

from torchrl_dceo._fast.actors import PolicySequence
from torchrl_dceo.agents.agent import Agent, Objective, Phase
from torchrl_dceo.agents.builders import assemble, make_explorer, make_main_learner, make_options
from torchrl_dceo.agents.configs import OptionAgentConfig


def make_option_agent(
    env: EnvBase,
    config: OptionAgentConfig,
    discovery: Mapping[str, Objective],
    num_options: int,
    *,
    discovery_frames: int | None,
    window: bool = False,
    pair_steps: int = 1,
    uniform_measure: Literal["visits", "distinct"] | None = None,
    step_keys: Sequence[str] = ("action",),
) -> Agent:
    """Builds an agent whose options follow an ``option_reward``.

    Args:
        env (EnvBase): the environment it is for.
        config (OptionAgentConfig): settings of the main learner, of the options and of the behaviour.
        discovery (mapping of str to Objective): what ends in an ``option_reward`` in the batch, in order.
        num_options (int): how many rewards that has.

    Keyword Args:
        discovery_frames (int, optional): how long options are discovered without reward before they are frozen and the
            main learner learns; ``None``: everything learns all the time.
        window (bool): whether the rewards read the states between.
        pair_steps (int): how far apart the states of the Laplacian's pairs are.
        uniform_measure (str, optional): over what the batches of objectives that average over states are uniform;
            ``None``: over what all batches are.
        step_keys (sequence of str): what is stored with each step.
    """
    main, main_loss = make_main_learner(env, config)
    actor, option_loss = make_options(env, config, num_options)
    phases: tuple[Phase, ...] = (Phase("online"),)
    if discovery_frames is not None:
        phases = (
            Phase("discovery", discovery_frames, (*discovery, "option"), reward_free=True),
            Phase("learning", None, ("main",)),
        )
    # ε stays at its first value while options are discovered.
    explorer = make_explorer(env, config, num_options, (discovery_frames or 0) + config.eps_start)
    return assemble(
        env,
        config,
        PolicySequence(main, actor, explorer),
        {**discovery, "option": Objective(option_loss), "main": Objective(main_loss)},
        explorer=explorer,
        phases=phases,
        transforms=[explorer.make_tensordict_primer()],
        window=window,
        pair_steps=pair_steps,
        uniform_measure=uniform_measure,
        step_keys=step_keys,
    )
