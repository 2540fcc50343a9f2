"""What the tabular studies share: their worlds, the search for settings, running, and the files they leave."""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_dceo.envs import GridWorldEnv, RubiksCubeEnv, TableEnv
from torchrl_dceo.envs.grid.maps import four_rooms, maze, nine_rooms
from torchrl_dceo.tabular import TabularConfig, run_tabular
from torchrl_dceo.tabular.q_learning import TabularMeasures
from torchrl_dceo.training.logging.metrics import ProgressLine

MIXING = (0.05, 0.1, 0.5, 0.7)  # μ; the paper's search
OPTION_SETS = (1, 3, 5)  # the paper's search
BONUS_SCALES = (1e-4, 1e-3, 1e-2, 0.1, 1.0)  # β; the paper's search
EVAL_EPISODES = 5
DEPTHS = {"cube": 3, "cube5": 5}  # moves from solved; the paper has both
EPISODE = 100  # steps; the paper
SEARCH_SEED = 1_000_000  # far from the seeds that are reported

Grid = Mapping[str, Sequence[Any]]


def make_world(
    name: str, batch_size: Sequence[int], seed: int, coverage: bool, slip: float = 0.15
) -> TableEnv:
    """One of the study's worlds, with the paper's slip and episodes of 100 steps."""
    settings: dict[str, Any] = {
        "batch_size": batch_size,
        "seed": seed,
        "coverage": coverage,
        "slip": slip,
    }
    if name in DEPTHS:
        return RubiksCubeEnv(max_depth=DEPTHS[name], **settings)
    maps = {"nine_rooms": nine_rooms, "maze": maze, "four_rooms": four_rooms}
    return GridWorldEnv(maps[name](), observation="xy", **settings)


@dataclass
class Study:
    """Which methods run where, for how long, and what their settings are chosen by."""

    name: str
    steps: dict[str, int]  # of each world
    search_steps: dict[str, int]
    methods: Sequence[str]
    coverage: bool  # no reward, ε = 1
    score: Callable[[TensorDict], Tensor]  # of each seed, the higher the better
    grid: Callable[[str], Grid]  # what is searched for a method
    base: Callable[[str, dict[str, Any]], dict[str, Any]]  # settings of a method, from those found

    def config(self, method: str, world: str, steps: int, found: dict[str, Any]) -> TabularConfig:
        """The settings of a run."""
        return TabularConfig(total_steps=steps, **self.base(method, {"world": world, **found}))


def study_parser(study: Study, page: str, search_seeds: int) -> argparse.ArgumentParser:
    """The command line of a study: what to run of it, on how many seeds, and where its files are."""
    parser = argparse.ArgumentParser(description=page.splitlines()[0])
    worlds, methods = list(study.steps), list(study.methods)
    parser.add_argument("--worlds", nargs="+", choices=worlds, default=worlds)
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--search", action="store_true", help="search the settings instead")
    parser.add_argument("--search-seeds", type=int, default=search_seeds)
    parser.add_argument("--steps", type=int, help="of a run, instead of the study's own")
    parser.add_argument("--settings", type=Path, help="what a search found, if not beside --out")
    parser.add_argument("--draw", action="store_true", help="only draw what is there")
    parser.add_argument("--out", type=Path, default=Path("results") / study.name)
    return parser


