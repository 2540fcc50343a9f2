"""Learned against exact eigenfunctions: ``python recipes/representation.py map=my_map.txt``, or a map's name."""

from __future__ import annotations

import csv
import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from launch import as_dict, check_dataclass, main
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchrl_dceo._fast.process import tune_process
from torchrl_dceo.agents import choices
from torchrl_dceo.analysis.figures.representation import draw_comparison, draw_similarity_curves
from torchrl_dceo.envs.grid.maps import find_map
from torchrl_dceo.studies.experiments.representation import (
    OBJECTIVES,
    LearnedRepresentation,
    RepresentationConfig,
    learn_representation,
)
from torchrl_dceo.training.logging.logs import CSVLog

_DETERMINED = 0.95  # |cos| of the data's optimum with an eigenfunction that the data hold
_OWN = {"objectives", "seeds", "run_dir"}
_LABELS = {
    "graph_drawing": "graph drawing",
    "generalized": "generalized",
    "generalized_log1p": "generalized, log1p",
    "allo": "ALLO",
    "omm": "OMM",
}


def check_values(settings: dict[str, Any]) -> None:
    """Says in one sentence which setting cannot be."""
    for name in settings["objectives"]:
        if name not in OBJECTIVES:
            raise ValueError(f"objectives holds {choices(str(name), list(OBJECTIVES))}")
    if not settings["objectives"] or not settings["seeds"]:
        raise ValueError("objectives and seeds must each hold at least one entry")
    shared = {key: value for key, value in settings.items() if key not in _OWN}
    check_dataclass(RepresentationConfig, shared, "")
    find_map(settings["map"])
    for config in _configs(settings):
        dataclasses.replace(config)


def _configs(settings: dict[str, Any]) -> list[RepresentationConfig]:
    shared = {key: value for key, value in settings.items() if key not in _OWN}
    return [
        RepresentationConfig(**shared, objective=objective, seed=seed)
        for objective in settings["objectives"]
        for seed in settings["seeds"]
    ]


def run(config: DictConfig) -> float:
    """Trains every objective with every seed, writes and draws; returns the worst last cosine."""
    tune_process()
    settings = as_dict(config)
    run_dir = Path(config.run_dir or HydraConfig.get().runtime.output_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, run_dir / "config.yaml")
    (run_dir / "progress.csv").unlink(missing_ok=True)
    log = CSVLog(run_dir / "progress.csv")
    results: dict[str, list[LearnedRepresentation]] = {}
    for one in _configs(settings):
        names = {"objective": one.objective, "seed": one.seed}
        try:
            result = learn_representation(
                one, report=lambda row, names=names: log.write({**names, **_rounded(row)})
            )
        except ValueError as error:
            sys.exit(f"representation: {error}")
        results.setdefault(one.objective, []).append(result)
        # Drawn and summed up after every run: a run that is stopped leaves what it has.
        _summarise(run_dir, results)
        sys.stdout.write(f"\n{_LABELS[one.objective]}, seed {one.seed}\n{describe(result)}\n")
        _draw(run_dir, results)
    measured = "cosine" if config.ritz == "none" else "ritz_cosine"
    return min(result.rows[-1][measured] for each in results.values() for result in each)


