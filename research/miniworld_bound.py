"""The information in an image of Four Rooms: ``python research/miniworld_bound.py [--views 1] [--distinct-walls]``.

An upper bound for ``miniworld_eigenfunctions.py``: the same network learns, with supervision, the first two
eigenfunctions of the floor from images at random positions and headings, and is evaluated in the same way.
No objective can do better from these images.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from torchrl_dceo._fast import tune_process
from torchrl_dceo.analysis.figures.birds_eye import axis_correlation, look_from_above
from torchrl_dceo.analysis.figures.birds_eye_figures import first_person_env
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules import Centred, CentringFit
from torchrl_dceo.modules.networks import nature_net
from torchrl_dceo.studies.experiments.miniworld_eigenfunctions import (
    SPACING,
    add_view_arguments,
    falling_rate,
    headings,
    view_settings,
)
from torchrl_dceo.tabular import laplacian_eigenvectors

FINE = 0.25  # m between the positions of the images, and between those of the eigenfunctions
# Of the plane of the two eigenfunctions, which are a pair.
ANGLES = np.linspace(0, np.pi, 24, endpoint=False)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add_view_arguments(parser)
    add(
        "--pictures",
        type=int,
        default=20_000,
        help="at random places and headings, if the agent can turn",
    )
    add("--updates", type=int, default=1500, help="by then the error hardly falls")
    add("--batch-size", type=int, default=128)
    add("--lr", type=float, default=5e-4, help="held for half of the updates, then falling to 0")
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=Path("results/miniworld_eigenfunctions/bound"))
    return parser.parse_args()


def floor_eigenfunctions(free: np.ndarray) -> np.ndarray:
    """The first two eigenfunctions of the grid's free points that are not constant, ``[P, 2]``, of mean square 1."""
    number = np.full(free.shape, -1)
    number[free] = np.arange(free.sum())
    pairs = [(number[:-1], number[1:]), (number[:, :-1], number[:, 1:])]
    joined = [(a[(a >= 0) & (b >= 0)], b[(a >= 0) & (b >= 0)]) for a, b in pairs]
    rows, columns = (np.concatenate(part) for part in zip(*joined, strict=True))
    edges = torch.from_numpy(np.stack([np.r_[rows, columns], np.r_[columns, rows]]))
    return laplacian_eigenvectors(edges, int(free.sum()), 2)[1].numpy()


def main() -> None:
    """Renders images, trains, evaluates."""
    options = arguments()
    tune_process()
    torch.manual_seed(options.seed)
    generator = np.random.default_rng(options.seed)
    env = make_env(
        options.env,
        batch_size=1,
        seed=options.seed,
        coverage=True,
        **view_settings(options),
    )
    env.reset()
    miniworld_env = first_person_env(env)
    free, positions = miniworld_env.floor_plan.lattice_grid(FINE)
    places = generator.integers(len(positions), size=options.pictures)
    looks = generator.uniform(0, 2 * np.pi, options.pictures)
    if miniworld_env.fixed_heading is not None:
        looks[:] = miniworld_env.fixed_heading
    pictures = torch.from_numpy(
        np.concatenate(
            [
                miniworld_env.observe_at(positions[[place]], heading)
                for place, heading in zip(places, looks, strict=True)
            ]
        )
    )
    wanted = torch.from_numpy(floor_eigenfunctions(free)[places]).float()

    net = Centred(nature_net(pictures.shape[1:], 2), pictures.shape[1:])
    module = TensorDictModule(net, in_keys=["pixels"], out_keys=["representation"])
    some = TensorDict({"pixels": pictures[:256], "successor": {"pixels": pictures[:256]}})
    CentringFit([module])(some)
    optimizer = torch.optim.Adam(module.parameters(), lr=options.lr)
    schedule = falling_rate(optimizer, options.updates)
    for update in range(options.updates):
        index = torch.randint(len(pictures), (options.batch_size,))
        loss = (net(pictures[index]) - wanted[index]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if update % 100 == 0 or update == options.updates - 1:
            print(update, f"error {loss.item():.3f} of 1", flush=True)

    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "correlations.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["heading", "best", *(f"{np.rad2deg(angle):.1f}" for angle in ANGLES)])
        for degrees in headings(miniworld_env):
            view = look_from_above(
                module, miniworld_env, spacing=SPACING, heading=float(np.deg2rad(degrees))
            )
            along = [
                axis_correlation(view.values @ (np.cos(a), np.sin(a)), view.free, SPACING)
                for a in ANGLES
            ]
            writer.writerow([degrees, *(f"{value:.3f}" for value in (max(along), *along))])
            print(degrees, f"best {max(along):.2f}, median {np.median(along):.2f}", flush=True)


if __name__ == "__main__":
    main()
