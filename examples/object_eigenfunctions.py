"""Eigenfunctions of worlds with objects, over all positions: ``python examples/object_eigenfunctions.py``.

Lists every state of Escape Room and Obstructed Key, walks through them at random, learns the Laplacian representation
from pictures of these walks alone, and draws its first non-constant eigenfunctions before and after the key was taken
(the wall broken), beside the exact ones and the world: the paper's "Visualizations in Escape Room". A measure says how
well their level separates the two: the key is a bottleneck of the state space. Some minutes on one core.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from torch import Tensor

from torchrl_dceo._fast.process import tune_process
from torchrl_dceo.analysis.figures.positions import (
    draw_object_eigenfunctions,
    object_layout,
    separation,
)
from torchrl_dceo.envs import make_env
from torchrl_dceo.envs.minigrid import WORLDS, KeyDoorWorld
from torchrl_dceo.envs.minigrid.state_table import KeyDoorTableEnv, list_states
from torchrl_dceo.studies.experiments.representation import (
    RepresentationConfig,
    learn_representation,
)

# What is compared, as the objects' part of a state id: phase (0 no key, 1 key in hand, 2 door open) + 4 for a broken
# wall.
WORLD_SETTINGS = {"EscapeRoom": {}, "ObstructedKey": {"num_breakable": 1}}
FUNCTIONS = {"EscapeRoom": (2,), "ObstructedKey": (2, 3)}  # f_2 knows the key, f_3 the wall
EVENTS = {
    "EscapeRoom": (("without the key", 0), ("with the key", 1), ("… and the door open", 2)),
    "ObstructedKey": (("wall whole", 0), ("wall broken", 4), ("… and key in hand", 5)),
}


def over_positions(f: Tensor, occurs: Tensor, positions: int, objects: int) -> Tensor:
    """A function of states at every position of the agent, for one state of the objects; NaN where there is none."""
    part = slice(objects * positions, (objects + 1) * positions)
    return f[part].where(occurs[part], torch.nan)


def main() -> None:
    """Learns, draws and measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", nargs="+", default=list(EVENTS), choices=list(EVENTS))
    parser.add_argument("--room-size", type=int, default=5)
    parser.add_argument("--objective", default="allo")
    parser.add_argument("--dimensions", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/object_eigenfunctions"))
    options = parser.parse_args()
    tune_process()
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for name in options.worlds:
        rows += learn_and_draw(name, options)
        with (options.out / "separation.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def learn_and_draw(name: str, options: argparse.Namespace) -> list[dict[str, object]]:
    """One world: its figure, the values behind it, and the rows of the measure."""
    settings = {"room_size": options.room_size, **WORLD_SETTINGS[name]}
    world = WORLDS[name](slip=0.0, coverage=True, **settings)
    assert isinstance(world, KeyDoorWorld)
    table = list_states(world)
    env = KeyDoorTableEnv(table, coverage=True)
    config = RepresentationConfig(
        observation="pixels",
        objective=options.objective,
        dimensions=options.dimensions,
        steps=options.steps,
        samples=options.samples,
        seed=options.seed,
    )
    result = learn_representation(
        config,
        world=env,
        report=lambda row: print(
            f"{name} step {row['step']}: |cos| of f2 {row['ritz_cosine_2']:.3f}", flush=True
        ),
    )
    panels, rows, columns = [], [], {}
    for i in FUNCTIONS[name]:
        exact, learned = result.exact[:, i - 1], result.learned[:, i - 1]
        # The sign is free: low where the agent starts.
        exact = exact * -float(exact[table.start].sign())
        learned = learned * float((learned * exact).sum().sign())
        cosine = result.rows[-1][f"cosine_{i}"]
        for kind, f in (("exact", exact), ("learned", learned)):
            columns[f"{kind}_f{i}"] = f
            maps = [
                (label, over_positions(f, table.occurs, world.num_positions, objects))
                for label, objects in EVENTS[name]
            ]
            panels.append((f"{kind} $f_{i}$", maps))
            for label, values in maps[1:]:
                first = maps[0][1]
                apart = separation(first[first.isfinite()], values[values.isfinite()])
                row = {
                    "world": name,
                    "function": f"f{i}",
                    "kind": kind,
                    "before": maps[0][0],
                    "after": label,
                    "auc": f"{apart.auc:.4f}",
                    "distance": f"{apart.distance:.2f}",
                    "own_side_of_zero": f"{apart.opposite:.4f}",
                    "mean_before": f"{float(first.nanmean()):.3f}",
                    "mean_after": f"{float(values.nanmean()):.3f}",
                    "cosine": f"{cosine:.4f}" if kind == "learned" else "",
                    "eigenvalue": f"{float(result.eigenvalues[i - 1]):.6f}",
                    "states": int(table.occurs.sum()),
                }
                rows.append(row)
                print(row, flush=True)
    with (options.out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["state_id", *columns])
        for state in table.occurs.nonzero().flatten().tolist():
            writer.writerow([state, *(f"{float(f[state]):.5f}" for f in columns.values())])
    shown = make_env(name, **settings)
    shown.reset()
    spaced = "".join(f" {c}" if c.isupper() else c for c in name).strip().capitalize()
    figure = draw_object_eigenfunctions(
        object_layout(world.rows),
        panels,
        shown.base_env.render(),
        f"{spaced}: eigenfunctions over the agent's positions",
        f"rooms of {options.room_size} x {options.room_size}, {int(table.occurs.sum())} states · learned from pixels "
        f"({options.objective}, {options.samples:,} random steps)",
    )
    figure.savefig(options.out / f"{name}.png")
    return rows


if __name__ == "__main__":
    main()