def run(
    study: Study,
    method: str,
    world: str,
    configs: Sequence[TabularConfig],
    *,
    seed: int,
    label: str,
    at: Callable[[int, TabularMeasures], None] | None = None,
    stop_when_covered: bool = False,
    slip: float = 0.15,
) -> TensorDict:
    """One method in one world, a config for each seed."""
    torch.manual_seed(seed)
    num = len(configs)
    bar = ProgressLine(configs[0].total_steps)

    def on_step(steps: int, measures: TabularMeasures) -> None:
        if at is not None:
            at(steps, measures)
        if steps % 100 == 0:
            row = measures.last_row
            shown = {"coverage": float(measures.coverage.double().mean())}
            if row and not study.coverage:
                shown["return"] = float(row["train_return"].nanmean())
            bar.update(steps, shown, force=steps == configs[0].total_steps)

    print(label, flush=True)
    result = run_tabular(
        method,  # type: ignore[arg-type]
        make_world(world, [num], seed, study.coverage, slip),
        configs,
        discovery_env=make_world(world, [num], seed + 1, True),
        eval_env=None
        if study.coverage
        else make_world(world, [num, EVAL_EPISODES], seed + 2, False),
        on_step=on_step,
        stop_when_covered=stop_when_covered,
    )
    bar.close()
    return result


def search(
    study: Study, worlds: Sequence[str], methods: Sequence[str], num_seeds: int, out: Path
) -> None:
    """Tries the whole grid of each method in each world, every setting with the same number of seeds, in one batch.

    Writes ``search.csv`` (a row a setting) and ``settings.json`` (the best of each method and world).
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = read_rows(out / "search.csv")
    for world, method in itertools.product(worlds, methods):
        grid = study.grid(method)
        names = list(grid)
        combinations = list(itertools.product(*grid.values()))
        if not names:
            continue
        steps = study.search_steps[world]
        configs = [
            study.config(method, world, steps, dict(zip(names, values, strict=True)))
            for values in combinations
            for _ in range(num_seeds)
        ]
        label = f"search · {world} · {method}: {len(combinations)} settings x {num_seeds} seeds"
        result = run(study, method, world, configs, seed=SEARCH_SEED, label=label)
        scores = study.score(result).view(len(combinations), num_seeds)
        rows = [r for r in rows if (r["world"], r["method"]) != (world, method)]
        for values, score in zip(combinations, scores, strict=True):
            rows.append(
                {
                    "world": world,
                    "method": method,
                    **dict.fromkeys(("option_prob", "num_options", "bonus_scale"), ""),
                    **dict(zip(names, values, strict=True)),
                    "seeds": num_seeds,
                    "steps": steps,
                    "score_mean": round(float(score.mean()), 4),
                    "score_std": round(float(score.std()), 4),
                }
            )
        write_rows(out / "search.csv", rows)
        write_settings(out, rows)


def write_settings(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The best setting of each world and method."""
    best: dict[str, dict[str, Any]] = {}
    top: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row["world"], row["method"])
        if float(row["score_mean"]) > top.get(key, -math.inf):
            top[key] = float(row["score_mean"])
            numbers = {n: row[n] for n in ("option_prob", "num_options", "bonus_scale")}
            best.setdefault(key[0], {})[key[1]] = {
                n: int(v) if n == "num_options" else float(v) for n, v in numbers.items() if v != ""
            }
    (out / "settings.json").write_text(json.dumps(best, indent=2) + "\n")


def read_settings(out: Path) -> dict[str, dict[str, Any]]:
    """What the search found, empty if there was none."""
    path = out / "settings.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def report(
    study: Study,
    worlds: Sequence[str],
    methods: Sequence[str],
    num_seeds: int,
    out: Path,
    visits: dict[tuple[str, str], Tensor] | None = None,
    *,
    length: int | None = None,
    found_in: Path | None = None,
) -> None:
    """Runs every method in every world with the settings found, and writes ``curves.csv`` and ``table.csv``.

    ``visits`` is filled with the visits of the first seed after 100 episodes. ``length`` is that of a run, if not the
    study's; ``found_in`` the ``settings.json`` of a search, if it is not in ``out``.
    """
    out.mkdir(parents=True, exist_ok=True)
    if found_in is not None:
        shutil.copyfile(found_in, out / "settings.json")
    settings = read_settings(out)
    began, worked = time.monotonic(), time.process_time()
    for world, method in itertools.product(worlds, methods):
        steps = study.steps[world] if length is None else length
        found = settings.get(world, {}).get(method, {})
        config = study.config(method, world, steps, found)
        seen: list[Tensor] = []

        def look(step: int, measures: TabularMeasures, seen: list[Tensor] = seen) -> None:
            if step == 100 * EPISODE:
                seen.append(measures.counts.clone())

        label = f"{world} · {method} {found or ''}: {num_seeds} seeds, {steps} steps"
        result = run(study, method, world, [config] * num_seeds, seed=0, label=label, at=look)
        if visits is not None and seen:
            visits[world, method] = seen[0]
        keep(out, world, method, study, result, found)
    minutes = [(time.monotonic() - began) / 60, (time.process_time() - worked) / 60]
    print("{:.1f} minutes, {:.1f} of processor time".format(*minutes), flush=True)


