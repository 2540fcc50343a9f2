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
    parser.add_argument("--steps", type=int, help="updates; default: the recipe's")
    parser.add_argument("--figure", type=Path, help="draw the table instead of adding to it")
    options = parser.parse_args()
    if options.figure is not None:
        draw(options.out, options.figure)
        return
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
                    row = run(text, observation, objective, seed, options.steps)
                    append(options.out, {"map": name, "kind": kind, **row})
                    print(name, *row.values(), flush=True)


def run(
    text: str, observation: str, objective: str, seed: int, steps: int | None = None
) -> dict[str, object]:
    """One map, with the defaults of the recipe."""
    config = RepresentationConfig(
        map=text, observation=observation, objective=objective, seed=seed, steps=steps
    )
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
        "steps": config.steps,
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


def draw(table: Path, figure: Path) -> None:
    """A point a map: as learned, after Ritz, and the limit of the data, over the number of states."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with table.open() as file:
        rows = list(csv.DictReader(file))
    panels = sorted({(row["observation"], row["objective"]) for row in rows}, reverse=True)
    drawn, axes = plt.subplots(
        1, len(panels), figsize=(5.2 * len(panels), 3.6), squeeze=False, sharey=True
    )
    shown = (
        ("cosine", "as learned, each function", "o", "tab:gray"),
        ("ritz_cluster_cosine", "after Ritz, subspaces", "s", "tab:blue"),
        ("data_cluster_limit", "limit of the data, subspaces", "_", "tab:red"),
    )
    for axis, panel in zip(axes[0], panels, strict=True):
        own = [row for row in rows if (row["observation"], row["objective"]) == panel]
        states = [int(row["states"]) for row in own]
        for column, label, marker, colour in shown:
            values = [1 - float(row[column]) for row in own]
            axis.scatter(states, values, marker=marker, color=colour, label=label)
        axis.set(xscale="log", yscale="log", xlabel="states of the map", title=", ".join(panel))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("1 - |cos|, mean over d = 11")
    axes[0][0].legend(fontsize=8)
    drawn.tight_layout()
    drawn.savefig(figure, dpi=110)


if __name__ == "__main__":
    main()
