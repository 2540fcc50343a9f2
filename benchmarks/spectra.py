"""Learned against exact eigenfunctions on maps not used for any setting: every objective, with and without Ritz.

Every finished run appends a row to ``--out``; runs already in the file are skipped. One core::

    python benchmarks/spectra.py --out results/spectra/random_maps.csv --seeds 2000:2020 --observations xy pixels
    python benchmarks/spectra.py --maps my_map.txt my_table.npy EscapeRoom RubiksCube3 --objectives graph_drawing
    python benchmarks/spectra.py --maps NineRooms --starts one --measures visits distinct
    python benchmarks/spectra.py --out results/spectra/random_maps.csv --table
"""

from __future__ import annotations

import argparse
import csv
import logging
import time
from itertools import product
from pathlib import Path
from statistics import median

import torch

from torchrl_dceo.studies.experiments.representation import (
    OBJECTIVES,
    RepresentationConfig,
    learn_representation,
)

KINDS = ("rooms", "maze", "cave")
RUN = ("map", "observation", "objective", "starts", "measure")
COLUMNS = [
    "map",
    "kind",
    "states",
    "observation",
    "objective",
    "starts",
    "measure",
    "lambda_d",
    "cosine",
    "cluster_cosine",
    "span",
    "outputs_ritz_cosine",
    "outputs_ritz_cluster_cosine",
    "outputs_ritz_cluster_worst",
    "ritz_cosine",
    "ritz_cluster_cosine",
    "ritz_cluster_worst",
    "data_limit",
    "data_cluster_limit",
    "collapsed",
    "steps",
    "seconds",
]


def main() -> None:
    """Runs the requested configurations that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("spectra.csv"))
    parser.add_argument("--seeds", default="", help="seeds of the map generator, first:last+1")
    parser.add_argument(
        "--maps", nargs="*", default=[], help="names or files of maps, or of tables of next states"
    )
    parser.add_argument("--starts", default="uniform", choices=["uniform", "one"])
    parser.add_argument("--measures", nargs="*", default=["visits"], help="visits, distinct")
    parser.add_argument("--observations", nargs="*", default=["xy"])
    parser.add_argument("--objectives", nargs="*", default=list(OBJECTIVES))
    parser.add_argument("--table", action="store_true", help="print one row per objective instead")
    parser.add_argument("--figure", type=Path, help="plot the table instead of adding to it")
    options = parser.parse_args()
    if options.figure is not None:
        draw(options.out, options.figure)
        return
    if options.table:
        print(table(options.out))
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
            maps[f"random {seed}"] = (kind, f"{kind}:{seed}", seed)
    done = set()
    if options.out.exists():
        with options.out.open() as file:
            done = {tuple(row[key] for key in RUN) for row in csv.DictReader(file)}
    for observation, objective, measure in product(
        options.observations, options.objectives, options.measures
    ):
        for name, (kind, found, seed) in maps.items():
            if (name, observation, objective, options.starts, measure) in done:
                continue
            config = RepresentationConfig(
                map=found,
                observation=observation,
                objective=objective,
                starts=options.starts,
                measure=measure,
                seed=seed,
            )
            row = run(config)
            append(options.out, {"map": name, "kind": kind, **row})
            print(name, *row.values(), flush=True)


def run(config: RepresentationConfig) -> dict[str, object]:
    """One map, with the defaults of the recipe."""
    start = time.process_time()
    result = learn_representation(config)
    seconds = time.process_time() - start
    last = result.rows[-1]
    moments = result.as_learned_moments
    numbers = {
        "states": result.env.num_states,
        **{key: getattr(config, key) for key in RUN[1:]},
        "lambda_d": float(result.eigenvalues[-1]),
        "collapsed": int((moments < 0.02 * moments.max()).sum()),
        "steps": last["step"],
        "seconds": round(seconds, 1),
    }
    kept = {key: last[key] for key in COLUMNS if key in last and key not in numbers}
    return {**numbers, **kept}


def append(path: Path, row: dict[str, object]) -> None:
    """Appends a row to a table, after the header in a new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(
            {k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items() if k in COLUMNS}
        )


def table(path: Path) -> str:
    """One row per observation and objective: medians and worst maps, as a Markdown table."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    lines = [
        "| input | objective | starts, measure | maps | as learned, each function, median | "
        "Ritz on the d outputs, subspaces, median / "
        "worst | Ritz on the features, subspaces, median / worst | worst subspace | each function, median / worst | "
        "farthest from the limit | collapsed | updates, median | most seconds |",
        "|---" * 13 + "|",
    ]
    for group in dict.fromkeys(tuple(row[key] for key in RUN[1:]) for row in rows):
        own = [row for row in rows if tuple(row[key] for key in RUN[1:]) == group]
        observation, objective, starts, measure = group

        def column(name: str, own: list[dict[str, str]] = own) -> list[float]:
            return [float(row[name]) for row in own]

        def both(name: str, own: list[dict[str, str]] = own) -> str:
            return f"{median(column(name, own)):.4f} / {min(column(name, own)):.4f}"

        pairs = zip(column("data_cluster_limit"), column("ritz_cluster_cosine"), strict=True)
        entries = [
            observation,
            objective,
            f"{starts}, {measure}",
            str(len(own)),
            f"{median(column('cosine')):.3f}",
            both("outputs_ritz_cluster_cosine"),
            both("ritz_cluster_cosine"),
            f"{min(column('ritz_cluster_worst')):.3f}",
            both("ritz_cosine"),
            f"{max(limit - found for limit, found in pairs):.4f}",
            f"{sum(column('collapsed')):.0f}",
            f"{median(column('steps')):.0f}",
            f"{max(column('seconds')):.0f}",
        ]
        lines.append("| " + " | ".join(entries) + " |")
    return "\n".join(lines)


def draw(table: Path, figure: Path) -> None:
    """One point per map: as learned, after Ritz, and the limit of the data, over the number of states."""
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
        ("outputs_ritz_cluster_cosine", "Ritz on the d outputs, subspaces", "^", "tab:green"),
        ("ritz_cluster_cosine", "Ritz on the features, subspaces", "s", "tab:blue"),
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
