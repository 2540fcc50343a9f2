from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
from torchrl.collectors import Collector
from torchrl.envs import ParallelEnv, SerialEnv
from torchrl.envs.utils import RandomPolicy, check_env_specs

from torchrl_dceo.envs import (
    Coverage,
    GridWorldEnv,
    RubiksCubeEnv,
    StateCounts,
    SwitchingGridWorldEnv,
    env_settings,
    find_transform,
    get_env_state,
    list_envs,
    make_env,
    num_states,
    set_env_state,
)
from torchrl_dceo.envs.grid.layouts import parse_layout
from torchrl_dceo.envs.gym import _close_all

MAP = "S..\n.#.\n..G"
OBJECT_ENVS = ["EscapeRoom", "RoomsWithObstacles", "ObstructedKey"]
# Tested in test_miniworld_rooms.py and test_miniworld_env.py, where their extra is installed.
MINIWORLD_ENVS = [
    "MiniWorldFourRoomsStrafe",
    "MyWayHomeSparseStrafe",
    "MiniWorldFourRooms",
    "MyWayHomeSparse",
]
FLAT = [name for name in list_envs() if name not in MINIWORLD_ENVS]


def _walk(env, steps, seed=0):
    """A fixed sequence of actions, from the environment's present state on after a reset."""
    generator = torch.Generator().manual_seed(seed)
    n = env.action_spec.space.n

    def policy(td):
        return td.set("action", torch.randint(n, env.batch_size, generator=generator))

    return env.rollout(steps, policy, break_when_any_done=False)


def test_list():
    assert list_envs() == [
        "NineRooms",
        "FourRooms",
        "Maze",
        "GridMaze",
        "SixteenRooms",
        "RandomMaze",
        "NineRoomsGoalSwitch",
        "NineRoomsTopologySwitch",
        "RubiksCube222",
        *OBJECT_ENVS,
        "MontezumaRevenge",
        *MINIWORLD_ENVS,
    ]


class TestEveryEnvironment:
    @pytest.mark.parametrize("name", [*FLAT, MAP])
    @pytest.mark.parametrize("batch_size", [(), 2])
    @pytest.mark.parametrize("coverage", [False, True])
    def test_specs(self, name, batch_size, coverage):
        env = make_env(
            name,
            batch_size=batch_size,
            seed=0,
            coverage=coverage,
            visits="coverage",
            step_counter=True,
        )
        check_env_specs(env)
        shape = () if batch_size == () else (2,)
        assert env.batch_size == shape
        data = env.rollout(4, break_when_any_done=False)
        assert data["state_id"].shape == data["action"].shape == (*shape, 4)
        assert data["state_id"].dtype == data["action"].dtype == torch.int64
        for key in ("is_init", "coverage", "step_count", ("next", "episode_reward")):
            assert data[key].shape == (*shape, 4, 1), key
        key = "observation" if name == "RubiksCube222" else "pixels"
        assert data[key].dtype == (torch.float32 if key == "observation" else torch.uint8)
        assert (data["state_id"] < num_states(env)).all()

    @pytest.mark.parametrize("name", FLAT)
    def test_collector(self, name):
        env = make_env(name, batch_size=2, seed=0, visits="counts", max_steps=5)
        collector = Collector(
            env, RandomPolicy(env.action_spec), frames_per_batch=20, total_frames=40
        )
        batches = list(collector)
        assert [data.numel() for data in batches] == [20, 20]
        assert all(data["is_init"].any() for data in batches)

    @pytest.mark.parametrize("name", FLAT[:-1])  # Atari's: test_atari.py
    @pytest.mark.parametrize("batch_size", [(), 2])
    def test_seeds(self, name, batch_size):
        def states(seed):
            env = make_env(name, batch_size=batch_size, seed=seed, slip=1.0, max_steps=1000)
            return _walk(env, 30)["next", "pixels" if "Cube" not in name else "observation"]

        assert states(1).equal(states(1))
        assert not states(1).equal(states(2))

    @pytest.mark.parametrize("name", ["NineRooms", "EscapeRoom"])
    def test_global_seed_when_none_is_given(self, name):
        def states():
            torch.manual_seed(7)
            return _walk(make_env(name, slip=1.0), 30)["next", "state_id"]

        assert states().equal(states())

    @pytest.mark.parametrize("name", ["NineRooms", "RubiksCube222", *OBJECT_ENVS])
    @pytest.mark.parametrize("batch_size", [(), 2])
    def test_saved_state_continues_identically(self, name, batch_size):
        env = make_env(name, batch_size=batch_size, seed=0, slip=0.5)
        data = _walk(env, 12)[..., -1]["next"].exclude("reward")
        saved = get_env_state(env)
        assert all(isinstance(value, torch.Tensor) for value in saved.values())
        other = make_env(name, batch_size=batch_size, seed=9, slip=0.5)
        other.reset()
        set_env_state(other, saved)

        def go_on(env):
            env_data = data.clone()
            generator = torch.Generator().manual_seed(1)
            n = env.action_spec.space.n
            return env.rollout(
                40,
                lambda td: td.set("action", torch.randint(n, env.batch_size, generator=generator)),
                auto_reset=False,
                tensordict=env_data,
                break_when_any_done=False,
            )

        first, again = go_on(env), go_on(other)
        for key, value in first.items(True, True):
            assert value.equal(again[key]), key