def keep(
    out: Path, world: str, method: str, study: Study, result: TensorDict, used: Mapping[str, Any]
) -> None:
    """Puts a run's curve and its line of the table in the place of older ones."""
    names = ["coverage"] if study.coverage else ["train_return", "eval_return", "coverage"]
    curves = [
        r for r in read_rows(out / "curves.csv") if (r["world"], r["method"]) != (world, method)
    ]
    for i in curve_rows(result, study):
        row = {"world": world, "method": method, "frames": int(result["frames"][i])}
        for name in names:
            window = result[name][max(0, i - rows_in_window(result, study) + 1) : i + 1].double()
            # Coverage is a state of affairs; a return is the mean since the last row of the file.
            value = window[-1] if name == "coverage" else window.nanmean(0)
            row[f"{name}_mean"] = rounded(value.nanmean())
            row[f"{name}_std"] = rounded(nanstd(value))
        row["seeds"] = result["coverage"].shape[1]
        curves.append(row)
    write_rows(out / "curves.csv", curves)
    table = [
        r for r in read_rows(out / "table.csv") if (r["world"], r["method"]) != (world, method)
    ]
    table.append(
        {"world": world, "method": method, **summary(study, result), "settings": json.dumps(used)}
    )
    write_rows(out / "table.csv", table)


CURVE_POINTS = 100


def rows_in_window(result: TensorDict, study: Study) -> int:
    """How many rows of the result become one of the file."""
    return max(1, len(result["frames"]) // CURVE_POINTS)


def curve_rows(result: TensorDict, study: Study) -> range:
    """The rows of the result that the file keeps."""
    step = rows_in_window(result, study)
    return range(step - 1, len(result["frames"]), step)


def summary(study: Study, result: TensorDict) -> dict[str, Any]:
    """A method's line of the table: final numbers and areas under the curve, mean and std over seeds."""
    row: dict[str, Any] = {}
    numbers = {"coverage": result["coverage"][-1].double(), "score": study.score(result)}
    if study.coverage:
        numbers["coverage_after_100_episodes"] = result["coverage"][:100][-1].double()
        steps = result["covered_at"].double()
        row["seeds_that_covered_all"] = int((steps >= 0).sum())
        row["median_steps_to_cover_all"] = rounded(
            torch.where(steps < 0, torch.inf, steps).median()
        )
    else:
        last = result["eval_return"][len(result["frames"]) * 9 // 10 :]
        numbers["final_eval_return"] = last.nanmean(0)
        numbers["mean_eval_return"] = result["eval_return"].nanmean(0)
        row["seeds_that_solved"] = int((last.nanmean(0) > 0.5).sum())
    for name, values in numbers.items():
        row[f"{name}_mean"], row[f"{name}_std"] = rounded(values.mean()), rounded(values.std())
    return row


def nanstd(values: Tensor) -> Tensor:
    """The standard deviation of what is there."""
    there = values[~values.isnan()]
    return there.std() if len(there) > 1 else torch.tensor(float("nan"))


def rounded(value: Tensor) -> float:
    """Four digits after the point: a CSV stays small."""
    return round(float(value), 4)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """A CSV file's rows, none if there is no file."""
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
