"""Learned against exact eigenfunctions: ``python recipes/representation.py map=GridRoom16 objectives=[allo]``."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchrl_dceo._fast.process import tune_process
from torchrl_dceo.analysis.figures.representation import draw_comparison, draw_similarity_curves
from torchrl_dceo.cli.config import MISTAKES, as_dict, combinations, compose
from torchrl_dceo.cli.train import launch
from torchrl_dceo.envs.grid.maps import find_map
from torchrl_dceo.settings import from_settings
from torchrl_dceo.studies.experiments.representation import (
    OBJECTIVES,
    LearnedRepresentation,
    RepresentationConfig,
    learn_representation,
)
from torchrl_dceo.training.logging.logs import CSVLog
from torchrl_dceo.typos import choices

_OWN = {"objectives", "seeds", "run_dir"}
_LABELS = {
    "graph_drawing": "graph drawing",
    "generalized": "generalized",
    "generalized_log1p": "generalized, log1p",
    "allo": "ALLO",
}


def check_values(settings: dict[str, Any]) -> None:
    """Says in one sentence which setting cannot be."""
    for name in settings["objectives"]:
        if name not in OBJECTIVES:
            raise ValueError(f"objectives holds {choices(str(name), list(OBJECTIVES))}")
    if not settings["objectives"] or not settings["seeds"]:
        raise ValueError("objectives and seeds must each hold at least one entry")
    find_map(settings["map"])
    _configs(settings)


def check(overrides: list[str]) -> None:
    """Ends the program with one sentence for a mistake."""
    try:
        for combination in combinations(overrides):
            check_values(compose(combination, "representation"))
    except MISTAKES as error:
        sys.exit(f"representation: {str(error).strip().splitlines()[0]}")


def _configs(settings: dict[str, Any]) -> list[RepresentationConfig]:
    shared = {key: value for key, value in settings.items() if key not in _OWN}
    return [
        from_settings(RepresentationConfig, {**shared, "objective": objective, "seed": seed})
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
        _draw(run_dir, results)
    return min(result.rows[-1]["cosine"] for each in results.values() for result in each)


def _rounded(row: dict[str, float]) -> dict[str, float]:
    return {key: value if key == "step" else float(f"{value:.5g}") for key, value in row.items()}


def _summarise(run_dir: Path, results: dict[str, list[LearnedRepresentation]]) -> None:
    first = next(iter(results.values()))[0]
    gaps = first.eigenvalues.diff().tolist()
    with (run_dir / "spectrum.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["i", "eigenvalue", "gap_to_next"])
        for i, value in enumerate(first.eigenvalues.tolist()):
            gap = f"{gaps[i]:.6f}" if i < len(gaps) else ""
            writer.writerow([i + 1, f"{abs(value):.6f}", gap])
    with (run_dir / "summary.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        columns = ("cosine", "subspace_cosine", "span", "orthogonality_error", "data_limit")
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
    launch(sys.argv[1:], "representation", run, "representation", check)
