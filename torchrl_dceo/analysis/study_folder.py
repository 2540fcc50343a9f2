"""Logs of many runs in one folder: ``<study>/<world>/<agent>/seed_<k>.csv``."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from torchrl_dceo.analysis.curves import Progress, read_progress
from torchrl_dceo.analysis.style import agent_colours

__all__ = ["AgentRuns", "collect_run", "log_in_study", "read_study"]

_KEPT = re.compile(
    "frames|updates|episodes|phase|map|eps|seconds|train_return|eval_return|coverage|loss_.*|bonus|option_share|option_starts_.*"
    "|option_climb|option_climb_start|option_return|cosine_similarity|subspace_similarity|orthogonality_error"
)
_WHOLE = {"frames", "updates", "episodes", "phase", "map", "coverage"}
_LARGEST = 40_000  # bytes
# What may differ between runs of one agent.
_FREE = {"seed", "run_dir", "resume", "progress", "checkpoint_period", "keep_checkpoints", "logger"}


@dataclass(frozen=True)
class AgentRuns:
    """The runs of an agent in a world.

    Attributes:
        name (str): the agent, or what its folder is called.
        seeds (dict of int to Progress): the log of each seed.
        total_frames (float): how long a run is, by ``config.yaml``; without one, as long as the longest.
        size (str): the world and what is said of its size in ``config.yaml``, such as ``"NineRooms, room_size 3"``.
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
        folder (path-like): it holds ``<world>/<agent>/seed_<k>.csv``.

    Returns:
        dict of str to list of AgentRuns: for each world its agents, those of the package first.

    Raises:
        FileNotFoundError: if there are no logs in this layout.

    Examples:
        >>> from torchrl_dceo.analysis.study_folder import read_study
        >>> read_study("/nowhere")
        Traceback (most recent call last):
        FileNotFoundError: /nowhere holds no logs as <world>/<agent>/seed_<k>.csv: see compare collect
    """
    study: dict[str, dict[str, dict[int, Progress]]] = {}
    for path in sorted(Path(folder).glob("*/*/seed_*.csv")):
        seed = re.fullmatch(r"seed_(\d+)", path.stem)
        if seed:
            world = study.setdefault(path.parts[-3], {})
            world.setdefault(path.parts[-2], {})[int(seed[1])] = read_progress(path)
    if not study:
        raise FileNotFoundError(
            f"{folder} holds no logs as <world>/<agent>/seed_<k>.csv: see compare collect"
        )
    return {
        world: [
            _agent_runs(Path(folder) / world / name, agents[name]) for name in agent_colours(agents)
        ]
        for world, agents in study.items()
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
    seeds: a run with other settings is refused, but for the seed and for what does not change its numbers.

    Args:
        run_dir (path-like): the run's directory.
        out (path-like): the folder of the world in the study.
        name (str, optional): the folder of the agent; variants of an agent need one. Default: the agent's name.

    Returns:
        Path: the copy, ``<out>/<agent>/seed_<k>.csv``.
    """
    target, progress = log_in_study(run_dir, out, name), read_progress(run_dir)
    folder = target.parent
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "config.yaml").is_file():
        difference = _difference(_config(folder), _config(Path(run_dir)))
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
        raise ValueError(f"{path} does not say agent and seed")
    return config


def _agent_runs(folder: Path, seeds: dict[int, Progress]) -> AgentRuns:
    if not (folder / "config.yaml").is_file():
        return AgentRuns(folder.name, seeds, max(run["frames"][-1] for run in seeds.values()))
    config = _config(folder)
    env = config.get("env") or {}
    numbers = [f"{key} {value}" for key, value in env.items() if type(value) is int]
    size = ", ".join([str(env["name"]), *numbers]) if "name" in env else ""
    return AgentRuns(folder.name, seeds, float(config["total_frames"]), size)


def _difference(first: Any, second: Any, prefix: str = "") -> str | None:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(key for key in second if key not in first)]:
            if not prefix and key in _FREE:
                continue
            found = _difference(first.get(key), second.get(key), f"{prefix}{key}.")
            if found:
                return found
        return None
    return None if first == second else f"{prefix[:-1]} is {second!r} and was {first!r}"


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
