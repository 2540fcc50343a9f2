"""Agents compared in numbers: one summary a world, as rows and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from torchrl_dceo.analysis.adaptation import Adaptation, adaptations
from torchrl_dceo.analysis.aggregates import Aggregate, aggregate
from torchrl_dceo.analysis.curves import Progress
from torchrl_dceo.analysis.study_folder import AgentRuns

__all__ = [
    "ALL_WORLDS",
    "AgentSummary",
    "area_under_curve",
    "final_value",
    "frames_to",
    "summarize",
]

ALL_WORLDS = "all worlds"
"""The name under which an agent's runs in all worlds are put together."""


@dataclass(frozen=True)
class AgentSummary:
    """An agent in a world, over its finished runs.

    Attributes:
        world (str): the world.
        agent (str): the agent.
        finished (int): how many of its runs have come to their end: the numbers are over these.
        started (int): how many runs there are.
        measures (dict of str to list of float): each measure of each finished run, infinity for what never happened.
        aggregates (dict of str to Aggregate): of each measure that every run has.
    """

    world: str
    agent: str
    finished: int
    started: int
    measures: dict[str, list[float]]
    aggregates: dict[str, Aggregate]


def final_value(progress: Progress, metric: str) -> float:
    """The mean over the last tenth of the run's frames; the last number if there is none in it.

    Examples:
        >>> from torchrl_dceo.analysis.comparison import final_value
        >>> run = {"frames": [80.0, 91.0, 100.0], "eval_return": [0.0, 0.5, 1.0]}
        >>> final_value(run, "eval_return")
        0.75
    """
    rows = _rows(progress, metric)
    if not rows:
        return math.nan
    late = [value for frame, value in rows if frame > 0.9 * progress["frames"][-1]]
    return sum(late) / len(late) if late else rows[-1][1]


def area_under_curve(progress: Progress, metric: str) -> float:
    """The area under the curve (by trapezoids) divided by the frames: the mean over the run.

    Before its first row the curve is as at that row, after its last one as at the last.

    Examples:
        >>> from torchrl_dceo.analysis.comparison import area_under_curve
        >>> area_under_curve({"frames": [10.0, 20.0], "eval_return": [0.0, 1.0]}, "eval_return")
        0.25
    """
    rows = _rows(progress, metric)
    if not rows:
        return math.nan
    end = progress["frames"][-1]
    frames = [0.0, *(frame for frame, _ in rows), end]
    values = [rows[0][1], *(value for _, value in rows), rows[-1][1]]
    area = sum(
        (right - left) * (a + b) / 2
        for left, right, a, b in zip(frames, frames[1:], values, values[1:], strict=False)
    )
    return area / end


def frames_to(progress: Progress, metric: str, threshold: float, strict: bool = False) -> float:
    """The frames at the first row where the metric reaches the threshold (``strict``: passes it); else infinity.

    Examples:
        >>> from torchrl_dceo.analysis.comparison import frames_to
        >>> run = {"frames": [10.0, 20.0], "eval_return": [0.2, 0.6]}
        >>> frames_to(run, "eval_return", 0.5), frames_to(run, "eval_return", 0.7)
        (20.0, inf)
    """
    for frame, value in _rows(progress, metric):
        if value > threshold or (value == threshold and not strict):
            return frame
    return math.inf


def summarize(
    study: Mapping[str, Sequence[AgentRuns]], metrics: Sequence[str], repetitions: int = 2000
) -> list[AgentSummary]:
    """Measures every run that is finished and aggregates over seeds.

    Of each metric the final value and the area under the curve, and the frames to the first training return above
    zero and to an evaluation return of 0.5; where the world has changed, how the agent took the (first) change, see
    :class:`~torchrl_dceo.analysis.adaptation.Adaptation`, by the first of the metrics that is a return. Agents that
    have finished equally many runs in all worlds of several also get a summary over these, stratified by world.

    Args:
        study (mapping of str to AgentRuns): from :func:`~torchrl_dceo.analysis.study_folder.read_study`.
        metrics (sequence of str): columns of the logs.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.
    """
    summaries = [
        _summary(world, agent, metrics, repetitions)
        for world, agents in study.items()
        for agent in agents
    ]
    names = dict.fromkeys(summary.agent for summary in summaries)
    over_worlds = [[s for s in summaries if s.agent == name] for name in names]
    return summaries + [
        _together(own, metrics, repetitions)
        for own in over_worlds
        if len(study) > 1
        and len(own) == len(study)
        and len({summary.finished for summary in own}) == 1
        and own[0].finished
    ]


def _summary(
    world: str, agent: AgentRuns, metrics: Sequence[str], repetitions: int
) -> AgentSummary:
    runs = list(agent.finished.values())
    measures: dict[str, list[float]] = {}
    for metric in metrics:
        measures[f"final_{metric}"] = [final_value(run, metric) for run in runs]
        measures[f"area_{metric}"] = [area_under_curve(run, metric) for run in runs]
    measures["frames_to_goal"] = [frames_to(run, "train_return", 0.0, strict=True) for run in runs]
    measures["frames_to_half"] = [frames_to(run, "eval_return", 0.5) for run in runs]
    measures |= _adaptation(runs, metrics)
    aggregates = {
        name: aggregate(np.array(values)[:, None], repetitions=repetitions)
        for name, values in measures.items()
        if values and np.isfinite(values).all()
    }
    return AgentSummary(world, agent.name, len(runs), len(agent.seeds), measures, aggregates)


def _adaptation(runs: Sequence[Progress], metrics: Sequence[str]) -> dict[str, list[float]]:
    metric = next((name for name in metrics if name.endswith("return")), None)
    changes = [] if metric is None else [adaptations(run, metric)[:1] for run in runs]
    if not changes or not all(changes):
        return {}
    names = [field.name for field in fields(Adaptation)]
    return {f"switch_{name}": [getattr(c, name) for (c,) in changes] for name in names}


def _together(
    summaries: Sequence[AgentSummary], metrics: Sequence[str], repetitions: int
) -> AgentSummary:
    """One summary of an agent's returns in several worlds; frames and states of different worlds do not mix."""
    names = [f"{kind}_{m}" for m in metrics if m.endswith("return") for kind in ("final", "area")]
    aggregates = {
        name: aggregate(
            np.array([summary.measures[name] for summary in summaries]).T[:, :, None],
            repetitions=repetitions,
        )
        for name in names
        if all(name in summary.aggregates for summary in summaries)
    }
    finished = sum(summary.finished for summary in summaries)
    started = sum(summary.started for summary in summaries)
    return AgentSummary(ALL_WORLDS, summaries[0].agent, finished, started, {}, aggregates)


def _rows(progress: Progress, metric: str) -> list[tuple[float, float]]:
    pairs = zip(progress["frames"], progress.get(metric, []), strict=False)
    return [(frame, value) for frame, value in pairs if math.isfinite(value)]
