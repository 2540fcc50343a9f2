"""The representation of an exploring agent: weighted by visits, over distinct observations, with Ritz, with both.

``dceo`` at ε = 1 from one start, without a goal, one-step pairs, batches of 32, with the settings of the recipe. The
main learner does not act at ε = 1 and is not trained: it would take a third of the time and change nothing. Every
evaluation appends a row to ``--out``; runs already in the file are skipped. One core, some 20 seconds per run::

    python benchmarks/spectra_online.py --out results/spectra/online.csv --maps NineRooms 1001 1002 --seeds 1000:1005
    python benchmarks/spectra_online.py --out results/spectra/online.csv --figure results/spectra/online.png
    python benchmarks/spectra_online.py --cost  # of Ritz and of the automatic barrier, as shares of an update
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tensordict import TensorDict

from torchrl_dceo.agents import make_agent
from torchrl_dceo.agents.dceo import DCEOConfig
from torchrl_dceo.envs import GridWorldEnv, make_env
from torchrl_dceo.envs.grid.random_maps import random_map
from torchrl_dceo.hashing import ExactHash
from torchrl_dceo.modules import RayleighRitz, RayleighRitzStep
from torchrl_dceo.objectives._representation import AutomaticBarrier
from torchrl_dceo.training import train
from torchrl_dceo.training.probes import SpectrumProbe

SPAN = {"objective": "graph_drawing", "barrier": "auto", "ritz_period": 50}
VISITS = {"replay_measure": "visits"}
VARIANTS: dict[str, dict[str, Any]] = {
    "visits": VISITS,
    "distinct": {},
    "ritz": {**VISITS, **SPAN},
    "both": SPAN,
    # For comparison: the automatic barrier alone, and Ritz after the objective that orders its functions itself.
    "auto": {"barrier": "auto"},
    "both_generalized": {**SPAN, "objective": "generalized"},
}
FOUR = ("visits", "distinct", "ritz", "both")
KINDS = ("rooms", "maze", "cave")
COLUMNS = ["map", "variant", "seed", "frames", "cosine", "subspace", "states", "of", "seconds"]


def environment(name: str, **settings: Any) -> Any:
    """A map by name or file, or by the seed of the generator, with pixel observations."""
    if name.isdigit():
        return GridWorldEnv(random_map(int(name), KINDS[int(name) % 3]), coverage=True, **settings)
    if Path(name).exists():
        return GridWorldEnv(Path(name).read_text(), coverage=True, **settings)
    return make_env(name, coverage=True, **settings)


class Curve:
    """Records the metrics of every evaluation."""

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
    env, evaluation = (
        environment(name, seed=seed),
        environment(name, seed=seed + 1, batch_size=(2,)),
    )
    agent = make_agent(
        "dceo_two_phase",
        env,
        discovery_frames=frames + 1,
        option_prob=DCEOConfig.option_prob,
        **VARIANTS[variant],
    )
    curve, start = Curve(), time.process_time()
    train(
        agent,
        env,
        total_frames=frames,
        eval_env=evaluation,
        discovery_env=env,
        eval_episodes=2,
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
    """Runs the requested configurations that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("online.csv"))
    parser.add_argument("--maps", nargs="*", default=["NineRooms"])
    parser.add_argument("--seeds", default="1000:1005")
    parser.add_argument("--variants", nargs="*", default=list(FOUR), choices=list(VARIANTS))
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--figure", type=Path, help="plot the table instead of adding to it")
    parser.add_argument(
        "--cost", action="store_true", help="print the cost of Ritz and barrier instead"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cost:
        cost()
        return
    if options.figure is not None:
        draw(options.out, options.figure)
        return
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


def cost(rounds: int = 5, batches: int = 50) -> None:
    """CPU time of Ritz (a solution every 50 batches) and of the barrier, and their shares of an update."""

    def pixels() -> TensorDict:
        return TensorDict({"pixels": torch.randint(256, (32, 3, 19, 19), dtype=torch.uint8)}, [32])

    agent = make_agent("dceo", environment("NineRooms", seed=0), num_options=10, dimensions=20)
    flag = torch.zeros(32, 1, dtype=torch.bool)
    batch = pixels().update(
        {
            "action": torch.randint(4, (32,)),
            "steps_to_next_obs": torch.ones(32, 1, dtype=torch.int64),
            "successor": pixels().update({"done": flag, "terminated": flag}),
            "next": pixels().update({"reward": flag.float(), "done": flag, "terminated": flag}),
        }
    )
    pairs = TensorDict({"span": torch.randn(32, 20), "next": {"span": torch.randn(32, 20)}}, [32])
    step, barrier = RayleighRitzStep(RayleighRitz(20), period=batches), AutomaticBarrier(1.0)
    parts: dict[str, Callable[[], object]] = {
        "update": lambda: agent.update(batch.clone(), agent.phases[0]),
        "ritz": lambda: step(pairs),
        "barrier": lambda: barrier.update(pairs["span"], pairs["next", "span"]),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds):
        for name, part in parts.items():
            start = time.process_time()
            for _ in range(batches):
                part()
            times[name].append((time.process_time() - start) / batches)
    for name, own in times.items():
        share = median(a / b for a, b in zip(own, times["update"], strict=True))
        print(f"{name}: {1e6 * median(own):.0f} µs, {share:.1%} of an update")


def draw(table: Path, figure: Path) -> None:
    """One column per map: subspace |cos| and the share of states seen, over frames; lines are means over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with table.open() as file:
        rows = list(csv.DictReader(file))
    maps = list(dict.fromkeys(row["map"] for row in rows))
    drawn, axes = plt.subplots(2, len(maps), figsize=(4.2 * len(maps), 6.4), squeeze=False)
    colours = dict(zip(VARIANTS, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    for name, column in zip(maps, axes.T, strict=True):
        for variant, colour in colours.items():
            own = [row for row in rows if (row["map"], row["variant"]) == (name, variant)]
            if not own:
                continue
            frames = sorted({int(row["frames"]) for row in own})
            seeds = sorted({row["seed"] for row in own})
            for axis, key in zip(column, ("subspace", "states"), strict=True):
                curves = [
                    [
                        float(row[key]) / (float(row["of"]) if key == "states" else 1)
                        for row in sorted(own, key=lambda row: int(row["frames"]))
                        if row["seed"] == seed
                    ]
                    for seed in seeds
                ]
                for curve in curves:
                    axis.plot(frames, curve, color=colour, alpha=0.25, lw=0.8)
                mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
                axis.plot(frames, mean, color=colour, lw=2, label=f"{variant} ({len(seeds)})")
        of = next(row["of"] for row in rows if row["map"] == name)
        column[0].set(title=f"{name}, {of} states", ylim=(0, 1))
        column[1].set(xlabel="frames", ylim=(0, 1.02))
        for axis in column:
            axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("|cos|, subspaces")
    axes[1][0].set_ylabel("share of the states seen")
    axes[0][0].legend(fontsize=8, title="variant (seeds)")
    drawn.tight_layout()
    drawn.savefig(figure, dpi=110)


if __name__ == "__main__":
    main()
