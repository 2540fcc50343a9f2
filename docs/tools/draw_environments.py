"""Draws the pictures of docs/environments/index.md: ``python docs/tools/draw_environments.py``."""

from __future__ import annotations

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

MINIWORLDS = {
    "miniworld_four_rooms_strafe": "MiniWorldFourRoomsStrafe",
    "my_way_home_sparse_strafe": "MyWayHomeSparseStrafe",
    "miniworld_four_rooms": "MiniWorldFourRooms",
    "my_way_home_sparse": "MyWayHomeSparse",
}


def save(name: str, *pictures: Tensor) -> None:
    """Puts pictures [H, W, 3] of one height side by side, white between them."""
    gap = torch.full((pictures[0].shape[0], GAP, 3), 255, dtype=torch.uint8)
    row = [pictures[0]]
    for picture in pictures[1:]:
        row += [gap, picture]
    Image.fromarray(torch.cat(row, dim=1).numpy()).save(FOLDER / f"env_{name}.png", optimize=True)


def draw() -> None:
    """Draws them all."""
    FOLDER.mkdir(exist_ok=True)
    for name, world in GRIDS.items():
        env = make_env(world, seed=0)
        env.reset()
        save(name, env.base_env.render(tile_size=16))
    for name, world in SWITCHES.items():
        switching = make_env(world, seed=0).base_env
        assert isinstance(switching, SwitchingGridWorldEnv)
        worlds = [switching.world(i) for i in (0, 1)]
        for phase in worlds:
            phase.reset()
        save(name, *(phase.render(tile_size=12) for phase in worlds))
    cube = RubiksCubeEnv(max_depth=5)
    start = cube.reset()["state_id"]
    save("rubiks_cube", cube.render(start, tile_size=24), cube.render(start * 0, tile_size=24))
    for name, world in OBJECTS.items():
        env = make_env(world, seed=1)
        env.reset()
        save(name, env.base_env.render(tile_size=16))
    montezuma = make_env("MontezumaRevenge", seed=0)
    montezuma.reset()
    screen = montezuma.base_env.render()
    save("montezuma", screen.repeat_interleave(2, 0).repeat_interleave(3, 1))  # wide pixels
    for name, world in MINIWORLDS.items():
        env = make_env(world, seed=1)
        env.reset()
        save(name, *(fit(env.base_env.render(top=top), 240) for top in (True, False)))
    overview = []
    for world in ("NineRooms", "Maze", "ObstructedKey"):
        env = make_env(world, seed=1)
        env.reset()
        picture = env.base_env.render(tile_size=12)
        overview.append(fit(picture, 228))
    save("overview", *overview, fit(cube.render(start, tile_size=24), 228))


def fit(picture: Tensor, height: int) -> Tensor:
    """Scales a picture [H, W, 3] to a height."""
    width = round(picture.shape[1] * height / picture.shape[0])
    scaled = Image.fromarray(picture.numpy()).resize((width, height), Image.Resampling.LANCZOS)
    return torch.tensor(list(scaled.tobytes()), dtype=torch.uint8).view(height, width, 3)


if __name__ == "__main__":
    draw()
