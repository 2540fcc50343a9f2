"""The runs of a study, gathered from its folder and compared agent by agent."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from torchrl_dceo.analysis.figures import agent_colours
from torchrl_dceo.analysis.figures.curves import Progress, read_progress
from torchrl_dceo.analysis.statistics import Aggregate, aggregate
from torchrl_dceo.analysis.statistics.learning_speed import Adaptation, adaptations
from torchrl_dceo.settings import first_difference

__all__ = [
    "ALL_ENVIRONMENTS",
    "AgentRuns",
    "AgentSummary",
    "area_under_curve",
    "collect_run",
    "final_value",
    "frames_to",
    "log_in_study",
    "read_study",
    "summarize",
]

_KEPT = re.compile(
    "frames|updates|episodes|phase|map|eps|seconds|stopped_early|train_return|eval_return|coverage|loss_.*|bonus|option_share|option_starts_.*"
    "|option_climb|option_climb_start|option_return|cosine_similarity|subspace_similarity|orthogonality_error"
)


_WHOLE = {"frames", "updates", "episodes", "phase", "map", "coverage", "stopped_early"}


_LARGEST = 40_000  # bytes


# What may differ between runs of one agent.
_FREE = {"seed", "run_dir", "resume", "progress", "checkpoint_period", "keep_checkpoints", "logger"}
# What a run that has ended before its time would have gone on with.
_HELD = re.compile("eval_return|train_return|coverage|phase|map|option_climb.*|.*similarity")


@dataclass(frozen=True)
class AgentRuns:
    """The runs of an agent in an environment.

    Attributes:
        name (str): the agent, or what its folder is called.
        seeds (dict of int to Progress): the log of each seed.
        total_frames (float): how long a run is, by ``config.yaml``; without one, as long as the longest.
        size (str): the environment and its size in ``config.yaml``, such as ``"NineRooms, room_size 3"``.
    """

    name: str
    seeds: dict[int, Progress]
    total_frames: float
    size: str = ""

    @property
    def finished(self) -> dict[int, Progress]:
        """The seeds whose run has come to its end."""
        end = self.total_frames
        return {seed: run for seed, run in self.seeds.items() if run["frames"][-1] >= end}


def read_study(folder: str | os.PathLike[str]) -> dict[str, list[AgentRuns]]:
    """Reads all logs of a study.

    Args:
        folder (path-like): it contains ``<environment>/<agent>/seed_<k>.csv``.

    Returns:
        dict of str to list of AgentRuns: for each environment its agents, those of the package first.

    Raises:
        FileNotFoundError: if there are no logs in this layout.

    Examples:
        >>> from torchrl_dceo.analysis.statistics.comparison import read_study
        >>> read_study("/nowhere")
        Traceback (most recent call last):
        FileNotFoundError: /nowhere holds no logs as <environment>/<agent>/seed_<k>.csv: see compare collect
    """
    study: dict[str, dict[str, dict[int, Progress]]] = {}
    for path in sorted(Path(folder).glob("*/*/seed_*.csv")):
        seed = re.fullmatch(r"seed_(\d+)", path.stem)
        if seed:
            environment = study.setdefault(path.parts[-3], {})
            environment.setdefault(path.parts[-2], {})[int(seed[1])] = read_progress(path)
    if not study:
        raise FileNotFoundError(
            f"{folder} holds no logs as <environment>/<agent>/seed_<k>.csv: see compare collect"
        )
    return {
        environment: [
            _agent_runs(Path(folder) / environment / name, agents[name])
            for name in agent_colours(agents)
        ]
        for environment, agents in study.items()
    }


def log_in_study(
    run_dir: str | os.PathLike[str], out: str | os.PathLike[str], name: str | None = None
) -> Path:
    """Where :func:`collect_run` puts the log of a run: ``<out>/<agent>/seed_<k>.csv``."""
    config = _config(Path(run_dir))
    return Path(out) / (name or config["agent"]["name"]) / f"seed_{config['seed']}.csv"


def collect_run(
    run_dir: str | os.PathLike[str], out: str | os.PathLike[str], name: str | None = None
) -> Path:
    """Copies the log of a run into a study, with the columns that comparisons need.

    A log of more than 40 KB is made shorter: neighbouring rows are merged, returns and losses by their mean, counts of
    options by their sum, other columns by their last number. ``config.yaml`` goes beside the logs, once for all
    seeds: a run with other settings raises an error, except for the seed and settings without effect on the numbers.

    Args:
        run_dir (path-like): the run's directory.
        out (path-like): the folder of the environment in the study.
        name (str, optional): the folder of the agent; variants of an agent need one. Default: the agent's name.

    Returns:
        Path: the copy, ``<out>/<agent>/seed_<k>.csv``.
    """
    target, progress = log_in_study(run_dir, out, name), read_progress(run_dir)
    folder = target.parent
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "config.yaml").is_file():
        difference = first_difference(
            _without_seed(_config(folder)),
            _without_seed(_config(Path(run_dir))),
            ignored=_FREE,
            sentence="{name} is {own} and was {saved}",
        )
        if difference:
            raise ValueError(
                f"{run_dir} is no further seed of the runs in {folder}: {difference}; give it another --name"
            )
    else:
        shutil.copyfile(Path(run_dir) / "config.yaml", folder / "config.yaml")
    target.write_text(_slim(progress))
    return target


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not the directory of a recipe's run: no config.yaml")
    config = yaml.safe_load(path.read_text())
    if not isinstance(config, dict) or not {"agent", "seed"} <= set(config):
        raise ValueError(f"{path} does not contain the agent and the seed")
    return config


def _without_seed(config: dict[str, Any]) -> dict[str, Any]:
    """The settings without the seed where an environment repeats it: the start of 3D Four Rooms is drawn from it."""
    env = config.get("env")
    if not isinstance(env, dict) or env.get("start_seed") != config["seed"]:
        return config
    return {**config, "env": {**env, "start_seed": "the seed of the run"}}


def _agent_runs(folder: Path, seeds: dict[int, Progress]) -> AgentRuns:
    if not (folder / "config.yaml").is_file():
        return AgentRuns(folder.name, seeds, max(run["frames"][-1] for run in seeds.values()))
    config = _config(folder)
    env = config.get("env") or {}
    numbers = [f"{key} {value}" for key, value in env.items() if type(value) is int]
    size = ", ".join([str(env["name"]), *numbers]) if "name" in env else ""
    total = float(config["total_frames"])
    held = {seed: _to_its_end(progress, total) for seed, progress in seeds.items()}
    return AgentRuns(folder.name, held, total, size)


def _to_its_end(progress: Progress, total_frames: float) -> Progress:
    """A run that was stopped because it was solved, to the end that it was meant for: it stays at its last values.

    The rows that it lacks are as far apart as those before, with the last values of returns, coverage and what was
    learned; updates, episodes and seconds stay too, since no more were spent, and the rest is left open.
    """
    frames = progress["frames"]
    stopped = progress.get("stopped_early", [])
    if not stopped or not math.isfinite(stopped[-1]) or frames[-1] >= total_frames:
        return progress
    step = frames[-1] - frames[-2] if len(frames) > 1 else frames[-1]
    missing = math.ceil((total_frames - frames[-1]) / step)
    later = [min(frames[-1] + step * i, total_frames) for i in range(1, missing + 1)]
    held = {}
    for name, column in progress.items():
        known = [value for value in column if math.isfinite(value)]
        keep = name in ("updates", "episodes", "seconds") or _HELD.fullmatch(name)
        held[name] = [*column, *([known[-1] if known and keep else math.nan] * missing)]
    return {**held, "frames": [*frames, *later]}


def _slim(progress: Progress) -> str:
    columns = [name for name in progress if _KEPT.fullmatch(name)]
    length = 1
    while True:
        text = _as_csv(columns, _merged(progress, columns, length))
        if len(text) <= _LARGEST or length >= len(progress["frames"]):
            return text
        length += 1


def _merged(progress: Progress, columns: list[str], length: int) -> Iterable[list[float]]:
    """Groups of rows as one each."""
    for start in range(0, len(progress["frames"]), length):
        row = []
        for name in columns:
            known = [v for v in progress[name][start : start + length] if math.isfinite(v)]
            if known and (name == "train_return" or name.startswith("loss_")):
                row.append(sum(known) / len(known))
            elif known and name.startswith("option_starts"):
                row.append(sum(known))
            else:
                row.append(known[-1] if known else math.nan)
        yield row


def _as_csv(columns: list[str], rows: Iterable[list[float]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_text(name, value) for name, value in zip(columns, row, strict=True)])
    return file.getvalue()


def _text(name: str, value: float) -> str:
    if not math.isfinite(value):
        return ""
    return (
        str(int(value))
        if name in _WHOLE
        else f"{value:.4g}"
        if name != "seconds"
        else f"{value:.0f}"
    )


ALL_ENVIRONMENTS = "all environments"


"""The name under which an agent's runs in all environments are put together."""


