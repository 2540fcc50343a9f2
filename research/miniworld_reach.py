"""Why do a run's options stay in a room in 3D: eigenfunctions, discount, or learning?

    python research/miniworld_reach.py RUN [RUN ...]

Reads ``birds_eye.npz`` of runs in ``MiniWorldFourRoomsStrafe``: the functions that the options climb, on a grid over
the floor. On that grid every option is solved by value iteration (reward f(s') - f(s), a move for as many steps as it
is long) for several discounts, and followed for 100 steps. Straight distances, as of ``option_reach``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from torchrl_dceo.analysis.figures.birds_eye import BirdsEye, load_birds_eye

STEP, STEPS = 0.15, 100
DISCOUNTS = (0.95, 0.98, 0.99, 0.995)
DOORS = (-1.0, 1.0)  # rooms and hallways are divided there, along either axis


def neighbours(free: np.ndarray) -> np.ndarray:
    """``[P, 5]``: the points beside each one, itself where there is a wall, and itself."""
    count = int(free.sum())
    number = np.pad(np.full(free.shape, -1), 1, constant_values=-1)
    number[1:-1, 1:-1][free] = np.arange(count)
    own = np.arange(count)
    found = [own]
    for di, dj in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        there = np.roll(number, (-di, -dj), (0, 1))[1:-1, 1:-1][free]
        found.append(np.where(there >= 0, there, own))
    return np.stack(found, -1)


def policy(f: np.ndarray, moves: np.ndarray, discount: float) -> np.ndarray:
    """Where the best move from each point leads, for the reward f(s') - f(s)."""
    value = np.zeros_like(f)
    while True:
        each = f[moves] - f[:, None] + discount * value[moves]
        if np.abs(each.max(1) - value).max() < 1e-9:
            return np.take_along_axis(moves, each.argmax(1)[:, None], 1)[:, 0]
        value = each.max(1)


def reach(view: BirdsEye, discount: float) -> tuple[float, float, float]:
    """Metres from everywhere and from the start, and the share that ends in another room or hallway."""
    assert view.followed is not None and view.ways is not None
    spacing = float(np.diff(np.unique(view.positions[:, 0])).min())
    moves, points = neighbours(view.free), view.positions
    zones = np.searchsorted(DOORS, points)
    begin = int(np.linalg.norm(points - view.ways[0, 0], axis=-1).argmin())
    distances, crossed = [], []
    for f in view.followed.T:
        best, end = policy(f, moves, discount ** (spacing / STEP)), np.arange(len(points))
        for _ in range(round(STEPS * STEP / spacing)):
            end = best[end]
        distances.append(np.linalg.norm(points[end] - points, axis=-1))
        crossed.append((zones[end] != zones).any(-1).mean())
    return float(np.mean(distances)), float(np.mean(distances, 0)[begin]), float(np.mean(crossed))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    for run in parser.parse_args().runs:
        view = load_birds_eye(run)
        assert view.ways is not None
        learned = np.linalg.norm(view.ways[:, -1] - view.ways[:, 0], axis=-1).mean()
        print(f"{run}: learned options {learned:.1f} m from the start")
        for discount in DISCOUNTS:
            everywhere, start, crossed = reach(view, discount)
            print(
                f"  exact options, discount {discount}: {everywhere:.1f} m from everywhere, {start:.1f} m "
                f"from the start, {100 * crossed:.0f} % end in another room or hallway"
            )


if __name__ == "__main__":
    main()
