"""The agents: each file builds one, or a few similar ones, from modules, losses and an explorer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent, Objective, Phase, ReplaySettings
from torchrl_dceo.agents.bonuses import CountsConfig, RNDConfig, make_counts, make_rnd
from torchrl_dceo.agents.dceo import (
    DCEOConfig,
    DCEOTwoPhaseConfig,
    DCOConfig,
    make_dceo,
    make_dceo_two_phase,
    make_dco,
)
from torchrl_dceo.agents.ddqn import DDQNConfig, EZGreedyConfig, make_ddqn, make_ez_greedy
from torchrl_dceo.agents.presets import PRESETS, SPEEDS, preset_settings, speed_settings
from torchrl_dceo.agents.rainbow import (
    RainbowConfig,
    RainbowDCEOConfig,
    make_rainbow,
    make_rainbow_dceo,
)
from torchrl_dceo.agents.skills import CICConfig, DIAYNConfig, make_cic, make_diayn
from torchrl_dceo.envs import env_kind, prepare_env
from torchrl_dceo.envs.prepare import PreparedEnv
from torchrl_dceo.settings import choices, from_settings

__all__ = [
    "AGENTS",
    "PRESETS",
    "SPEEDS",
    "Agent",
    "Objective",
    "Phase",
    "ReplaySettings",
    "choices",
    "make_agent",
    "preset_settings",
    "speed_settings",
]


class AgentKind(NamedTuple):
    """An agent's settings and its builder."""

    config: type
    build: Callable[..., Agent]


AGENTS: dict[str, AgentKind] = {
    "dceo": AgentKind(DCEOConfig, make_dceo),
    "dceo_two_phase": AgentKind(DCEOTwoPhaseConfig, make_dceo_two_phase),
    "ddqn": AgentKind(DDQNConfig, make_ddqn),
    "counts": AgentKind(CountsConfig, make_counts),
    "ez_greedy": AgentKind(EZGreedyConfig, make_ez_greedy),
    "rnd": AgentKind(RNDConfig, make_rnd),
    "diayn": AgentKind(DIAYNConfig, make_diayn),
    "cic": AgentKind(CICConfig, make_cic),
    "dco": AgentKind(DCOConfig, make_dco),
    "rainbow": AgentKind(RainbowConfig, make_rainbow),
    "rainbow_dceo": AgentKind(RainbowDCEOConfig, make_rainbow_dceo),
}


def make_agent(name: str, env: EnvBase, *, preset: str = "ours", **settings: Any) -> Agent:
    """Builds an agent by its name.

    Args:
        name (str): one of :data:`AGENTS`.
        env (EnvBase or gymnasium.Env): the environment; only its specs are read (``counts`` also reads its
            visit counts). Missing transforms are added by :func:`~torchrl_dceo.envs.prepare_env`.

    Keyword Args:
        preset (str): ``"paper"`` for the settings of the paper, ``"authors"`` for their code. Settings of the preset
            that belong to a run, such as the update period, are in :func:`~torchrl_dceo.agents.preset_settings`.
            Default: ``"ours"``.
        **settings: fields of the agent's config dataclass; they override the preset.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> agent = make_agent("ddqn", make_env("NineRooms"), lr=5e-4)
        >>> make_agent("dqn", make_env("NineRooms"))
        Traceback (most recent call last):
        ValueError: unknown agent 'dqn' (did you mean 'ddqn'?); choose from ...
    """
    if name not in AGENTS:
        raise ValueError(f"unknown agent {choices(name, list(AGENTS))}")
    kind = AGENTS[name]
    # The kind of the original environment: the transforms added below would hide it.
    chosen = {} if preset == "ours" else preset_settings(preset, kind.config, env_kind(env)).agent
    config: Any = from_settings(kind.config, {**chosen, **settings}, of=f"of {name} ")
    env = prepare_env(env)
    if name == "counts" and isinstance(env, PreparedEnv):
        env = prepare_env(env, visits="counts")
    agent = kind.build(env, config)
    agent.made_from = {"name": name, **vars(config)}
    return agent
