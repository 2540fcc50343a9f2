"""Eigenfunctions over Panama Joe's positions in the first room of Montezuma's Revenge, from a random walk.

    python -m torchrl_dceo.studies.experiments.montezuma_eigenfunctions --out runs/montezuma

A uniformly random policy plays; a walk ends with a life, since the lives left are on the screen and would be the
slowest thing to learn. A Nature network learns the generalized Laplacian from single images (without the mean
image) and their successors ``--ahead`` agent steps later. Its output is averaged over the images of each position,
drawn over the room, and compared with the eigenfunctions of a table of positions, from the same pairs.
"""
# ruff: noqa: T201  (a command for people: printing is what it is for)

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.collectors import Collector
from torchrl.data import ReplayBuffer
from torchrl.envs.utils import RandomPolicy

from torchrl_dceo._fast import tune_process
from torchrl_dceo.analysis import Similarity, cosine_similarity
from torchrl_dceo.analysis.figures.positions import draw_position_values, position_values
from torchrl_dceo.analysis.spectra import span_alignment
from torchrl_dceo.analysis.spectra.exact import pair_eigenfunctions
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules import Centred, CentringFit
from torchrl_dceo.modules.networks import nature_net
from torchrl_dceo.objectives import GeneralizedLaplacianLoss
from torchrl_dceo.studies.experiments import Parser

__all__ = ["collect", "compare", "encode", "learn", "main"]

WALKERS, CELL, FIRST_ROOM = 8, 8, 1
# From memory to the screen: the figure's feet, (column, row).
COLUMN, ROW = 3, 327


def collect(
    steps: int, ahead: int, batch_size: int, seed: int, data_dir: Path | None
) -> tuple[ReplayBuffer, Tensor]:
    """A random walk in a replay buffer, and an image of the room; kept in a folder, or loaded from it."""
    env = make_env("MontezumaRevenge", batch_size=WALKERS, seed=seed, frame_stack=1, life_ends=True)
    env.reset()
    screen = env.base_env.render()[0]
    replay = make_replay_buffer(
        int(1.2 * steps),
        num_streams=WALKERS,
        n_steps=ahead,
        batch_size=batch_size,
        state_keys=["position", "room"],
        seed=seed,
    )
    if data_dir is not None and data_dir.is_dir():
        replay.loads(data_dir)
        replay.n_steps = ahead
        return replay, screen
    torch.manual_seed(seed)
    walk = Collector(
        env, RandomPolicy(env.action_spec), frames_per_batch=50 * WALKERS, total_frames=steps
    )
    for data in walk:
        replay.extend(data)
    if data_dir is not None:
        replay.dumps(data_dir)
    return replay, screen


def learn(
    replay: ReplayBuffer, dimensions: int, updates: int, barrier: float, lr: float
) -> TensorDictModule:
    """The generalized Laplacian of the walk."""
    network = Centred(nature_net((1, 84, 84), dimensions), (1, 84, 84))
    encoder = TensorDictModule(network, in_keys=["pixels"], out_keys=["representation"])
    CentringFit([network], successor="next")(replay.sample(1024))
    loss = GeneralizedLaplacianLoss(encoder, barrier=barrier)
    optimizer = torch.optim.Adam(loss.parameters(), lr=lr)
    began = time.process_time()
    for update in range(1, updates + 1):
        # Rises at first, or a fresh network is thrown to 0; is held; falls over the second half of the updates.
        rising, falling = min(1.0, 20 * update / updates), max(0.0, 2 * update / updates - 1)
        optimizer.param_groups[0]["lr"] = lr * rising * (1 + math.cos(math.pi * falling)) / 2
        outputs = loss(replay.sample())
        outputs["loss_laplacian"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if update % max(1, updates // 20) == 0:
            print(
                f"update {update}: smoothness {float(outputs['smoothness']):.3f}, "
                f"orthogonality {float(outputs['orthogonality']):.3f}, "
                f"{time.process_time() - began:.0f} s of processor time",
                flush=True,
            )
    return encoder


@torch.no_grad()
def encode(
    encoder: TensorDictModule, replay: ReplayBuffer, samples: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, those of the successors, and f, in the first room."""
    kept = []
    for _ in range(-(-samples // 500)):
        batch = replay.sample(500)
        encoder(batch)
        inside = (batch["room"] == FIRST_ROOM) & (batch["next", "room"] == FIRST_ROOM)
        kept.append(batch[inside].select("position", ("next", "position"), "representation"))
    data: Any = torch.cat(kept)
    return data["position"], data["next", "position"], data["representation"].double()


def compare(
    positions: Tensor, successors: Tensor, values: Tensor, dimensions: int
) -> tuple[Similarity, float, Tensor]:
    """|cos| of f, averaged over cells, with the eigenfunctions of the table of cells."""
    both = torch.cat([positions, successors]) // CELL
    cells, ids = both.unique(dim=0, return_inverse=True)
    first, second = ids.chunk(2)
    table = pair_eigenfunctions(first, second, len(cells), dimensions)
    sums = values.new_zeros(len(cells), values.shape[1]).index_add_(0, first, values)
    means = sums / first.bincount(minlength=len(cells)).clamp(min=1).unsqueeze(-1)
    similarity = cosine_similarity(means, table.eigenfunctions, table.eigenvalues, rho=table.rho)
    span = span_alignment(means, table.eigenfunctions, rho=table.rho)
    return similarity, float(span), table.eigenvalues


def main() -> None:
    """Collects, fits, compares and draws."""
    parser = Parser(prog="montezuma_eigenfunctions", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=52_000, help="agent steps, of 4 frames each")
    parser.add_argument("--ahead", type=int, default=8, help="agent steps to the successor")
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dimensions", type=int, default=7)
    parser.add_argument("--barrier", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--samples", type=int, default=20_000, help="images that are drawn")
    parser.add_argument("--data", type=Path, help="keeps the walk there, or loads it from there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the files")
    options = parser.parse_args()
    tune_process()

    began = time.process_time()
    replay, screen = collect(
        options.steps, options.ahead, options.batch_size, options.seed, options.data
    )
    print(
        f"{4 * options.steps:,} frames, {time.process_time() - began:.0f} s of processor time",
        flush=True,
    )
    torch.manual_seed(options.seed)
    encoder = learn(replay, options.dimensions, options.updates, options.barrier, options.lr)
    positions, successors, values = encode(encoder, replay, options.samples)
    similarity, span, eigenvalues = compare(positions, successors, values, options.dimensions)
    print("|cos| with the table of positions:", *(f"{c:.2f}" for c in similarity.cosines))
    print(f"alignment of the spans: {span:.2f}")
    print("its eigenvalues:", *(f"{value:.4f}" for value in eigenvalues))

    options.out.mkdir(parents=True, exist_ok=True)
    places = position_values(positions, values)
    with (options.out / "eigenfunctions.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["x", "y", "samples", *(f"f{i + 1}" for i in range(options.dimensions))])
        for place, count, row in zip(
            places.positions.tolist(), places.counts.tolist(), places.means.tolist(), strict=True
        ):
            writer.writerow([*place, count, *(f"{value:.4f}" for value in row)])
    pixels = places.positions * torch.tensor([1, -1]) + torch.tensor([COLUMN, ROW])
    draw_position_values(
        screen,
        pixels,
        places.means[:, 1:],
        options.out / "eigenfunctions.png",
        titles=[f"$f_{{{i}}}$" for i in range(2, options.dimensions + 1)],
        title="The first eigenfunctions over Panama Joe's positions",
    )


if __name__ == "__main__":
    main()