def describe(result: LearnedRepresentation) -> str:
    """What was found, in plain numbers: eigenvalues, cosines, and what the data leave open."""
    last, d = result.rows[-1], len(result.eigenvalues)
    lines = ["  i  exact λ   λ of the pairs      learned λ  |cos|  of the data's optimum"]
    errors = [0.0] * d if result.ritz is None else result.ritz.standard_errors.tolist()
    for i in range(d):
        pairs = "" if result.data is None else f"{abs(float(result.data.eigenvalues[i])):.5f}"
        lines.append(
            f"{i + 1:3d}  {abs(float(result.eigenvalues[i])):.5f}  {pairs:>14s}  "
            f"{abs(last[f'ritz_eigenvalue_{i + 1}']):.5f} ± {errors[i]:.5f}  "
            f"{last[f'ritz_cosine_{i + 1}']:.4f}  {float(result.data_cosines[i]):.4f}"
        )
    lines.append(
        f"mean |cos| {last['ritz_cosine']:.4f}; with eigenvalues within 10 % as one subspace "
        f"{last['ritz_cluster_cosine']:.4f}, worst {last['ritz_cluster_worst']:.4f}, "
        f"the data's own limit {last.get('data_cluster_limit', math.nan):.4f}; before Rayleigh-Ritz "
        f"{last['cosine']:.4f}, span {last['span']:.4f}"
    )
    for first, end in result.clusters:
        inside = range(first, min(end, d))
        open_ones = [i + 1 for i in inside if result.data_cosines[i] < _DETERMINED]
        if open_ones:
            where = f"{first + 1} to {end}" if end - first > 1 else f"{first + 1}"
            beyond = f" ({end - d} of them beyond d = {d})" if end > d else ""
            lines.append(
                f"not determined by the data one by one: {open_ones}, of the subspace {where}{beyond}"
            )
    return "\n".join(lines)


def _rounded(row: dict[str, float]) -> dict[str, float]:
    return {key: value if key == "step" else float(f"{value:.5g}") for key, value in row.items()}


def _summarise(run_dir: Path, results: dict[str, list[LearnedRepresentation]]) -> None:
    first = next(iter(results.values()))[0]
    gaps = first.eigenvalues.diff().tolist()
    with (run_dir / "spectrum.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["i", "eigenvalue", "gap_to_next", "of_the_pairs", "learned", "cosine"])
        for i, value in enumerate(first.eigenvalues.tolist()):
            gap = f"{gaps[i]:.6f}" if i < len(gaps) else ""
            pairs = "" if first.data is None else f"{abs(float(first.data.eigenvalues[i])):.6f}"
            last = first.rows[-1]
            learned, cosine = last[f"ritz_eigenvalue_{i + 1}"], last[f"ritz_cosine_{i + 1}"]
            row = [i + 1, f"{abs(value):.6f}", gap, pairs, f"{abs(learned):.6f}", f"{cosine:.4f}"]
            writer.writerow(row)
    with (run_dir / "summary.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        columns = (
            "ritz_cosine",
            "ritz_cluster_cosine",
            "data_cluster_limit",
            "cosine",
            "subspace_cosine",
            "span",
            "orthogonality_error",
            "data_limit",
        )
        head = [f"{column}_{kind}" for column in columns for kind in ("mean", "worst")]
        writer.writerow(["objective", "seeds", *head, "seconds_mean"])
        for name, each in results.items():
            last = [result.rows[-1] for result in each]
            row: list[Any] = [name, len(last)]
            for column in columns:
                values = [end[column] for end in last if column in end]
                worst = max if column == "orthogonality_error" else min
                row += [f"{_mean(values):.4f}", f"{worst(values):.4f}"] if values else ["", ""]
            writer.writerow([*row, f"{_mean([end['seconds'] for end in last]):.1f}"])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _draw(run_dir: Path, results: dict[str, list[LearnedRepresentation]]) -> None:
    first = next(iter(results.values()))[0]
    learned: dict[str, Tensor] = {_LABELS[k]: each[0].learned for k, each in results.items()}
    figure = draw_comparison(first.world.layout, first.exact, learned, first.eigenvalues)
    figure.savefig(run_dir / "eigenfunctions.png")
    curves = {
        _LABELS[name]: [
            {key: [row[key] for row in result.rows] for key in ("step", "cosine", "span")}
            for result in each
        ]
        for name, each in results.items()
    }
    draw_similarity_curves(curves).savefig(run_dir / "curves.png")


if __name__ == "__main__":
    main("representation", run, check_values)
