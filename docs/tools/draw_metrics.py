"""Draws the figures of docs/how_to/metrics.md: ``python docs/tools/draw_metrics.py``."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from torchrl_dceo.analysis import (
    cosine_similarity,
    draw_eigenfunctions,
    draw_options,
    draw_rollout,
    draw_visits,
    exact_eigenfunctions,
    greedy_path,
    option_climb,
)
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.envs.grid.maps import nine_rooms

FOLDER = Path(__file__).parents[1] / "images"
NUM_OPTIONS, GAMMA, STEPS = 10, 0.99, 5000


def solve_options(followed: Tensor, next_state: Tensor) -> Tensor:
    """The exact values of the options, [S, N, A], without slips: r + γ V until nothing changes."""
    reward = followed[next_state] - followed.unsqueeze(1)
    values = torch.zeros_like(reward)
    for _ in range(2000):
        values = reward + GAMMA * values.amax(1)[next_state]
    return values.transpose(1, 2)


def save(name: str, figure: Figure) -> None:
    """Saves with a palette, a third of the size and no difference to the eye."""
    path = FOLDER / f"run_{name}.png"
    figure.savefig(path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(128)
    small.save(path, optimize=True)


def draw() -> None:
    """Draws them all."""
    env = GridWorldEnv(nine_rooms(), coverage=True, observation="index", seed=0)
    eigenvalues, exact = exact_eigenfunctions(env, NUM_OPTIONS + 2)
    similarity = cosine_similarity(exact, exact, eigenvalues)
    save("eigenfunctions", draw_eigenfunctions(env.layout, exact, similarity))

    followed = exact[:, 1 : NUM_OPTIONS + 1]
    values = solve_options(followed, env.next_state)
    climb = option_climb(values, followed, env.next_state)
    save("options", draw_options(env, values, followed, climb))

    start = int(env.reset()["state_id"])
    option = int(climb.gain[start].argmax())
    path = greedy_path(values[:, option], env.next_state, start)
    title = f"Greedy rollout of option {option + 1} from the start"
    save("rollout", draw_rollout(env.layout, path, followed[:, option], title=title))

    torch.manual_seed(0)
    walk = env.rollout(STEPS, break_when_any_done=False)["state_id"]
    save("visits", draw_visits(env.layout, walk.bincount(minlength=env.num_states)))


if __name__ == "__main__":
    draw()
