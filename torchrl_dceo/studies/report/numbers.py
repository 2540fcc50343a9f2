"""The numbers of a page: what its tables say and what its charts draw."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrl_dceo.analysis.figures.curves import Progress, switch_places
from torchrl_dceo.analysis.figures.style import agent_colours
from torchrl_dceo.analysis.statistics.comparison import (
    AgentRuns,
    AgentSummary,
    read_study,
    summarize,
)
from torchrl_dceo.analysis.statistics.improvement import (
    Improvement,
    improvements,
    profiles_of_study,
)
from torchrl_dceo.analysis.statistics.learning_speed import sample_efficiency

__all__ = ["METRICS", "Numbers", "chart_data", "read_numbers"]

METRICS = {
    "eval_return": "Greedy return",
    "train_return": "Training return",
    "coverage": "States visited",
    "option_climb": "Option climb, random states",
    "option_climb_start": "Option climb, from the start",
    "option_return": "Option return",
    "cosine_similarity": "Eigenfunctions, |cos| to the exact ones",
    "subspace_similarity": "Eigenfunctions, subspaces",
    "orthogonality_error": "Orthogonality error",
    "option_share": "Share of steps in options",
    "bonus": "Exploration bonus",
    "eps": "ε",
}
"""What can be drawn, in this order, if a log has it."""
_KINDS = {"final": "at the end", "area": "mean over the run"}
_HEADLINES = ("eval_return", "train_return", "coverage")


@dataclass(frozen=True)
class Numbers:
    """What :func:`read_numbers` returns.

    Attributes:
        study (dict of str to list of AgentRuns): for each world its agents.
        headline (str): the metric that the tables are about.
        summaries (list of AgentSummary): measures over finished runs.
        pairs (list of Improvement): agent against agent.
        repetitions (int): bootstrap samples.
    """

    study: dict[str, list[AgentRuns]]
    headline: str
    summaries: list[AgentSummary]
    pairs: list[Improvement]
    repetitions: int

    @property
    def agents(self) -> list[str]:
        """All agents, in one order for the page."""
        return list(agent_colours(run.name for own in self.study.values() for run in own))


def read_numbers(folder: Path, repetitions: int = 2000) -> Numbers | None:
    """Reads and measures the logs of a study; ``None`` if it has none.

    Args:
        folder (Path): laid out as ``<world>/<agent>/seed_<k>.csv``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.
    """
    try:
        study = read_study(folder)
    except FileNotFoundError:
        return None
    headline = _headline(_logs(study.values()))
    metrics = list(dict.fromkeys([headline, "coverage"]))
    summaries = summarize(study, metrics, repetitions)
    pairs = improvements(summaries, metrics, repetitions)
    return Numbers(study, headline, summaries, pairs, repetitions)


def _headline(logs: Sequence[Progress]) -> str:
    """The first metric that ever is above zero: a world without a goal is about coverage."""
    for metric in _HEADLINES:
        if any(value > 0 for run in logs for value in run.get(metric, [])):
            return metric
    return _HEADLINES[0]


def chart_data(numbers: Numbers) -> dict[str, Any]:
    """What the page's scripts draw, ready for JSON.

    Args:
        numbers (Numbers): from :func:`read_numbers`.
    """
    logs = _logs(numbers.study.values())
    metrics = [name for name in METRICS if any(_has(run, name) for run in logs)]
    curves = {
        world: {m: curve for m in metrics if (curve := _curves(agents, m, numbers.repetitions))}
        for world, agents in numbers.study.items()
    }
    return {
        "worlds": [world for world in numbers.study if curves[world]],
        "agents": numbers.agents,
        "metrics": [{"key": name, "label": METRICS[name]} for name in metrics],
        "curves": curves,
        "marks": {world: _marks(agents) for world, agents in numbers.study.items()},
        "profiles": _profiles(numbers),
        "improvement": _improvement(numbers.pairs),
    }


def _curves(agents: Sequence[AgentRuns], metric: str, repetitions: int) -> dict[str, Any] | None:
    curves = sample_efficiency(agents, metric, repetitions=repetitions)
    if not curves.agents:
        return None
    found: dict[str, dict[str, Any]] = {}
    for name, own in curves.agents.items():
        over = own.over_seeds
        fields = ("iqm", "low", "high", "mean", "std")
        found[name] = {field: _rounded(getattr(over, field)) for field in fields}
        found[name]["runs"] = over.num_runs.tolist()
        found[name]["seeds"] = {str(seed): _rounded(curve) for seed, curve in own.runs.items()}
    return {"grid": _rounded(curves.grid), "agents": found}


def _marks(agents: Sequence[AgentRuns]) -> dict[str, Any]:
    """Where the world changes, and where each agent's discovery ends."""
    switches = sorted({place for run in _logs([agents]) for place in switch_places(run)})
    discovery = {}
    for agent in agents:
        ends = [end for run in agent.seeds.values() if (end := _end_of_discovery(run)) is not None]
        if ends:
            discovery[agent.name] = statistics.median(ends)
    return {"switches": switches, "discovery": discovery}


def _end_of_discovery(run: Progress) -> float | None:
    phases = run.get("phase", [])
    later = [i for i in range(1, len(phases)) if phases[i] > phases[i - 1]]
    return run["frames"][later[-1] - 1] if later else None


def _profiles(numbers: Numbers) -> list[dict[str, Any]]:
    name = METRICS[numbers.headline]
    found = []
    for kind, text in _KINDS.items():
        measure = f"{kind}_{numbers.headline}"
        worlds = profiles_of_study(numbers.summaries, measure, numbers.repetitions)
        if worlds:
            shown = {
                world: {
                    "levels": _rounded(levels),
                    "agents": {
                        agent: {
                            "value": _rounded(profile.value),
                            "low": _rounded(profile.low),
                            "high": _rounded(profile.high),
                        }
                        for agent, profile in agents.items()
                    },
                }
                for world, (levels, agents) in worlds.items()
            }
            found.append({"key": kind, "label": f"{name}, {text}", "worlds": shown})
    return found


def _improvement(pairs: Sequence[Improvement]) -> list[dict[str, Any]]:
    """A matrix for each measure and world: rows are agents, columns those they are compared with."""
    found = []
    for measure in dict.fromkeys(pair.measure for pair in pairs):
        kind, _, metric = measure.partition("_")
        label = "Frames to the first goal"
        if kind in _KINDS:
            label = f"{METRICS.get(metric, metric)}, {_KINDS[kind]}"
        worlds: dict[str, dict[str, dict[str, list[float]]]] = {}
        for pair in pairs:
            if pair.measure == measure:
                row = worlds.setdefault(pair.world, {}).setdefault(pair.agent, {})
                row[pair.over] = _rounded([pair.probability, pair.low, pair.high])
        found.append({"key": measure, "label": label, "worlds": worlds})
    return found


def _logs(worlds: Iterable[Sequence[AgentRuns]]) -> list[Progress]:
    return [run for agents in worlds for agent in agents for run in agent.seeds.values()]


def _has(run: Progress, metric: str) -> bool:
    return any(math.isfinite(value) for value in run.get(metric, []))


def _rounded(values: Iterable[float]) -> list[float]:
    """Four digits are more than a screen shows, and a third of the bytes."""
    return [float(f"{value:.4g}") for value in values]
