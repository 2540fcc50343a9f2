"""Eigenfunctions of MiniWorld from random walks, seen from above.

    python -m torchrl_dceo.studies.experiments.miniworld_eigenfunctions --out runs/four_rooms

Collects uniformly random walks without a goal, fits the generalized Laplacian to them offline, places the agent on a
grid of positions with a fixed heading, and draws and measures the first two eigenfunctions that are not constant.
"""
# ruff: noqa: T201  (a command for people: printing is what it is for)

from __future__ import annotations

import argparse
import csv
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict.nn import TensorDictModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torchrl.collectors import Collector
from torchrl.data import ReplayBuffer
from torchrl.envs import EnvBase
from torchrl.envs.utils import RandomPolicy

from torchrl_dceo._fast import tune_process
from torchrl_dceo.analysis.figures.birds_eye import (
    axis_correlation,
    look_from_above,
    save_birds_eye,
)
from torchrl_dceo.analysis.figures.birds_eye_figures import draw_birds_eye, first_person_env
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import env_settings, make_env
from torchrl_dceo.modules import Centred, CentringFit
from torchrl_dceo.modules.networks import nature_net, small_nature_net
from torchrl_dceo.objectives import GeneralizedLaplacianLoss
from torchrl_dceo.studies.experiments import Parser

__all__ = ["add_view_arguments", "collect", "falling_rate", "main", "report", "view_settings"]

if TYPE_CHECKING:
    from torchrl_dceo.envs.miniworld import MiniWorld3D

SPACING = 0.5
_VIEW = ("views", "obs_width", "obs_height", "samples")
_NETWORKS = {"nature": nature_net, "nature_small": small_nature_net}
HEADINGS = (0.0, 90.0, 180.0, 270.0)


def add_view_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the agent is and what it sees: in how many images, of how many pixels."""
    add = parser.add_argument
    add("--env", default="MiniWorldFourRooms", help="any 3D one, e.g. MiniWorldFourRoomsStrafe")
    add("--distinct-walls", action="store_true", help="Four Rooms with other walls in each room")
    add("--views", type=int, default=4, help="views of a state, side by side; 4 show every door")
    add("--obs-width", type=int, default=40, help="of one view: half of the package's is enough")
    add("--obs-height", type=int, default=30)
    add("--samples", type=int, default=4, help="of a pixel; 1 is twice as fast")


def view_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Those arguments as settings of an environment."""
    settings = {name: getattr(options, name) for name in _VIEW}
    if "starts" in env_settings(options.env):
        settings["starts"] = "anywhere"  # from a fixed start a random walk sees one room
    return settings | ({"distinct_walls": True} if options.distinct_walls else {})


def headings(miniworld_env: MiniWorld3D) -> tuple[float, ...]:
    """Those to look at, in degrees: four, or the one that there is."""
    return (
        HEADINGS
        if miniworld_env.fixed_heading is None
        else (math.degrees(miniworld_env.fixed_heading),)
    )


