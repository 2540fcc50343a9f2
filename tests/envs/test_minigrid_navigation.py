"""The MiniGrid navigation environments are twins of the torch-native ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
from torchrl_dceo.envs.grid.maps import (
    four_rooms,
    grid_maze,
    maze,
    nine_rooms,
    nine_rooms_topology_switch,
)
from torchrl_dceo.envs.minigrid.rooms import (
    FourRooms,
    GridMaze,
    Maze,
    NavigationEnv,
    NineRooms,
)

CLOSED_HALLWAYS = nine_rooms_topology_switch(3)[1]
NO_BORDER = "S..\n.#.\n..G"
TWINS = {
    "NineRooms": (NineRooms, nine_rooms()),
    "NineRooms-7": (lambda **kw: NineRooms(room_size=7, **kw), nine_rooms(7)),
    "FourRooms": (FourRooms, four_rooms()),
    "Maze": (Maze, maze()),
    "GridMaze": (GridMaze, grid_maze()),
    "closed hallways": (lambda **kw: NavigationEnv(CLOSED_HALLWAYS, **kw), CLOSED_HALLWAYS),
    "no border": (lambda **kw: NavigationEnv(NO_BORDER, **kw), NO_BORDER),
}
every_twin = pytest.mark.parametrize("name", TWINS)


def put(env, cell):
    state = env.get_state()
    state["agent_pos"] = np.array([cell[1], cell[0]])
    env.set_state(state)


@every_twin
@pytest.mark.parametrize("coverage", [False, True])
def test_every_transition_equals_the_torch_native_twin(name, coverage):
    kind, text = TWINS[name]
    env = kind(slip=0.0, coverage=coverage, max_steps=10**9)
    env.reset(seed=0)
    size = len(env.layout.cells)
    native = GridWorldEnv(text, slip=0.0, coverage=coverage, batch_size=[size, 4])
    assert env.num_states == native.num_states == size
    states = torch.arange(size)[:, None].expand(size, 4)
    native.reset()
    native.set_env_state({**native.get_env_state(), "state_id": states})
    step = native.step(
        native.full_action_spec.zero().set("action", torch.arange(4).expand(size, 4))
    )
    step = step["next"]
    goals = [] if coverage else env.layout.goals  # an episode is over there: no transition leaves
    for state, cell in enumerate(env.layout.cells):
        for action in range(0 if cell in goals else 4):
            put(env, cell)
            assert env.state_id == state
            observation, reward, terminated, _, _ = env.step(action)
            twin = step[state, action]
            assert observation["state_id"] == twin["state_id"]
            assert reward == twin["reward"]
            assert terminated == twin["terminated"]
            assert (observation["pixels"] == twin["pixels"].numpy()).all()


@every_twin
@pytest.mark.parametrize("tile_size", [1, 8])
@pytest.mark.parametrize("goal_visible", [False, True])
def test_pixels_equal_the_torch_native_twin(name, tile_size, goal_visible):
    kind, text = TWINS[name]
    env = kind(tile_size=tile_size, goal_visible=goal_visible)
    env.reset(seed=0)
    native = GridWorldEnv(text, tile_size=tile_size, goal_visible=goal_visible)
    pictures = native.observe(torch.arange(native.num_states))
    for cell, picture in zip(native.cells.tolist(), pictures, strict=True):
        put(env, cell)
        assert (env.observe()["pixels"] == picture.numpy()).all()


@every_twin
def test_episodes_equal_the_torch_native_twin(name):
    kind, text = TWINS[name]
    env, native = kind(slip=0.0), GridWorldEnv(text, slip=0.0)
    observation, _ = env.reset(seed=0)
    td = native.reset()
    assert observation["state_id"] == td["state_id"]
    for action in np.random.default_rng(0).integers(4, size=100).tolist():
        observation, reward, terminated, truncated, _ = env.step(action)
        td = native.step(td.set("action", torch.tensor(action)))["next"]
        assert observation["state_id"] == td["state_id"]
        flags = (float(td["reward"]), bool(td["terminated"]), bool(td["truncated"]))
        assert (reward, terminated, truncated) == flags
        if terminated:
            break
    assert terminated or truncated


def test_bad_map_is_refused_as_the_torch_native_twin_does():
    with pytest.raises(ValueError, match="no goal can be reached from start"):
        NavigationEnv("S#G\n###\n...")
