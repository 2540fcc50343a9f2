"""Draws the figures of docs/environments/index.md: ``python docs/tools/draw_environments.py``."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from torchrl_dceo.envs import RubiksCubeEnv, SwitchingGridWorldEnv, make_env

FOLDER = Path(__file__).parents[1] / "images"
GAP = 16
GRIDS = {
    "nine_rooms": "NineRooms",
    "four_rooms": "FourRooms",
    "maze": "Maze",
    "grid_maze": "GridMaze",
}
SWITCHES = {"goal_switch": "NineRoomsGoalSwitch", "topology_switch": "NineRoomsTopologySwitch"}
OBJECTS = {
    "escape_room": "EscapeRoom",
    "rooms_with_obstacles": "RoomsWithObstacles",
    "obstructed_key": "ObstructedKey",
}

MINIWORLD_ENVS = {
    "miniworld_four_rooms_strafe": "MiniWorldFourRoomsStrafe",
    "my_way_home_sparse_strafe": "MyWayHomeSparseStrafe",
    "miniworld_four_rooms": "MiniWorldFourRooms",
    "my_way_home_sparse": "MyWayHomeSparse",
}


def save(name: str, *pictures: Tensor) -> None:
    """Concatenates images [H, W, 3] of the same height, with white between them."""
    gap = torch.full((pictures[0].shape[0], GAP, 3), 255, dtype=torch.uint8)
    row = [pictures[0]]
    for picture in pictures[1:]:
        row += [gap, picture]
    Image.fromarray(torch.cat(row, dim=1).numpy()).save(FOLDER / f"env_{name}.png", optimize=True)


def draw() -> None:
    """Draws them all."""
    FOLDER.mkdir(exist_ok=True)
    for name, env_name in GRIDS.items():
        env = make_env(env_name, seed=0)
        env.reset()
        save(name, env.base_env.render(tile_size=16))
    for name, env_name in SWITCHES.items():
        switching = make_env(env_name, seed=0).base_env
        assert isinstance(switching, SwitchingGridWorldEnv)
        envs = [switching.stationary_env(i) for i in (0, 1)]
        for phase in envs:
            phase.reset()
        save(name, *(phase.render(tile_size=12) for phase in envs))
    cube = RubiksCubeEnv(max_depth=5)
    start = cube.reset()["state_id"]
    save("rubiks_cube", cube.render(start, tile_size=24), cube.render(start * 0, tile_size=24))
    for name, env_name in OBJECTS.items():
        env = make_env(env_name, seed=1)
        env.reset()
        save(name, env.base_env.render(tile_size=16))
    montezuma = make_env("MontezumaRevenge", seed=0)
    montezuma.reset()
    screen = montezuma.base_env.render()
    save("montezuma", screen.repeat_interleave(2, 0).repeat_interleave(3, 1))  # wide pixels
    for name, env_name in MINIWORLD_ENVS.items():
        env = make_env(env_name, seed=1)
        env.reset()
        save(name, *(fit(env.base_env.render(top=top), 240) for top in (True, False)))
    overview = []
    for env_name in ("NineRooms", "Maze", "ObstructedKey"):
        env = make_env(env_name, seed=1)
        env.reset()
        picture = env.base_env.render(tile_size=12)
        overview.append(fit(picture, 228))
    save("overview", *overview, fit(cube.render(start, tile_size=24), 228))


def shortest(env, goal: int) -> list[int]:
    """The actions of a shortest path from the start to a state, in a table-driven environment."""
    start = int(env.reset()["state_id"])
    came: dict[int, tuple[int, int]] = {start: (start, -1)}
    queue = deque([start])
    while goal not in came:
        state = queue.popleft()
        for action, following in enumerate(env.next_state[state].tolist()):
            if following not in came:
                came[following] = (state, action)
                queue.append(following)
    actions: list[int] = []
    while goal != start:
        goal, action = came[goal]
        actions.insert(0, action)
    return actions


def film(name: str, env, actions: list[int] | None, steps: int = 60, height: int = 228) -> None:
    """A GIF of given actions, or of random ones."""
    td = env.reset()
    frames = [fit(env.base_env.render(), height)]
    for action in actions if actions is not None else [None] * steps:
        td = env.rand_action(td) if action is None else td.set("action", torch.tensor(action))
        _, td = env.step_and_maybe_reset(td)
        frames.append(fit(env.base_env.render(), height))
    images = [
        Image.fromarray(frame.numpy()).quantize(64, dither=Image.Dither.NONE) for frame in frames
    ]
    durations = [120] * (len(images) - 1) + [1200]
    path = FOLDER / f"film_{name}.gif"
    images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0)


def films() -> None:
    """Draws the films: shortest paths where they are known, random actions elsewhere."""
    for name, env_name in (
        ("nine_rooms", "NineRooms"),
        ("maze", "Maze"),
        ("grid_maze", "GridMaze"),
    ):
        env = make_env(env_name, seed=0, slip=0.0, max_steps=1000)
        table = env.base_env
        goal = table.layout.cells.index(table.layout.goals[0])
        film(name, env, shortest(table, goal)[:-1])
    cube = make_env("RubiksCube222", slip=0.0)
    film("rubiks_cube", cube, shortest(cube.base_env, 0)[:-1])
    torch.manual_seed(0)
    for name, env_name in OBJECTS.items():
        film(name, make_env(env_name, seed=1, max_steps=1000), None)
    for name in ("miniworld_four_rooms_strafe", "my_way_home_sparse_strafe"):
        film(name, make_env(MINIWORLD_ENVS[name], seed=1), [2] * 12 + [1] * 12, height=150)
    film("montezuma", make_env("MontezumaRevenge", seed=0), None, height=160)


def fit(picture: Tensor, height: int) -> Tensor:
    """Scales an image [H, W, 3] to a height."""
    width = round(picture.shape[1] * height / picture.shape[0])
    scaled = Image.fromarray(picture.numpy()).resize((width, height), Image.Resampling.LANCZOS)
    return torch.tensor(list(scaled.tobytes()), dtype=torch.uint8).view(height, width, 3)


if __name__ == "__main__":
    draw()
    films()
