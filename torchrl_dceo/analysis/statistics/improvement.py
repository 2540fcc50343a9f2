"""Probability of improvement and performance profiles."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchrl_dceo.analysis.statistics import Estimate, bootstrap_interval
from torchrl_dceo.analysis.statistics.comparison import ALL_ENVIRONMENTS, AgentSummary

__all__ = [
    "Improvement",
    "improvements",
    "pairwise_improvement",
    "performance_profile",
    "profiles_of_study",
    "share_better",
    "thresholds_for",
]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Improvement:
    """One agent against another by one measure.

    Attributes:
        environment (str): the environment, or :data:`~torchrl_dceo.analysis.statistics.comparison.ALL_ENVIRONMENTS`.
        agent (str): the one.
        over (str): the other.
        measure (str): one of :attr:`AgentSummary.measures`; of frames, fewer are better.
        runs (int): finished runs of the one.
        runs_over (int): of the other.
        probability (float): that a run of the one is better than a run of the other, a tie being half.
        low (float): lower end of its interval; NaN where one of them has fewer than two runs.
        high (float): upper end.
    """

    environment: str
    agent: str
    over: str
    measure: str
    runs: int
    runs_over: int
    probability: float
    low: float
    high: float


def share_better(scores: ArrayLike, others: ArrayLike) -> Array:
    """The share of all pairs of runs in which the first is higher, ties counted half: Mann and Whitney's U / (R·S).

    Args:
        scores (array-like): ``[R, …]``, without NaN.
        others (array-like): ``[S, …]``.

    Returns:
        ndarray: ``[…]``.

    Examples:
        >>> from torchrl_dceo.analysis.statistics.improvement import share_better
        >>> float(share_better([1.0, 3.0], [0.0, 1.0]))  # better, tie, better, better
        0.875
    """
    first = np.asarray(scores, dtype=np.float64)[:, None]
    second = np.asarray(others, dtype=np.float64)[None]
    return ((first > second) + 0.5 * (first == second)).mean(axis=(0, 1))


def pairwise_improvement(
    scores: Mapping[str, Sequence[ArrayLike]],
    *,
    confidence: float = 0.95,
    repetitions: int = 2000,
    seed: int = 0,
) -> dict[tuple[str, str], Estimate]:
    """Every agent against every other: the mean over environments of :func:`share_better`, with bootstrap intervals.

    It is rliable's probability of improvement, but also for environments in which agents have different numbers of
    runs, and for several measures at once.

    Args:
        scores (mapping of str to sequence of array-like): for each agent its runs in each environment, ``[R, M]`` for M
            measures, higher is better, infinity allowed.

    Keyword Args:
        confidence (float, optional): of the intervals. Default: ``0.95``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.
        seed (int, optional): of the bootstrap. Default: ``0``.

    Returns:
        dict of pair of str to Estimate: for each ordered pair of agents, ``[M]`` each.

    Examples:
        >>> from torchrl_dceo.analysis.statistics.improvement import pairwise_improvement
        >>> one_environment = {"dceo": [[[0.9], [0.8]]], "ddqn": [[[0.1], [0.85]]]}
        >>> pairwise_improvement(one_environment, repetitions=200)["dceo", "ddqn"].value.tolist()
        [0.75]
    """
    runs = {name: [np.asarray(w, dtype=np.float64) for w in own] for name, own in scores.items()}
    pairs = list(itertools.combinations(runs, 2))
    if not pairs:
        return {}
    environments = len(next(iter(runs.values())))
    places = {name: i * environments for i, name in enumerate(runs)}

    def over_environments(*drawn: Array) -> Array:
        return np.concatenate(
            [
                np.mean(
                    [
                        share_better(drawn[places[a] + w], drawn[places[b] + w])
                        for w in range(environments)
                    ],
                    axis=0,
                )
                for a, b in pairs
            ]
        )

    samples = [environment for own in runs.values() for environment in own]
    value = over_environments(*samples).reshape(len(pairs), -1)
    low, high = (
        ends.reshape(len(pairs), -1)
        for ends in bootstrap_interval(
            samples, over_environments, confidence=confidence, repetitions=repetitions, seed=seed
        )
    )
    found = {}
    for i, (a, b) in enumerate(pairs):
        if min(len(environment) for environment in (*runs[a], *runs[b])) < 2:
            low[i] = high[i] = np.nan
        found[a, b] = Estimate(value[i], low[i], high[i])
        found[b, a] = Estimate(1 - value[i], 1 - high[i], 1 - low[i])
    return found


def improvements(
    summaries: Sequence[AgentSummary], metrics: Sequence[str], repetitions: int = 2000
) -> list[Improvement]:
    """Compares the agents of a study in pairs, in each environment and, by their returns, over all environments.

    The measures are the final value and the area under the curve of each metric and the frames to the first goal.
    One that is missing in a run of an agent is left out for all agents in that environment.

    Args:
        summaries (sequence of AgentSummary): from :func:`~torchrl_dceo.analysis.statistics.comparison.summarize`.
        metrics (sequence of str): columns of the logs.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.
    """
    by_environment: dict[str, list[AgentSummary]] = {}
    for summary in summaries:
        if summary.environment != ALL_ENVIRONMENTS and summary.finished:
            by_environment.setdefault(summary.environment, []).append(summary)
    wanted = [f"{kind}_{metric}" for metric in metrics for kind in ("final", "area")]
    found = []
    for environment, own in by_environment.items():
        rows = {summary.agent: [summary] for summary in own}
        found += _compared(environment, rows, [*wanted, "frames_to_goal"], repetitions)
    if len(by_environment) > 1:
        names = dict.fromkeys(summary.agent for summary in summaries)
        everywhere = {
            name: [s for own in by_environment.values() for s in own if s.agent == name]
            for name in names
        }
        everywhere = {name: s for name, s in everywhere.items() if len(s) == len(by_environment)}
        returns = [name for name in wanted if name.endswith("return")]
        found += _compared(ALL_ENVIRONMENTS, everywhere, returns, repetitions)
    return found


def _compared(
    environment: str,
    agents: Mapping[str, Sequence[AgentSummary]],
    measures: Sequence[str],
    repetitions: int,
) -> list[Improvement]:
    everyone = [summary for own in agents.values() for summary in own]
    shared = [
        name
        for name in measures
        if all(not np.isnan(summary.measures.get(name, [np.nan])).any() for summary in everyone)
    ]
    # One run of each agent has no chance of being better: it is, or it is not.
    if not shared or all(summary.finished < 2 for summary in everyone):
        return []
    # Of frames, fewer are better; never (infinity) is worst, and two of them are a tie.
    signs = np.array([-1.0 if name.startswith("frames") else 1.0 for name in shared])
    scores = {
        name: [np.array([s.measures[m] for m in shared]).T * signs for s in own]
        for name, own in agents.items()
    }
    runs = {name: sum(summary.finished for summary in own) for name, own in agents.items()}
    pairs = pairwise_improvement(scores, repetitions=repetitions)
    return [
        Improvement(
            environment, a, b, measure, runs[a], runs[b],
            float(pair.value[i]), float(pair.low[i]), float(pair.high[i]),
        )
        for i, measure in enumerate(shared)
        for (a, b), pair in pairs.items()
    ]  # fmt: skip


def performance_profile(
    scores: Sequence[ArrayLike],
    thresholds: ArrayLike,
    *,
    confidence: float = 0.95,
    repetitions: int = 2000,
    seed: int = 0,
) -> Estimate:
    r"""The share of runs with a score above each threshold :math:`\tau`, with a bootstrap band.

    Each environment counts the same; where all have equally many runs, it is rliable's run-score distribution.

    Args:
        scores (sequence of array-like): the runs of an agent in each environment, ``[R]`` each.
        thresholds (array-like): ``[P]``.

    Keyword Args:
        confidence (float, optional): of the band, at each threshold. Default: ``0.95``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.
        seed (int, optional): of the bootstrap. Default: ``0``.

    Returns:
        Estimate: ``[P]``; without a band if an environment has fewer than two runs.

    Examples:
        >>> from torchrl_dceo.analysis.statistics.improvement import performance_profile
        >>> performance_profile([[0.0, 0.5, 1.0, 1.0]], [0.0, 0.5, 1.0]).value.tolist()
        [0.75, 0.5, 0.0]
    """
    environments = [np.asarray(own, dtype=np.float64)[:, None] for own in scores]
    levels = np.asarray(thresholds, dtype=np.float64)

    def shares(*drawn: Array) -> Array:
        return np.mean([(own > levels).mean(axis=0) for own in drawn], axis=0)

    value = shares(*environments)
    if min(len(own) for own in environments) < 2:
        nothing = np.full(len(levels), np.nan)
        return Estimate(value, nothing, nothing)
    low, high = bootstrap_interval(
        environments, shares, confidence=confidence, repetitions=repetitions, seed=seed
    )
    return Estimate(value, low, high)


def thresholds_for(scores: Sequence[float]) -> Array:
    """The scores themselves, where a profile falls, and 0 and 1: between them it is level.

    Examples:
        >>> from torchrl_dceo.analysis.statistics.improvement import thresholds_for
        >>> thresholds_for([0.3, 2.0, 0.3]).tolist()
        [0.0, 0.3, 1.0, 2.0]
    """
    return np.unique([0.0, 1.0, *scores])


def profiles_of_study(
    summaries: Sequence[AgentSummary], measure: str, repetitions: int = 2000
) -> dict[str, tuple[Array, dict[str, Estimate]]]:
    """The profile of every agent in each environment, and over all environments for those that have runs in each.

    Args:
        summaries (sequence of AgentSummary): from :func:`~torchrl_dceo.analysis.statistics.comparison.summarize`.
        measure (str): the score, one of their measures.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.

    Returns:
        dict of str to (thresholds, dict of str to Estimate): for each environment, and for
        :data:`~torchrl_dceo.analysis.statistics.comparison.ALL_ENVIRONMENTS`, the profile of each agent.
    """
    scores: dict[str, dict[str, list[float]]] = {}
    for summary in summaries:
        own = summary.measures.get(measure, [])
        if summary.environment != ALL_ENVIRONMENTS and own and np.isfinite(own).all():
            scores.setdefault(summary.environment, {})[summary.agent] = own
    together: dict[str, dict[str, list[list[float]]]] = {
        environment: {name: [own] for name, own in agents.items()}
        for environment, agents in scores.items()
    }
    if len(scores) > 1:
        names = dict.fromkeys(name for agents in scores.values() for name in agents)
        together[ALL_ENVIRONMENTS] = {
            name: [agents[name] for agents in scores.values()]
            for name in names
            if all(name in agents for agents in scores.values())
        }
    return {
        environment: _profiles(agents, repetitions)
        for environment, agents in together.items()
        if agents
    }


def _profiles(
    agents: Mapping[str, Sequence[Sequence[float]]], repetitions: int
) -> tuple[Array, dict[str, Estimate]]:
    levels = thresholds_for(
        [v for environments in agents.values() for own in environments for v in own]
    )
    return levels, {
        name: performance_profile(environments, levels, repetitions=repetitions)
        for name, environments in agents.items()
    }
