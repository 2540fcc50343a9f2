"""The representation of an exploring agent: today's, with distinct observations, with Rayleigh-Ritz, with both.

``dceo`` at ε = 1 from one start, one-step pairs, batches of 32, with the settings of the recipe. One line an evaluation
to ``--out``; a run that is there already is not repeated. One core::

    python benchmarks/spectra_online.py --out results/spectra/online.csv --maps NineRooms 1000 1001 --seeds 0:5
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import torch

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import GridWorldEnv, make_env
from torchrl_dceo.envs.grid.random_maps import random_map
from torchrl_dceo.hashing import ExactHash
from torchrl_dceo.training import train
from torchrl_dceo.training.probes import SpectrumProbe

VARIANTS: dict[str, dict[str, Any]] = {
    "today": {},
    "distinct": {"laplacian_measure": "distinct"},
    "ritz": {"ritz_period": 50},
    "both": {"laplacian_measure": "distinct", "ritz_period": 50},
}
KINDS = ("rooms", "maze", "cave")
COLUMNS = ["map", "variant", "seed", "frames", "cosine", "subspace", "states", "of", "seconds"]


def environment(name: str, **settings: Any) -> Any:
    """A map by name, or by the seed of the generator, seen in pixels."""
    if name.isdigit():
        return GridWorldEnv(random_map(int(name), KINDS[int(name) % 3]), coverage=True, **settings)
    return make_env(name, **settings)


class Curve:
    """Notes the numbers of every evaluation."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.spectrum = SpectrumProbe()

    def __call__(self, trainer: Any) -> dict[str, float]:
        """Adds a row."""
        found = self.spectrum(trainer)
        states = ExactHash()(trainer.replay.transitions()["pixels"]).unique().numel()
        self.rows.append(
            {
                "frames": trainer.counters.frames,
                "cosine": round(found["cosine_similarity"], 4),
                "subspace": round(found["subspace_similarity"], 4),
                "states": states,
            }
        )
        return {}


def run(name: str, variant: str, seed: int, frames: int) -> list[dict[str, Any]]:
    """One run of an agent; its evaluations."""
    torch.manual_seed(seed)
    env, evaluation = environment(name, seed=seed), environment(name, seed=seed + 1, batch_size=2)
    agent = make_agent(
        "dceo",
        env,
        lr=5e-4,
        num_options=5,
        signs="both",
        eps_init=1.0,
        eps_end=1.0,
        **VARIANTS[variant],
    )
    curve, start = Curve(), time.process_time()
    train(
        agent,
        env,
        total_frames=frames,
        eval_env=evaluation,
        eval_period=4000,
        log_period=4000,
        probes=(curve,),
        progress=False,
        seed=seed,
    )
    seconds = round(time.process_time() - start, 1)
    known = {"map": name, "variant": variant, "seed": seed, "of": env.num_states}
    return [{**known, **row, "seconds": seconds} for row in curve.rows]


def main() -> None:
    """Runs what is asked for and not yet there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("online.csv"))
    parser.add_argument("--maps", nargs="*", default=["NineRooms"])
    parser.add_argument("--seeds", default="0:5")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--frames", type=int, default=20_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    first, end = map(int, options.seeds.split(":"))
    done = set()
    if options.out.exists():
        with options.out.open() as file:
            done = {(r["map"], r["variant"], int(r["seed"])) for r in csv.DictReader(file)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(first, end):
        for name in options.maps:
            for variant in options.variants:
                if (name, variant, seed) in done:
                    continue
                rows = run(name, variant, seed, options.frames)
                new = not options.out.exists()
                with options.out.open("a", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    if new:
                        writer.writeheader()
                    writer.writerows(rows)
                print(name, variant, f"seed {seed}", *rows[-1:], flush=True)


if __name__ == "__main__":
    main()
