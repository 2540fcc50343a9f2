"""Performance profiles: how many runs get beyond each score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchrl_dceo.analysis.bootstrap import Estimate, bootstrap_interval
from torchrl_dceo.analysis.comparison import ALL_WORLDS, AgentSummary

__all__ = ["performance_profile", "profiles_of_study", "thresholds_for"]

Array = NDArray[np.float64]


def performance_profile(
    scores: Sequence[ArrayLike],
    thresholds: ArrayLike,
    *,
    confidence: float = 0.95,
    repetitions: int = 2000,
    seed: int = 0,
) -> Estimate:
    r"""The share of runs with a score above each threshold :math:`\tau`, with a band by rliable.

    Each world counts the same; where all have equally many runs, it is rliable's run-score distribution.

    Args:
        scores (sequence of array-like): the runs of an agent in each world, ``[R]`` each.
        thresholds (array-like): ``[P]``.

    Keyword Args:
        confidence (float, optional): of the band, at each threshold. Default: ``0.95``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.
        seed (int, optional): of the bootstrap. Default: ``0``.

    Returns:
        Estimate: ``[P]``; without a band if a world has fewer than two runs.

    Examples:
        >>> from torchrl_dceo.analysis.profiles import performance_profile
        >>> performance_profile([[0.0, 0.5, 1.0, 1.0]], [0.0, 0.5, 1.0]).value.tolist()
        [0.75, 0.5, 0.0]
    """
    worlds = [np.asarray(own, dtype=np.float64)[:, None] for own in scores]
    levels = np.asarray(thresholds, dtype=np.float64)

    def shares(*drawn: Array) -> Array:
        return np.mean([(own > levels).mean(axis=0) for own in drawn], axis=0)

    value = shares(*worlds)
    if min(len(own) for own in worlds) < 2:
        nothing = np.full(len(levels), np.nan)
        return Estimate(value, nothing, nothing)
    low, high = bootstrap_interval(
        worlds, shares, confidence=confidence, repetitions=repetitions, seed=seed
    )
    return Estimate(value, low, high)


def thresholds_for(scores: Sequence[float]) -> Array:
    """The scores themselves, where a profile falls, and 0 and 1: between them it is level.

    Examples:
        >>> from torchrl_dceo.analysis.profiles import thresholds_for
        >>> thresholds_for([0.3, 2.0, 0.3]).tolist()
        [0.0, 0.3, 1.0, 2.0]
    """
    return np.unique([0.0, 1.0, *scores])


def profiles_of_study(
    summaries: Sequence[AgentSummary], measure: str, repetitions: int = 2000
) -> dict[str, tuple[Array, dict[str, Estimate]]]:
    """The profile of every agent in each world, and over all worlds for those that have runs in each.

    Args:
        summaries (sequence of AgentSummary): from :func:`~torchrl_dceo.analysis.comparison.summarize`.
        measure (str): the score, one of their measures.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.

    Returns:
        dict of str to (thresholds, dict of str to Estimate): for each world, and for
        :data:`~torchrl_dceo.analysis.comparison.ALL_WORLDS`, the profile of each agent.
    """
    scores: dict[str, dict[str, list[float]]] = {}
    for summary in summaries:
        own = summary.measures.get(measure, [])
        if summary.world != ALL_WORLDS and own and np.isfinite(own).all():
            scores.setdefault(summary.world, {})[summary.agent] = own
    together: dict[str, dict[str, list[list[float]]]] = {
        world: {name: [own] for name, own in agents.items()} for world, agents in scores.items()
    }
    if len(scores) > 1:
        names = dict.fromkeys(name for agents in scores.values() for name in agents)
        together[ALL_WORLDS] = {
            name: [agents[name] for agents in scores.values()]
            for name in names
            if all(name in agents for agents in scores.values())
        }
    return {world: _profiles(agents, repetitions) for world, agents in together.items() if agents}


def _profiles(
    agents: Mapping[str, Sequence[Sequence[float]]], repetitions: int
) -> tuple[Array, dict[str, Estimate]]:
    levels = thresholds_for([v for worlds in agents.values() for own in worlds for v in own])
    return levels, {
        name: performance_profile(worlds, levels, repetitions=repetitions)
        for name, worlds in agents.items()
    }
