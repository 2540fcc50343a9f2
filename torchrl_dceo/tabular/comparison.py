"""A comparison of tabular methods: hyperparameter search, runs of many seeds in one batch, and result files."""

from __future__ import annotations

import csv
import itertools
import json
import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_dceo.envs import GridWorldEnv, RubiksCubeEnv, TableEnv
from torchrl_dceo.envs.grid.maps import four_rooms, maze, nine_rooms
from torchrl_dceo.tabular.q_learning import TabularMeasures
from torchrl_dceo.tabular.run import TabularConfig, run_tabular

__all__ = [
    "EPISODE",
    "SEARCH_SEED",
    "Comparison",
    "curve_rows",
    "make_environment",
    "read_rows",
    "report",
    "rounded",
    "run",
    "search",
    "write_rows",
]

EVAL_EPISODES = 5
EPISODE = 100
"""Steps per episode, as in the paper."""
SEARCH_SEED = 1_000_000
"""Seeds of the search, different from the reported ones."""
_DEPTHS = {"cube": 3, "cube5": 5}  # moves from solved; the paper has both
_CURVE_POINTS = 100
_SEARCHED = ("option_prob", "num_options", "bonus_scale")
_log = logging.getLogger(__name__)

Grid = Mapping[str, Sequence[Any]]


def make_environment(
    name: str, batch_size: Sequence[int], seed: int, coverage: bool, slip: float = 0.15
) -> TableEnv:
    """Builds one of the environments, with the paper's slip and episodes of 100 steps.

    Args:
        name (str): ``"nine_rooms"``, ``"maze"``, ``"four_rooms"``, ``"cube"`` (within 3 moves) or ``"cube5"``.
        batch_size (sequence of int): of the environment.
        seed (int): its seed.
        coverage (bool): without reward and goal.
        slip (float): the chance of a random action. Default: ``0.15``.

    Examples:
        >>> from torchrl_dceo.tabular.comparison import make_environment
        >>> make_environment("cube", [2], seed=0, coverage=True).num_states
        385
    """
    settings: dict[str, Any] = {
        "batch_size": batch_size,
        "seed": seed,
        "coverage": coverage,
        "slip": slip,
    }
    if name in _DEPTHS:
        return RubiksCubeEnv(max_depth=_DEPTHS[name], **settings)
    maps = {"nine_rooms": nine_rooms, "maze": maze, "four_rooms": four_rooms}
    return GridWorldEnv(maps[name](), observation="xy", **settings)


@dataclass
class Comparison:
    """The methods, the lengths of their runs, and the criterion of the search.

    Attributes:
        steps (dict of str to int): steps of a run in each environment.
        search_steps (dict of str to int): steps of a run of the search.
        methods (sequence of str): the methods.
        coverage (bool): no reward, ε = 1.
        score (callable): the score of each seed; higher is better.
        grid (callable): the search grid of a method.
        base (callable): the settings of a method in an environment, given the search result.
        found (mapping): the result of a search, by environment and method.
    """

    steps: dict[str, int]
    search_steps: dict[str, int]
    methods: Sequence[str]
    coverage: bool
    score: Callable[[TensorDict], Tensor]
    grid: Callable[[str], Grid]
    base: Callable[[str, str, dict[str, Any]], dict[str, Any]]
    found: Mapping[str, Mapping[str, dict[str, Any]]] = field(default_factory=dict)

    def config(self, method: str, env: str, steps: int, found: dict[str, Any]) -> TabularConfig:
        """The settings of a run."""
        return TabularConfig(total_steps=steps, **self.base(method, env, found))


def run(
    comparison: Comparison,
    method: str,
    env: str,
    configs: Sequence[TabularConfig],
    *,
    seed: int,
    label: str,
    on_step: Callable[[int, TabularMeasures], None] | None = None,
    stop_when_covered: bool = False,
    slip: float = 0.15,
) -> TensorDict:
    """Runs one method in one environment, a config for each seed."""
    torch.manual_seed(seed)
    num, coverage = len(configs), comparison.coverage
    _log.info(label)
    return run_tabular(
        method,  # type: ignore[arg-type]
        make_environment(env, [num], seed, coverage, slip),
        configs,
        discovery_env=make_environment(env, [num], seed + 1, True),
        eval_env=None if coverage else make_environment(env, [num, EVAL_EPISODES], seed + 2, False),
        on_step=on_step,
        stop_when_covered=stop_when_covered,
    )


def search(
    comparison: Comparison, envs: Sequence[str], methods: Sequence[str], num_seeds: int, out: Path
) -> None:
    """Runs the grid search of each method in each environment; all settings have the same seeds and run in one batch.

    Writes ``search.csv`` (one row per setting) and ``settings.json`` (the best per method and environment).
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = read_rows(out / "search.csv")
    for env, method in itertools.product(envs, methods):
        grid = comparison.grid(method)
        names = list(grid)
        combinations = list(itertools.product(*grid.values()))
        if not names:
            continue
        steps = comparison.search_steps[env]
        configs = [
            comparison.config(method, env, steps, dict(zip(names, values, strict=True)))
            for values in combinations
            for _ in range(num_seeds)
        ]
        label = f"search · {env} · {method}: {len(combinations)} settings x {num_seeds} seeds"
        result = run(comparison, method, env, configs, seed=SEARCH_SEED, label=label)
        scores = comparison.score(result).view(len(combinations), num_seeds)
        rows = _without(rows, env, method)
        for values, score in zip(combinations, scores, strict=True):
            rows.append(
                {
                    "environment": env,
                    "method": method,
                    **dict.fromkeys(_SEARCHED, ""),
                    **dict(zip(names, values, strict=True)),
                    "seeds": num_seeds,
                    "steps": steps,
                    "score_mean": rounded(score.mean()),
                    "score_std": rounded(score.std()),
                }
            )
        write_rows(out / "search.csv", rows)
        _write_settings(out, rows)


def _write_settings(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The best setting of each environment and method."""
    best: dict[str, dict[str, Any]] = {}
    top: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row["environment"], row["method"])
        if float(row["score_mean"]) > top.get(key, -math.inf):
            top[key] = float(row["score_mean"])
            numbers = {n: row[n] for n in _SEARCHED}
            best.setdefault(key[0], {})[key[1]] = {
                n: int(v) if n == "num_options" else float(v) for n, v in numbers.items() if v != ""
            }
    (out / "settings.json").write_text(json.dumps(best, indent=2) + "\n")


