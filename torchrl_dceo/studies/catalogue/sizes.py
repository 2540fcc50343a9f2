"""What the presets of several studies share: their agents, the schedules of shorter runs, the smallest of all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchrl_dceo.studies.declaration import Method

__all__ = ["BASELINES", "SMOKE", "SMOKE_FRAMES", "methods"]

BASELINES = ("ddqn", "counts", "ez_greedy", "rnd")
"""What the paper compares with wherever returns are shown."""

DISCOVERING = ("dceo_two_phase", "diayn", "cic")
"""Agents that discover options first, in the world without reward."""

SMOKE_FRAMES = 400
SMOKE = (
    "num_envs=4",
    "learning_starts=100",
    "update_period=20",
    "log_period=100",
    "eval_period=200",
    "eval_episodes=2",
    "checkpoint_period=100",
    "agent.batch_size=8",
    "progress=false",
)
"""Seconds a run: that everything holds together, not that anything is learned."""


def methods(
    agents: Sequence[str],
    frames: int,
    *,
    discovery: int | None = None,
    annealed: float = 0.7,
    own: Mapping[str, Sequence[str]] | None = None,
) -> list[Method]:
    """Agents with schedules that fit a run of so many frames: ε falls over a share of those that have a goal.

    Args:
        agents (sequence of str): their names.
        frames (int): of a run.

    Keyword Args:
        discovery (int, optional): the first frames of agents that discover options first. Default: a third.
        annealed (float, optional): the share over which ε falls; as in the recipes. Default: ``0.7``.
        own (mapping, optional): further overrides of single agents.

    Examples:
        >>> from torchrl_dceo.studies.catalogue.sizes import methods
        >>> for method in methods(["dceo", "diayn"], 60_000, discovery=20_000):
        ...     print(method.agent, *method.overrides)
        dceo agent.eps_frames=42000
        diayn discovery_frames=20000 agent.eps_frames=28000
    """
    made = []
    for agent in agents:
        first = (frames // 3 if discovery is None else discovery) if agent in DISCOVERING else 0
        overrides = [f"discovery_frames={first}"] if first else []
        overrides.append(f"agent.eps_frames={round(annealed * (frames - first))}")
        made.append(Method(agent, (*overrides, *(own or {}).get(agent, ()))))
    return made
