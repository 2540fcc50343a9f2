"""The data of a page: the numbers of its tables and charts, and figures of single runs."""

from __future__ import annotations

import logging
import math
import re
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrl_dceo.analysis.figures import agent_colours
from torchrl_dceo.analysis.figures.birds_eye import BIRDS_EYE_FILE, load_birds_eye
from torchrl_dceo.analysis.figures.birds_eye_figures import draw_birds_eye, draw_option_ways
from torchrl_dceo.analysis.figures.curves import (
    PROGRESS_FILE,
    Progress,
    read_progress,
    switch_places,
)
from torchrl_dceo.analysis.figures.run import map_figures
from torchrl_dceo.analysis.run_files import ANALYSIS_FILE, load_analysis
from torchrl_dceo.analysis.statistics.comparison import (
    AgentRuns,
    AgentSummary,
    area_under_curve,
    read_study,
    summarize,
)
from torchrl_dceo.analysis.statistics.improvement import (
    Improvement,
    improvements,
    profiles_of_study,
)
from torchrl_dceo.analysis.statistics.learning_speed import sample_efficiency
from torchrl_dceo.studies.report.markup import Markup, embed_figure, join, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "METRICS",
    "Numbers",
    "chart_data",
    "keep_arrays",
    "learned_pictures",
    "read_numbers",
    "representative",
]


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
"""The metrics that are drawn, in this order, if a log has them."""
_KINDS = {"final": "at the end", "area": "mean over the run"}
Runs = Mapping[tuple[str, str, int], Path]
_FILES = (ANALYSIS_FILE, BIRDS_EYE_FILE)
_LARGEST = 400_000  # bytes that are copied beside the logs
_log = logging.getLogger(__name__)
_WHAT = {
    "visits": "State visitation: how often each state was visited; grey was never visited.",
    "eigenfunctions": "Eigenfunctions: each dimension of the learned representation on the map.",
    "options": "Options: each one's value and its greedy move in every state.",
    "birds_eye": "Eigenfunctions from above: the learned representation over the floor.",
    "option_ways": "Options from above: the ways that each one takes.",
}
_HEADLINES = ("eval_return", "train_return", "coverage")


@dataclass(frozen=True)
class Numbers:
    """The result of :func:`read_numbers`.

    Attributes:
        study (dict of str to list of AgentRuns): for each environment its agents.
        headline (str): the metric of the tables.
        summaries (list of AgentSummary): metrics over finished runs.
        pairs (list of Improvement): comparisons of pairs of agents.
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
    """Reads and summarises the logs of a study; ``None`` if it has none.

    Args:
        folder (Path): laid out as ``<environment>/<agent>/seed_<k>.csv``.
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
    """The first metric with a value above zero; in environments without a goal this is coverage."""
    for metric in _HEADLINES:
        if any(value > 0 for run in logs for value in run.get(metric, [])):
            return metric
    return _HEADLINES[0]