def report(
    comparison: Comparison,
    envs: Sequence[str],
    methods: Sequence[str],
    num_seeds: int,
    out: Path,
    *,
    length: int | None = None,
    visits: dict[tuple[str, str], Tensor] | None = None,
) -> None:
    """Runs every method in every environment with the best settings, and writes ``curves.csv`` and ``table.csv``.

    Args:
        comparison (Comparison): the comparison.
        envs (sequence of str): the environments.
        methods (sequence of str): the methods.
        num_seeds (int): seeds of each method and environment.
        out (Path): the folder of the files; a ``settings.json`` in it overrides ``comparison.found``.

    Keyword Args:
        length (int, optional): steps of a run. Default: the comparison's.
        visits (dict, optional): filled with the visits of each environment and method after 100 episodes.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / "settings.json"
    settings = json.loads(path.read_text()) if path.is_file() else comparison.found
    for env, method in itertools.product(envs, methods):
        steps = comparison.steps[env] if length is None else length
        found = settings.get(env, {}).get(method, {})
        config = comparison.config(method, env, steps, found)

        def look(
            step: int, measures: TabularMeasures, key: tuple[str, str] = (env, method)
        ) -> None:
            if visits is not None and step == 100 * EPISODE:
                visits[key] = measures.counts.clone()

        label = f"{env} · {method} {found or ''}: {num_seeds} seeds, {steps} steps"
        configs = [config] * num_seeds
        result = run(comparison, method, env, configs, seed=0, label=label, on_step=look)
        _keep(out, env, method, comparison, result, found)


def _keep(
    out: Path,
    env: str,
    method: str,
    comparison: Comparison,
    result: TensorDict,
    used: Mapping[str, Any],
) -> None:
    """Replaces a run's curve and its row of the table."""
    names = ["coverage"] if comparison.coverage else ["train_return", "eval_return", "coverage"]
    curves = _without(read_rows(out / "curves.csv"), env, method)
    window = max(
        1, len(result["frames"]) // _CURVE_POINTS
    )  # rows of the result per row of the file
    for i in curve_rows(result):
        row = {"environment": env, "method": method, "frames": int(result["frames"][i])}
        for name in names:
            since = result[name][max(0, i - window + 1) : i + 1].double()
            # Coverage is the value at this time; a return is the mean since the last row of the file.
            value = since[-1] if name == "coverage" else since.nanmean(0)
            row[f"{name}_mean"] = rounded(value.nanmean())
            row[f"{name}_std"] = rounded(_nanstd(value))
        row["seeds"] = result["coverage"].shape[1]
        curves.append(row)
    write_rows(out / "curves.csv", curves)
    line = {"environment": env, "method": method, **_summary(comparison, result)}
    table = _without(read_rows(out / "table.csv"), env, method)
    write_rows(out / "table.csv", [*table, {**line, "settings": json.dumps(used)}])


def _without(rows: Sequence[dict[str, Any]], env: str, method: str) -> list[dict[str, Any]]:
    return [row for row in rows if (row["environment"], row["method"]) != (env, method)]


def curve_rows(result: TensorDict) -> range:
    """The rows of a result for the file."""
    step = max(1, len(result["frames"]) // _CURVE_POINTS)
    return range(step - 1, len(result["frames"]), step)


def _summary(comparison: Comparison, result: TensorDict) -> dict[str, Any]:
    """A method's row of the table: final values and areas under the curve, mean and std over seeds."""
    row: dict[str, Any] = {}
    numbers = {"coverage": result["coverage"][-1].double(), "score": comparison.score(result)}
    if comparison.coverage:
        numbers["coverage_after_100_episodes"] = result["coverage"][:100][-1].double()
        steps = result["covered_at"].double()
        row["seeds_that_covered_all"] = int((steps >= 0).sum())
        # Not torch's median, which is the lower of the two middle values.
        median = statistics.median(torch.where(steps < 0, torch.inf, steps).tolist())
        row["median_steps_to_cover_all"] = round(median, 4)
    else:
        last = result["eval_return"][len(result["frames"]) * 9 // 10 :]
        numbers["final_eval_return"] = last.nanmean(0)
        numbers["mean_eval_return"] = result["eval_return"].nanmean(0)
        row["seeds_that_solved"] = int((last.nanmean(0) > 0.5).sum())
    for name, values in numbers.items():
        row[f"{name}_mean"], row[f"{name}_std"] = rounded(values.mean()), rounded(values.std())
    return row


def _nanstd(values: Tensor) -> Tensor:
    """The standard deviation of the values that are not NaN."""
    there = values[~values.isnan()]
    return there.std() if len(there) > 1 else torch.tensor(float("nan"))


def rounded(value: Tensor) -> float:
    """Rounds to four digits, to keep the CSV small."""
    return round(float(value), 4)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file; empty if there is none."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a CSV file."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