@dataclass(frozen=True)
class AgentSummary:
    """An agent in an environment, over its finished runs.

    Attributes:
        environment (str): the environment.
        agent (str): the agent.
        finished (int): how many of its runs have come to their end: the numbers are over these.
        started (int): how many runs there are.
        measures (dict of str to list of float): each measure of each finished run, infinity for what never happened.
        aggregates (dict of str to Aggregate): of each measure that every run has.
    """

    environment: str
    agent: str
    finished: int
    started: int
    measures: dict[str, list[float]]
    aggregates: dict[str, Aggregate]


def final_value(progress: Progress, metric: str) -> float:
    """The mean over the last tenth of the run's frames; the last number if there is none in it.

    Examples:
        >>> from torchrl_dceo.analysis.statistics.comparison import final_value
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
        >>> from torchrl_dceo.analysis.statistics.comparison import area_under_curve
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
        >>> from torchrl_dceo.analysis.statistics.comparison import frames_to
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
    zero and to an evaluation return of 0.5; where the environment changes, the adaptation to the (first) change, see
    :class:`~torchrl_dceo.analysis.statistics.learning_speed.Adaptation`, by the first metric that is a return. Agents
    that have finished equally many runs in all of several environments also get a summary over these, stratified by
    environment.

    Args:
        study (mapping of str to AgentRuns): from :func:`~torchrl_dceo.analysis.statistics.comparison.read_study`.
        metrics (sequence of str): columns of the logs.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.
    """
    summaries = [
        _summary(environment, agent, metrics, repetitions)
        for environment, agents in study.items()
        for agent in agents
    ]
    names = dict.fromkeys(summary.agent for summary in summaries)
    over_environments = [[s for s in summaries if s.agent == name] for name in names]
    return summaries + [
        _together(own, metrics, repetitions)
        for own in over_environments
        if len(study) > 1
        and len(own) == len(study)
        and len({summary.finished for summary in own}) == 1
        and own[0].finished
    ]


def _summary(
    environment: str, agent: AgentRuns, metrics: Sequence[str], repetitions: int
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
    return AgentSummary(environment, agent.name, len(runs), len(agent.seeds), measures, aggregates)


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
    """One summary of an agent's returns in several environments; frames and states are not combined."""
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
    return AgentSummary(ALL_ENVIRONMENTS, summaries[0].agent, finished, started, {}, aggregates)


def _rows(progress: Progress, metric: str) -> list[tuple[float, float]]:
    pairs = zip(progress["frames"], progress.get(metric, []), strict=False)
    return [(frame, value) for frame, value in pairs if math.isfinite(value)]
