"""What every MiniGrid environment has to do, whatever is in it."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from minigrid.core.actions import Actions
from minigrid.manual_control import ManualControl
from minigrid.wrappers import (
    FullyObsWrapper,
    ImgObsWrapper,
    RGBImgObsWrapper,
    RGBImgPartialObsWrapper,
    SymbolicObsWrapper,
)
from torchrl.envs import GymEnv
from torchrl.envs.utils import check_env_specs

from torchrl_dceo.envs.env_state import pack_generator
from torchrl_dceo.envs.grid.grid_world import TILE_KINDS, tile
from torchrl_dceo.envs.grid.layouts import ACTIONS
from torchrl_dceo.envs.minigrid import (
    ENVIRONMENTS,
    OBJECT_ACTIONS,
    EscapeRoom,
    KeyDoorEnv,
    MiniGridMapEnv,
    NineRooms,
    env_id,
    register_envs,
)
from torchrl_dceo.envs.minigrid.cells import KIND, kind_of, make_object

ROOM = ["#####", "#...#", "#.S.#", "#...#", "#####"]
every_env = pytest.mark.parametrize("name", ENVIRONMENTS)


def trajectory(env, actions):
    """What an environment shows under the given actions, over as many episodes as they make."""
    seen = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append((observation["pixels"].tobytes(), int(observation["state_id"]), reward))
        seen.append((terminated, truncated))
        if terminated or truncated:
            observation, _ = env.reset()
            seen.append(observation["pixels"].tobytes())
    return seen


def random_actions(env, number, seed=0):
    return np.random.default_rng(seed).integers(env.action_space.n, size=number).tolist()


@every_env
@pytest.mark.parametrize("observation", ["pixels", "minigrid"])
def test_gymnasium_check(name, observation):
    env = gym.make(env_id(name), observation=observation).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*not within the observation space.*")
        warnings.filterwarnings("ignore", category=UserWarning, module="pygame")
        check_env(env, skip_render_check=True)


@every_env
def test_torchrl_specs(name):
    env = GymEnv(env_id(name), categorical_action_encoding=True)
    check_env_specs(env)
    rollout = env.rollout(5)
    minigrid_env = env.unwrapped
    assert rollout["pixels"].dtype == torch.uint8
    assert rollout["pixels"].shape[1:] == (3, minigrid_env.height, minigrid_env.width)
    assert rollout["state_id"].dtype == torch.int64
    assert rollout["state_id"].shape == rollout.shape
    assert rollout["action"].dtype == torch.int64
    assert rollout["action"].shape == rollout.shape


@every_env
def test_same_seed_same_trajectory(name):
    def run(seed):
        env = gym.make(env_id(name))
        env.reset(seed=seed)
        return trajectory(env, random_actions(env, 300))

    assert run(3) == run(3)
    assert run(3) != run(4)


@every_env
def test_state_id_in_range_and_truncation_at_limit(name):
    env = gym.make(env_id(name), coverage=True, max_steps=50).unwrapped
    env.reset(seed=0)
    for t in range(1, 51):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert 0 <= observation["state_id"] < env.num_states
        assert (reward, terminated, truncated) == (0.0, False, t == 50)


@every_env
def test_incremental_pixels_equal_a_full_drawing(name):
    env = gym.make(env_id(name), tile_size=3, coverage=True, max_steps=10**6).unwrapped
    env.reset(seed=1)
    for action in random_actions(env, 1500):
        pixels = env.step(action)[0]["pixels"]
        kinds = np.array(
            [[kind_of(env.grid.get(x, y)) for x in range(env.width)] for y in range(env.height)]
        )
        assert (kinds == env.cells).all()
        x, y = env.agent_pos
        kinds[y, x] = KIND["agent" if env.carrying is None else "agent_with_key"]
        drawn = [torch.cat([tile(TILE_KINDS[kind], 3) for kind in row], -1) for row in kinds]
        assert (pixels == torch.cat(drawn, -2).numpy()).all()


@every_env
def test_save_and_restore_in_mid_episode(name, tmp_path):
    env = gym.make(env_id(name))
    env.reset(seed=5)
    trajectory(env, random_actions(env, 137))
    np.savez(tmp_path / "environment.npz", **env.unwrapped.get_state())
    expected = trajectory(env, random_actions(env, 600, seed=1))

    other = gym.make(env_id(name))
    other.reset(seed=99)
    trajectory(other, random_actions(other, 20))
    with np.load(tmp_path / "environment.npz", allow_pickle=False) as saved:
        other.unwrapped.set_state(dict(saved))
    assert trajectory(other, random_actions(env, 600, seed=1)) == expected


def test_saved_state_does_not_change_as_the_environment_goes_on():
    env = KeyDoorEnv(["#####", "#KS.D", "#####"], slip=0.0)
    env.reset(seed=0)
    saved = env.get_state()
    before = {key: np.array(value, copy=True) for key, value in saved.items()}
    env.step(4)  # takes the key: a cell changes
    assert not np.array_equal(env.cells, before["cells"])
    assert all(np.array_equal(saved[key], before[key]) for key in before)
    env.set_state(saved)
    env.step(4)
    assert all(np.array_equal(saved[key], before[key]) for key in before)


def test_restore_keeps_a_half_used_word_of_the_generator():
    # A 32-bit draw leaves half of a 64-bit word in the generator: part of its state too.
    env, other = NineRooms(), NineRooms()
    env.reset(seed=0)
    other.reset(seed=1)
    env.np_random.integers(2**16, dtype=np.uint32)
    assert pack_generator(env.np_random)[4] == 1
    other.set_state(env.get_state())
    draws = [
        [int(e.np_random.integers(2**16, dtype=np.uint32)) for _ in range(5)] for e in (env, other)
    ]
    assert draws[0] == draws[1]


@pytest.mark.parametrize("actions", [ACTIONS, OBJECT_ACTIONS])
def test_slip_frequency(actions, monkeypatch):
    env = MiniGridMapEnv(ROOM, max_steps=10**9, actions=actions)
    carried_out = []
    act = env._act
    monkeypatch.setattr(env, "_act", lambda index: carried_out.append(index) or act(index))
    env.reset(seed=0)
    n, number = 40_000, len(actions)
    for _ in range(n):
        env.step(1)
    share = np.bincount(carried_out, minlength=number) / n
    # Each share's standard error is below 0.0017, the estimate of slip's below 0.0022.
    assert (1 - share[1]) * number / (number - 1) == pytest.approx(0.15, abs=0.01)
    assert np.delete(share, 1) == pytest.approx([0.15 / number] * (number - 1), abs=0.006)


def test_no_slip_and_full_slip():
    still = MiniGridMapEnv(ROOM, max_steps=10**9, slip=0.0)
    still.reset(seed=0)
    assert [still.step(a)[0]["state_id"] for a in (0, 1, 2, 2, 3, 3)] == [1, 2, 5, 8, 7, 6]
    wild = MiniGridMapEnv(ROOM, max_steps=10**9, slip=1.0)
    wild.reset(seed=0)
    assert {int(wild.step(0)[0]["state_id"]) for _ in range(500)} == set(range(9))


def test_moves_turn_the_agent_also_into_a_wall():
    env = MiniGridMapEnv(ROOM, max_steps=100, slip=0.0)
    env.reset(seed=0)
    faces = []
    for action in (0, 0, 1, 2, 3):
        env.step(action)
        faces.append((env.agent_pos, tuple(env.dir_vec)))
    assert faces == [
        ((2, 1), (0, -1)),
        ((2, 1), (0, -1)),
        ((3, 1), (1, 0)),
        ((3, 2), (0, 1)),
        ((2, 2), (-1, 0)),
    ]


def test_every_start_is_drawn():
    env = MiniGridMapEnv(["#####", "#S.S#", "#.S.#", "#####"], max_steps=10)
    env.reset(seed=0)
    starts = [env.reset()[0]["state_id"] for _ in range(3000)]
    ids, counts = np.unique(starts, return_counts=True)
    assert ids.tolist() == [0, 2, 4]
    assert counts / 3000 == pytest.approx([1 / 3] * 3, abs=0.04)


@every_env
def test_minigrid_wrappers_and_rendering(name):
    env = gym.make(env_id(name), render_mode="rgb_array", render_tile_size=8, slip=0.0)
    minigrid_env = env.unwrapped
    rgb = RGBImgObsWrapper(env, tile_size=8)
    before, _ = rgb.reset(seed=0)
    assert before["image"].shape == (minigrid_env.height * 8, minigrid_env.width * 8, 3)
    assert (before["image"] == env.render()).all()
    after = before
    for action in range(4):  # in every start at least one move is free
        after = rgb.step(action)[0]
        if minigrid_env.agent_pos != minigrid_env.starts[0]:
            break
    assert (before["image"] != after["image"]).any()
    full, _ = FullyObsWrapper(env).reset(seed=0)
    assert full["image"].shape == (minigrid_env.width, minigrid_env.height, 3)
    assert "pixels" in full

    native = gym.make(env_id(name), observation="minigrid")
    assert set(native.reset(seed=0)[0]) == {"image", "direction", "mission"}
    assert ImgObsWrapper(RGBImgPartialObsWrapper(native)).reset(seed=0)[0].shape == (56, 56, 3)
    symbols = SymbolicObsWrapper(native).reset(seed=0)[0]["image"]
    assert symbols.shape == (minigrid_env.width, minigrid_env.height, 3)


def test_minigrid_actions_turn_and_walk():
    env = EscapeRoom(slip=0.0)
    env.reset(seed=0)
    x, y = env.agent_pos
    assert env.agent_dir == 0  # to the right
    env.step(Actions.forward)
    assert env.agent_pos == (x + 1, y)
    env.step(Actions.left)
    assert (env.agent_pos, env.agent_dir) == ((x + 1, y), 3)
    env.step(Actions.forward)
    assert env.agent_pos == (x + 1, y - 1)
    env.step(Actions.right)
    assert env.agent_dir == 0
    env.step(Actions.drop)
    assert (env.agent_pos, env.step_count) == ((x + 1, y - 1), 5)


def test_minigrid_manual_control_plays_an_environment(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = gym.make(env_id("EscapeRoom"), render_mode="human", slip=0.0, screen_size=64)
    control = ManualControl(env, seed=0)
    control.reset(0)
    x, y = env.unwrapped.agent_pos
    for key in ("up", "right", "up"):
        control.key_handler(type("Event", (), {"key": key}))
    assert env.unwrapped.agent_pos == (x + 1, y + 1)
    env.close()


def test_hidden_goal_is_drawn_only_for_people():
    hidden, shown = NineRooms(), NineRooms(goal_visible=True)
    green = np.array([0, 255, 0])[:, None, None]

    def goals(env):
        return int((env.reset(seed=0)[0]["pixels"] == green).all(0).sum())

    assert (goals(hidden), goals(shown)) == (0, 1)
    assert goals(NineRooms(goal_visible=True, coverage=True)) == 0


def test_registration_is_idempotent_and_names_are_listed():
    before = dict(gym.registry)
    register_envs()
    assert dict(gym.registry) == before
    assert {env_id(name) for name in ENVIRONMENTS} <= set(before)
    assert len(ENVIRONMENTS) == 7
    assert env_id("Maze") == env_id("Maze-v0") == env_id("torchrl_dceo/Maze-v0")
    with pytest.raises(
        ValueError, match="unknown environment 'Labyrinth'; choose from NineRooms, "
    ):
        env_id("Labyrinth")


def test_every_kind_of_cell_survives_a_round_trip():
    kinds = [kind for kind in range(len(TILE_KINDS)) if not TILE_KINDS[kind].startswith("agent")]
    assert [kind_of(make_object(kind)) for kind in kinds] == kinds
    with pytest.raises(ValueError, match="no MiniGrid object is drawn with the tile 'agent'"):
        make_object(KIND["agent"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slip": 1.5}, r"slip must lie in \[0, 1\], got 1.5"),
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"observation": "rgb"}, "observation must be 'pixels' or 'minigrid', got 'rgb'"),
        ({"tile_size": 0}, "tile_size must be at least 1, got 0"),
        ({"room_size": 2}, "room_size must be at least 3, got 2"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        EscapeRoom(**arguments)


def test_bad_maps_actions_and_states():
    with pytest.raises(ValueError, match="the map has no start"):
        MiniGridMapEnv(["###", "#.#", "###"], max_steps=10)
    with pytest.raises(ValueError, match="at least 3 x 3 cells, got 1 x 3"):
        MiniGridMapEnv(["S.."], max_steps=10)
    with pytest.raises(ValueError, match="unknown character 'Q' in row 1 of the map"):
        MiniGridMapEnv(["###", "#Q#", "#S#"], max_steps=10)
    with pytest.raises(ValueError, match="the map is ragged: row 1 has 2 cells, row 0 has 3"):
        MiniGridMapEnv(["###", "#S", "###"], max_steps=10)
    env = NineRooms(slip=0.0)
    env.reset(seed=0)
    for action in (4, -1):
        with pytest.raises(
            ValueError, match=rf"action must lie in \[0, 4\), got {action}: the act"
        ):
            env.step(action)
    small = NineRooms(room_size=3)
    small.reset(seed=0)
    with pytest.raises(ValueError, match="13 x 13 cells, but this one has 19 x 19"):
        env.set_state(small.get_state())
    env.np_random = np.random.Generator(np.random.MT19937(0))
    with pytest.raises(ValueError, match="only a PCG64 generator can be saved, got MT19937"):
        env.get_state()