def chart_data(numbers: Numbers) -> dict[str, Any]:
    """The data for the page's scripts, ready for JSON.

    Args:
        numbers (Numbers): from :func:`read_numbers`.
    """
    logs = _logs(numbers.study.values())
    metrics = [name for name in METRICS if any(_has(run, name) for run in logs)]
    curves = {
        environment: {
            m: curve for m in metrics if (curve := _curves(agents, m, numbers.repetitions))
        }
        for environment, agents in numbers.study.items()
    }
    return {
        "environments": [environment for environment in numbers.study if curves[environment]],
        "agents": numbers.agents,
        "metrics": [{"key": name, "label": METRICS[name]} for name in metrics],
        "curves": curves,
        "marks": {environment: _marks(agents) for environment, agents in numbers.study.items()},
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
    """The frames at which the environment changes and each agent's discovery ends."""
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
        environments = profiles_of_study(numbers.summaries, measure, numbers.repetitions)
        if environments:
            shown = {
                environment: {
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
                for environment, (levels, agents) in environments.items()
            }
            found.append({"key": kind, "label": f"{name}, {text}", "environments": shown})
    return found


def _improvement(pairs: Sequence[Improvement]) -> list[dict[str, Any]]:
    """A matrix for each measure and environment: rows are agents, columns those they are compared with."""
    found = []
    for measure in dict.fromkeys(pair.measure for pair in pairs):
        kind, _, metric = measure.partition("_")
        label = "Frames to the first goal"
        if kind in _KINDS:
            label = f"{METRICS.get(metric, metric)}, {_KINDS[kind]}"
        environments: dict[str, dict[str, dict[str, list[float]]]] = {}
        for pair in pairs:
            if pair.measure == measure:
                row = environments.setdefault(pair.environment, {}).setdefault(pair.agent, {})
                row[pair.over] = _rounded([pair.probability, pair.low, pair.high])
        found.append({"key": measure, "label": label, "environments": environments})
    return found


def _logs(environments: Iterable[Sequence[AgentRuns]]) -> list[Progress]:
    return [run for agents in environments for agent in agents for run in agent.seeds.values()]


def _has(run: Progress, metric: str) -> bool:
    return any(math.isfinite(value) for value in run.get(metric, []))


def _rounded(values: Iterable[float]) -> list[float]:
    """Rounds to four digits, to reduce the size."""
    return [float(f"{value:.4g}") for value in values]


def representative(runs: Runs, metric: str) -> dict[tuple[str, str], int]:
    """The seed to show for each environment and agent: the median by area under the curve, among those with figures.

    Args:
        runs (mapping): the directory of each environment, agent and seed.
        metric (str): a column of the logs.

    Examples:
        >>> from pathlib import Path
        >>> from torchrl_dceo.studies.report.numbers import representative
        >>> representative({("maze", "dceo", 0): Path("/nowhere")}, "eval_return")
        {}
    """
    areas: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for (environment, agent, seed), folder in sorted(runs.items()):
        if any((folder / name).is_file() for name in _FILES):
            areas.setdefault((environment, agent), []).append((_area(folder, metric), seed))
    return {key: sorted(own)[(len(own) - 1) // 2][1] for key, own in areas.items()}


def _area(folder: Path, metric: str) -> float:
    try:
        area = area_under_curve(read_progress(folder / PROGRESS_FILE), metric)
    except (FileNotFoundError, ValueError):
        return -math.inf
    return -math.inf if math.isnan(area) else area


def keep_arrays(folder: Path, runs: Runs, metric: str) -> None:
    """Copies the data of the figures to ``<environment>/<agent>/seed_<k>/``, so that the page can be rebuilt.

    Args:
        folder (Path): the study.
        runs (mapping): the directory of each environment, agent and seed.
        metric (str): by which the seed is chosen.
    """
    for (environment, agent), seed in representative(runs, metric).items():
        own = folder / environment / agent
        for old in own.glob("seed_*/*.npz"):
            if old.name in _FILES:
                old.unlink()
        for name in _FILES:
            source = runs[environment, agent, seed] / name
            if source.is_file() and source.stat().st_size <= _LARGEST:
                target = own / f"seed_{seed}" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        for empty in own.glob("seed_*/"):
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()


def learned_pictures(folder: Path, runs: Runs | None, metric: str) -> Markup:
    """The figures of a representative run for each environment and agent, from the runs or from the copied data.

    Args:
        folder (Path): the study.
        runs (mapping, optional): the directory of each environment, agent and seed.
        metric (str): by which the seed is chosen.
    """
    if runs is not None:
        chosen = representative(runs, metric)
        places = {(*key, seed): runs[(*key, seed)] for key, seed in chosen.items()}
    else:
        places = _kept(folder)
    parts = []
    for (environment, agent, seed), place in places.items():
        pictures = _pictures(place, f"{agent} in {environment}")
        if pictures:
            name = f"{agent} in {environment}" + (f", seed {seed}" if seed >= 0 else "")
            heading = tag("h3", name)
            inside = join([heading, *pictures])
            parts.append(
                tag("div", inside, class_="learned", data_environment=environment, data_agent=agent)
            )
    return join(parts)


def _kept(folder: Path) -> dict[tuple[str, str, int], Path]:
    """The copied data in the study; seed -1 if the path has none."""
    places = {}
    for name in _FILES:
        for path in sorted(folder.glob(f"*/*/{name}")):
            places[path.parts[-3], path.parts[-2], -1] = path.parent
        for path in sorted(folder.glob(f"*/*/seed_*/{name}")):
            seed = re.fullmatch(r"seed_(\d+)", path.parts[-2])
            if seed:
                places[path.parts[-4], path.parts[-3], int(seed[1])] = path.parent
    return places


def _pictures(place: Path, of: str) -> list[Markup]:
    figures: dict[str, Figure] = {}
    try:
        if (place / ANALYSIS_FILE).is_file():
            figures |= map_figures(load_analysis(place))
        if (place / BIRDS_EYE_FILE).is_file():
            view = load_birds_eye(place)
            if view.values.shape[1] > 1:
                figures["birds_eye"] = draw_birds_eye(view)
            if view.ways is not None:
                figures["option_ways"] = draw_option_ways(view)
    except (FileNotFoundError, ValueError) as error:
        # A damaged file is skipped.
        _log.warning("no images of %s: %s", of, error)
    return [
        embed_figure(figure).figure(f"{_WHAT[name].partition(':')[0]} of {of}", _WHAT[name])
        for name, figure in figures.items()
    ]