class TestWhatIsBuilt:
    def test_kinds(self):
        assert isinstance(make_env("NineRooms").base_env, GridWorldEnv)
        assert isinstance(make_env("NineRoomsGoalSwitch").base_env, SwitchingGridWorldEnv)
        assert isinstance(make_env("RubiksCube222").base_env, RubiksCubeEnv)
        assert isinstance(make_env("EscapeRoom", batch_size=2).base_env, SerialEnv)

    def test_gymnasium_id_is_the_minigrid_version(self):
        env = make_env("torchrl_dceo/NineRooms-v0", seed=0, slip=0.0)
        ours = make_env("NineRooms", seed=0, slip=0.0)
        a, b = _walk(env, 60), _walk(ours, 60)
        assert not isinstance(env.base_env, GridWorldEnv)
        assert a["next", "pixels"].equal(b["next", "pixels"])
        assert a["next", "state_id"].equal(b["next", "state_id"])

    def test_settings_reach_the_environment(self):
        assert num_states(make_env("NineRooms", room_size=3)) == 93
        assert num_states(make_env("RubiksCube222", max_depth=3)) == 385
        env = make_env("NineRooms", observation="xy", max_steps=7, batch_size=[2, 3])
        data = env.rollout(20, break_when_any_done=True)
        assert data["observation"].shape == (2, 3, 7, 2)
        assert make_env("ObstructedKey", tile_size=3).reset()["pixels"].shape == (3, 39, 39)
        assert make_env("RoomsWithObstacles", num_obstacles=1).gym_env.num_obstacles == 1

    def test_switching_environment_switches(self):
        env = make_env("NineRoomsGoalSwitch", switch_steps=100, seed=0)
        before = env.rollout(100)[0]["state_id"]
        after = env.rollout(1)[0]["state_id"]
        assert before != after

    def test_coverage_mode_has_no_reward(self):
        env = make_env("S.G", coverage=True, batch_size=20, seed=0)
        data = env.rollout(50, break_when_any_done=False)
        assert not data["next", "terminated"].any() and not data["next", "reward"].any()
        env = make_env("S.G", batch_size=20, seed=0)
        data = env.rollout(50, break_when_any_done=False)
        assert data["next", "terminated"].any() and data["next", "reward"].any()

    def test_episode_reward_is_the_sum_of_the_episode(self):
        data = make_env("S.G", batch_size=5, seed=0).rollout(50, break_when_any_done=False)
        done = data["next", "terminated"]
        assert done.any() and (data["next", "episode_reward"][done] == 1).all()

    def test_maps(self, tmp_path):
        path = tmp_path / "mine.txt"
        path.write_text(MAP)
        for source in (MAP, path, str(path), parse_layout(MAP)):
            assert num_states(make_env(source)) == 8
        assert num_states(make_env("S.G", slip=0.0)) == 3

    def test_parallel_processes(self):
        env = make_env("EscapeRoom", batch_size=2, seed=3, parallel=True, slip=1.0)
        serial = make_env("EscapeRoom", batch_size=2, seed=3, slip=1.0)
        try:
            assert isinstance(env.base_env, ParallelEnv)
            data = _walk(env, 20)
            assert data["next", "state_id"].equal(_walk(serial, 20)["next", "state_id"])
            # Ctrl-C and a cluster's SIGTERM go to workers too, which the process that trains has yet to save.
            for number in (signal.SIGINT, signal.SIGTERM):
                for worker in env.base_env._workers:
                    os.kill(worker.pid, number)
            saved = get_env_state(env)
            serial.reset()
            set_env_state(serial, saved)
            assert all(v.equal(saved[k]) for k, v in get_env_state(serial).items())
            env.reset()
            set_env_state(env, saved)
            assert all(v.equal(saved[k]) for k, v in get_env_state(env).items())
            workers = list(env.base_env._workers)
        finally:
            _close_all()  # what Python does at its end, which would wait for them otherwise
        assert env.base_env.is_closed and not any(worker.is_alive() for worker in workers)

    def test_environments_share_the_counts_they_are_given(self):
        counts = Coverage(237)
        for seed in (0, 1):
            env = make_env("NineRooms", batch_size=4, seed=seed, visits=counts)
            env.rollout(10)
        assert counts.counts.sum() == 2 * 4 * 11
        assert find_transform(env, StateCounts).counts is counts.counts
        assert "coverage" in env.observation_spec.keys()

    def test_counts_of_object_environments(self):
        env = make_env("EscapeRoom", batch_size=2, seed=0, visits="counts")
        data = env.rollout(10)
        counts = find_transform(env, StateCounts).counts
        expected = torch.cat([data["state_id"][:, 0], data["next", "state_id"].flatten()])
        assert counts.equal(expected.bincount(minlength=len(counts)))


