"""Networks of an agent on centred images, and the objective that takes the mean image at the first update."""

from __future__ import annotations

import dataclasses

from torch import nn
from torchrl.envs import EnvBase

from torchrl_dceo.agents.parts import observation_key
from torchrl_dceo.modules import Centred, CentringFit
from torchrl_dceo.training.agent import Agent

NAME = "centring"


def with_centring(agent: Agent, env: EnvBase) -> Agent:
    """The agent itself, with a :class:`~torchrl_dceo.modules.CentringFit` before its objectives if it needs one."""
    parts = (agent.policy, *agent.objectives.values())
    if not any(isinstance(module, Centred) for part in parts for module in part.modules()):
        return agent
    fit = CentringFit(parts, in_key=observation_key(env))
    agent.objectives = nn.ModuleDict({NAME: fit, **agent.objectives})
    agent.phases = tuple(
        phase
        if phase.objectives is None
        else dataclasses.replace(phase, objectives=(NAME, *phase.objectives))
        for phase in agent.phases
    )
    return agent
