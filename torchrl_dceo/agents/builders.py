"""Builds agents from their parts: policy, objectives, optimizer, target networks and replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torchrl.envs import EnvBase, Transform

from torchrl_dceo._fast.actors import PolicySequence
from torchrl_dceo.agents.agent import Agent, Explorer, Objective, Phase, ReplaySettings
from torchrl_dceo.agents.configs import LearnerConfig, OptionAgentConfig
from torchrl_dceo.agents.learners import (
    make_categorical_learner,
    make_categorical_options,
    make_explorer,
    make_main_learner,
    make_options,
)
from torchrl_dceo.agents.networks import observation_key
from torchrl_dceo.agents.optimizer import make_optimizer, make_targets
from torchrl_dceo.agents.tabular_learner import TabularQLoss
from torchrl_dceo.modules import Centred, CentringFit, DirectedSelection, TopTermination

__all__ = [
    "assemble",
    "make_categorical_learner",
    "make_categorical_options",
    "make_option_agent",
]

CENTRING = "centring"


def assemble(
    env: EnvBase,
    config: LearnerConfig,
    policy: TensorDictModuleBase,
    objectives: Mapping[str, Objective],
    *,
    explorer: Explorer,
    phases: Sequence[Phase] = (Phase("online"),),
    transforms: Sequence[Transform] = (),
    window: bool = False,
    pair_steps: int = 1,
    uniform_measure: Literal["visits", "distinct"] | None = None,
    state_keys: Sequence[NestedKey] = (),
    step_keys: Sequence[NestedKey] = ("action",),
    observers: Sequence[Callable[[TensorDictBase], None]] = (),
) -> Agent:
    """Builds the agent from its policy and objectives, with optimizer, target networks and replay from the config.

    Args:
        env (EnvBase): the environment it is for.
        config (LearnerConfig): settings of the main learner.
        policy (TensorDictModuleBase): see :class:`~torchrl_dceo.agents.agent.Agent`.
        objectives (mapping of str to Objective): see there. For networks on centred images, a
            :class:`~torchrl_dceo.modules.CentringFit` is put first.

    Keyword Args:
        explorer, phases, transforms, observers: see there.
        window, pair_steps, uniform_measure, state_keys, step_keys: the parts of a batch that the objectives need, see
            :class:`~torchrl_dceo.agents.agent.ReplaySettings`.
    """
    modules = {name: objective.module for name, objective in objectives.items()}
    targeted = [modules[name] for name in ("option", "main") if name in modules]
    if config.weighted_mean:
        # A table has its own step per transition, without weights.
        weighted = [loss for loss in targeted if not isinstance(loss, TabularQLoss)]
        objectives = {
            name: dataclasses.replace(objective, weighted_mean=objective.module in weighted)
            for name, objective in objectives.items()
        }
    keys = (*state_keys, "state_id") if config.main_learner == "table" else state_keys
    parts = (policy, *modules.values())
    if any(isinstance(module, Centred) for part in parts for module in part.modules()):
        fit = CentringFit(parts, in_key=observation_key(env))
        objectives = {CENTRING: Objective(fit), **objectives}
        phases = [
            phase
            if phase.objectives is None
            else dataclasses.replace(phase, objectives=(CENTRING, *phase.objectives))
            for phase in phases
        ]
    return Agent(
        policy,
        objectives,
        explorer=explorer,
        optimizer=make_optimizer(config, modules),
        targets=make_targets(config, targeted),
        replay=ReplaySettings(
            n_steps=config.n_steps,
            gamma=config.gamma,
            batch_size=config.batch_size,
            window=window,
            pair_steps=pair_steps,
            measure=config.replay_measure,
            observation_hash=config.observation_hash,
            newest=config.replay_newest,
            by_action=config.replay_by_action,
            uniform_measure=uniform_measure or config.replay_measure,
            state_keys=tuple(dict.fromkeys(keys)),
            step_keys=step_keys,
            prioritized=config.prioritized,
            alpha=config.priority_alpha,
            beta=config.priority_beta,
        ),
        phases=phases,
        transforms=transforms,
        max_grad_norm=config.max_grad_norm,
        observers=observers,
    )


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
    selection: DirectedSelection | None = None,
    termination: TopTermination | None = None,
) -> Agent:
    """Builds an agent whose options follow an ``option_reward``.

    Args:
        env (EnvBase): the environment it is for.
        config (OptionAgentConfig): settings of the main learner, of the options and of the behaviour.
        discovery (mapping of str to Objective): the objectives that write ``option_reward`` into the batch, in order.
        num_options (int): the number of rewards.

    Keyword Args:
        discovery_frames (int, optional): frames of option discovery without reward; then the options are frozen and
            the main learner is trained; ``None``: everything is trained all the time.
        window (bool): whether the rewards need the intermediate states.
        pair_steps (int): steps between the states of the Laplacian's pairs.
        uniform_measure (str, optional): measure of the batches of objectives that average over states;
            ``None``: that of all batches.
        step_keys (sequence of str): further entries stored with each step.
        selection (DirectedSelection, optional): the selection of options; ``None``: that of the config.
        termination (TopTermination, optional): of options, for the setting ``"top"``.
    """
    main, main_loss = make_main_learner(env, config)
    actor, option_loss = make_options(env, config, num_options)
    phases: tuple[Phase, ...] = (Phase("online"),)
    if discovery_frames is not None:
        phases = (
            Phase("discovery", discovery_frames, (*discovery, "option"), reward_free=True),
            Phase("learning", None, ("main",)),
        )
    # ε keeps its initial value during discovery.
    eps_start = (discovery_frames or 0) + config.eps_start
    explorer = make_explorer(env, config, num_options, eps_start, termination)
    observers: list[Callable[[TensorDictBase], None]] = []
    if selection is not None:
        explorer.selection = selection
        observers.append(selection.observe)
    if explorer.measures_duration:
        observers.append(explorer.observe)
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
        observers=observers,
    )