class TestErrors:
    @pytest.mark.parametrize(
        ("name", "meant"),
        [("NineRoms", "NineRooms"), ("escaperoom", "EscapeRoom"), ("RubiksCube", "RubiksCube222")],
    )
    def test_wrong_name_lists_the_right_ones(self, name, meant):
        with pytest.raises(ValueError, match=f"'{name}' .did you mean '{meant}'") as error:
            make_env(name)
        assert all(env in str(error.value) for env in list_envs())

    def test_wrong_name_like_nothing(self):
        with pytest.raises(ValueError, match="unknown environment 'qqq'; choose from NineRooms, "):
            make_env("qqq")
        with pytest.raises(ValueError, match="did you mean 'torchrl_dceo/EscapeRoom-v0'"):
            make_env("torchrl_dceo/EscapRoom-v0")

    @pytest.mark.parametrize(
        ("name", "setting", "meant"),
        [
            ("NineRooms", "room_sise", "room_size"),
            ("NineRoomsGoalSwitch", "switch_step", "switch_steps"),
            ("RubiksCube222", "depth", "max_depth"),
            ("EscapeRoom", "slipp", "slip"),
            (MAP, "slipp", "slip"),
        ],
    )
    def test_wrong_setting_names_the_accepted_ones(self, name, setting, meant):
        with pytest.raises(ValueError, match=f"'{setting}' .did you mean '{meant}'") as error:
            make_env(name, **{setting: 1})
        assert all(known in str(error.value) for known in env_settings(name))

    def test_settings_of_another_environment(self):
        with pytest.raises(ValueError, match="unknown setting of RubiksCube222 'room_size'"):
            make_env("RubiksCube222", room_size=3)
        with pytest.raises(ValueError, match="unknown setting of EscapeRoom 'observation'"):
            make_env("EscapeRoom", observation="xy")

    def test_other_bad_values(self):
        with pytest.raises(
            ValueError, match="visits must be 'counts', 'coverage' or a StateCounts"
        ):
            make_env("NineRooms", visits="both")
        with pytest.raises(ValueError, match="counts 3 states, but this environment has 237"):
            make_env("NineRooms", visits=StateCounts(3))
        with pytest.raises(ValueError, match=r"one batch dimension, got batch_size \[2, 2\]"):
            make_env("EscapeRoom", batch_size=(2, 2))
        with pytest.raises(ValueError, match="state is of 3 environments, but there are 2"):
            env = make_env("EscapeRoom", batch_size=2)
            env.reset()
            set_env_state(
                env, {"0.a": torch.zeros(1), "1.a": torch.zeros(1), "2.a": torch.zeros(1)}
            )


def test_every_setting_listed_is_accepted_by_its_environment():
    assert "room_size" in env_settings("NineRooms")
    assert {"switch_steps", "room_size"} <= set(env_settings("NineRoomsTopologySwitch"))
    assert {"num_breakable", "parallel", "coverage"} <= set(env_settings("ObstructedKey"))
    values = {
        "clip_rewards": False,
        "coverage": True,
        "frame_skip": 2,
        "frame_stack": 2,
        "full_actions": True,
        "goal_visible": True,
        "goals": [(1, 4)],
        "life_ends": True,
        "map_seed": 1,
        "max_depth": 2,
        "max_states": 200,
        "max_steps": 9,
        "min_states": 70,
        "num_breakable": 2,
        "num_obstacles": 1,
        "num_threads": 0,
        "observation": "xy",
        "parallel": False,
        "positions": (3, 42, 43),
        "ram": True,
        "room_size": 4,
        "size": 42,
        "slip": 0.5,
        "start": 1,
        "starts": [(1, 3)],
        "sticky": 0.5,
        "switch_steps": 10,
        "tile_size": 2,
        "vector": False,
    }
    for name in FLAT:
        for setting in env_settings(name):
            value = values[setting]
            if (name, setting) == ("RandomMaze", "goals"):
                value = [(1, 3)]  # there (1, 4) is a wall
            make_env(name, **{setting: value}).reset()


def test_import_needs_neither_scipy_nor_matplotlib_nor_minigrid():
    code = (
        "import sys; sys.modules.update(scipy=None, matplotlib=None, minigrid=None, pygame=None, ale_py=None);"
        "import torchrl_dceo.envs as e; e.make_env('NineRooms').rollout(2)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