def arguments() -> argparse.Namespace:
    """The command line; each default with its reason."""
    parser = Parser(prog="miniworld_eigenfunctions", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add_view_arguments(parser)
    add("--frames", type=int, default=40_000, help="of random walks")
    add("--num-envs", type=int, default=16, help="walks side by side")
    add("--max-steps", type=int, default=250, help="of an episode: the package's")
    add("--pair-steps", type=int, default=100, help="of a pair: by then only the room is the same")
    add("--updates", type=int, default=2000)
    add("--network", choices=_NETWORKS, default="nature")
    add(
        "--batch-size",
        type=int,
        default=200,
        help="drawn; pairs that an end cuts short are left out",
    )
    add("--dimensions", type=int, default=3, help="d, the constant one included")
    add("--barrier", type=float, default=1.0, help="above half of any eigenvalue (at most 1 here)")
    add("--lr", type=float, default=5e-4, help="held for half of the updates, then falling to 0")
    add("--seed", type=int, default=0)
    add("--out", type=Path, required=True, help="the folder of the files")
    options = parser.parse_args()
    if not 1 <= options.pair_steps <= options.max_steps:
        parser.error(
            f"--pair-steps must lie between 1 and --max-steps, {options.max_steps}, got {options.pair_steps}: "
            "both states of a pair are of one episode"
        )
    return options


def collect(options: argparse.Namespace) -> tuple[ReplayBuffer, EnvBase]:
    """Random walks in a replay buffer, and the environment that they were made in."""
    env = make_env(
        options.env,
        batch_size=options.num_envs,
        seed=options.seed,
        coverage=True,
        max_steps=options.max_steps,
        **view_settings(options),
    )
    replay = make_replay_buffer(
        options.frames + 100 * options.num_envs,
        n_steps=options.pair_steps,
        num_streams=options.num_envs,
        batch_size=options.batch_size,
        seed=options.seed,
    )
    walks = Collector(
        env,
        RandomPolicy(env.action_spec),
        frames_per_batch=100 * options.num_envs,
        total_frames=options.frames,
    )
    for data in walks:
        replay.extend(data)
    return replay, env


def falling_rate(optimizer: Optimizer, updates: int) -> LambdaLR:
    """The step size: held for half of the updates, then falling to 0."""
    return LambdaLR(optimizer, lambda k: min(1.0, 2 * (1 - k / updates)))


def main() -> None:
    """Collects, fits, measures and draws."""
    options = arguments()
    tune_process()
    torch.manual_seed(options.seed)
    began = time.process_time()
    replay, env = collect(options)
    collected = time.process_time() - began
    shape = env.observation_spec["pixels"].shape[1:]
    net = Centred(_NETWORKS[options.network](shape, options.dimensions), shape)
    encoder = TensorDictModule(net, in_keys=["pixels"], out_keys=["representation"])
    loss = GeneralizedLaplacianLoss(encoder, barrier=options.barrier, successor="next")
    centring = CentringFit([loss], successor="next")
    optimizer = torch.optim.Adam(loss.parameters(), lr=options.lr)
    schedule = falling_rate(optimizer, options.updates)
    began = time.process_time()
    for update in range(options.updates):
        batch = replay.sample()
        whole = batch["steps_to_next_obs"].squeeze(-1) == options.pair_steps
        out = loss(centring(batch[whole]))
        out["loss_laplacian"].backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if update % 100 == 0 or update == options.updates - 1:
            numbers = {key: round(float(value), 4) for key, value in out.items()}
            print(update, numbers, flush=True)
    fitted = time.process_time() - began
    print(f"collected in {collected:.0f} s, fitted in {fitted:.0f} s of processor time")
    report(options, encoder, env)


def report(options: argparse.Namespace, encoder: TensorDictModule, env: EnvBase) -> None:
    """The view from above for four headings, or the one that there is: an image each, and a table."""
    miniworld_env = first_person_env(env)
    folder = options.out
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    seen = f"{options.views} views, " if options.views > 1 else ""
    assert miniworld_env is not None
    for degrees in headings(miniworld_env):
        view = look_from_above(
            encoder, miniworld_env, spacing=SPACING, heading=math.radians(degrees)
        )
        correlations = [
            axis_correlation(view.values[:, i], view.free, SPACING)
            for i in range(1, options.dimensions)
        ]
        rows.append([degrees, *(f"{value:.3f}" for value in correlations)])
        notes = [f"along its axis: {value:.2f}" for value in correlations]
        figure = draw_birds_eye(
            view, notes=notes, title=f"{options.env}, {seen}heading {degrees:.0f}°"
        )
        figure.savefig(folder / f"heading_{degrees:.0f}.png")
        if degrees == 0:
            save_birds_eye(folder, view)
        print(degrees, correlations, flush=True)
    with (folder / "correlations.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["heading", *(f"f{i + 1}" for i in range(1, options.dimensions))])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
