"""Learned against exact eigenfunctions on maps that no setting was chosen on: every objective, with and without Ritz.

One line a run, as it ends, to ``--out``; a run that is there already is not repeated. One core::

    python benchmarks/spectra.py --out results/spectra/random_maps.csv --seeds 1000:1020 --observations xy pixels
    python benchmarks/spectra.py --maps my_map.txt --objectives graph_drawing
"""

from __future__ import annotations

import argparse
import csv
import logging
import time
from pathlib import Path

import torch

from torchrl_dceo.envs.grid.random_maps import random_map
from torchrl_dceo.studies.experiments.representation import (
    OBJECTIVES,
    RepresentationConfig,
    learn_representation,
)

KINDS = ("rooms", "maze", "cave")
COLUMNS = [
    "map",
    "kind",
    "states",
    "observation",
    "objective",
    "lambda_d",
    "cosine",
    "cluster_cosine",
    "span",
    "ritz_cosine",
    "ritz_cluster_cosine",
    "ritz_cluster_worst",
    "data_cluster_limit",
    "collapsed",
    "steps",
    "seconds",
]


def main() -> None:
    """Runs what is asked for and not yet there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("spectra.csv"))
    parser.add_argument("--seeds", default="", help="first:last+1 of the generator of maps")
    parser.add_argument("--maps", nargs="*", default=[], help="names or files of maps")
    parser.add_argument("--observations", nargs="*", default=["xy"])
    parser.add_argument("--objectives", nargs="*", default=list(OBJECTIVES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("torchrl_dceo").setLevel(logging.ERROR)
    maps: dict[str, tuple[str, str, int]] = {
        name: ("given", name, 0) for name in map(str, options.maps)
    }
    if options.seeds:
        first, end = map(int, options.seeds.split(":"))
        for seed in range(first, end):
            kind = KINDS[seed % 3]
            maps[f"random {seed}"] = (kind, random_map(seed, kind), seed)
    done = set()
    if options.out.exists():
        with options.out.open() as file:
            done = {(r["map"], r["observation"], r["objective"]) for r in csv.DictReader(file)}
    for observation in options.observations:
        for objective in options.objectives:
            for name, (kind, text, seed) in maps.items():
                if (name, observation, objective) not in done:
                    row = run(text, observation, objective, seed)
                    append(options.out, {"map": name, "kind": kind, **row})


def run(text: str, observation: str, objective: str, seed: int) -> dict[str, object]:
    """One map, with the defaults of the recipe."""
    config = RepresentationConfig(map=text, observation=observation, objective=objective, seed=seed)
    start = time.process_time()
    result = learn_representation(config)
    seconds = time.process_time() - start
    last = result.rows[-1]
    moments = result.as_learned_moments
    numbers = {
        "states": result.world.num_states,
        "observation": observation,
        "objective": objective,
        "lambda_d": float(result.eigenvalues[-1]),
        "collapsed": int((moments < 0.02 * moments.max()).sum()),
        "steps": config.num_steps,
        "seconds": round(seconds, 1),
    }
    kept = {key: last[key] for key in COLUMNS if key in last and key not in numbers}
    return {**numbers, **kept}


def append(path: Path, row: dict[str, object]) -> None:
    """Adds a line to a table, and its head to a new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(
            {k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items() if k in COLUMNS}
        )


if __name__ == "__main__":
    main()
