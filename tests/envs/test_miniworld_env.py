"""The 3D environments as TorchRL environments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from needs_miniworld import needs_miniworld
from torchrl.envs.utils import check_env_specs

from torchrl_dceo.envs import (
    StateCounts,
    env_settings,
    find_transform,
    get_env_state,
    make_env,
    set_env_state,
)

ENVIRONMENTS = [
    "MiniWorldFourRoomsStrafe",
    "MyWayHomeSparseStrafe",
    "MiniWorldFourRooms",
    "MyWayHomeSparse",
]
LEFT, RIGHT, FORWARD = range(3)

pytestmark = needs_miniworld


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("batch_size", [(), 2])
def test_specs(name, batch_size):
    env = make_env(name, batch_size=batch_size, seed=0, visits="coverage", step_counter=True)
    check_env_specs(env)
    shape = () if batch_size == () else (2,)
    data = env.rollout(4, break_when_any_done=False)
    assert data["pixels"].shape == (*shape, 4, 3, 60, 80) and data["pixels"].dtype == torch.uint8
    assert data["pose"].shape == (*shape, 4, 3)
    assert data["state_id"].shape == data["action"].shape == (*shape, 4)
    assert int(find_transform(env, StateCounts).counts.sum()) > 4


def test_saved_state_continues_identically():
    settings = {"batch_size": 2, "max_steps": 25}
    env = make_env("MiniWorldFourRooms", seed=0, **settings)
    data = env.rollout(12, break_when_any_done=False)[:, -1]["next"].exclude("reward")
    saved = get_env_state(env)
    assert all(isinstance(value, torch.Tensor) for value in saved.values())
    other = make_env("MiniWorldFourRooms", seed=9, **settings)
    other.reset()
    set_env_state(other, saved)

    def go_on(env):
        generator = torch.Generator().manual_seed(1)
        # Past the end of the episode, so that the saved generator places agent and box.
        return env.rollout(
            30,
            lambda td: td.set("action", torch.randint(3, env.batch_size, generator=generator)),
            auto_reset=False,
            tensordict=data.clone(),
            break_when_any_done=False,
        )

    one, two = go_on(env), go_on(other)
    for key in ("pixels", "pose", "state_id", "is_init", ("next", "reward"), ("next", "done")):
        assert torch.equal(one[key], two[key]), key
    assert one["is_init"].any()


def test_coverage_has_no_goal():
    from torchrl_dceo.envs.miniworld import MiniWorldFourRooms

    env = MiniWorldFourRooms(coverage=True)
    env.reset(seed=0)
    # Where the box would be, and straight at it.
    x, _, z = env.box.pos
    env.agent.pos = np.array([x, 0.0, z])
    assert env.step(LEFT)[1:3] == (0.0, False)
    red = env.observe_at(np.array([[x - 1.5, z]]), 0.0)[0]
    assert not ((red[0] > 150) & (red[1] < 60)).any()


@pytest.mark.slow
def test_worker_processes_give_the_same_as_one():
    def walk(parallel):
        env = make_env("MiniWorldFourRooms", batch_size=2, seed=3, parallel=parallel)
        generator = torch.Generator().manual_seed(0)

        # TorchRL hands a policy the tensordict only if that is its one argument.
        def policy(tensordict):
            return tensordict.set("action", torch.randint(3, (2,), generator=generator))

        steps = env.rollout(20, policy, break_when_any_done=False)
        env.close()
        return steps["next", "pixels"].clone()

    assert torch.equal(walk(parallel=False), walk(parallel=True))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_setting_is_taken_and_others_refused(name):
    values = {
        "cell_size": 2.0,
        "coverage": True,
        "max_steps": 7,
        "obs_height": 42,
        "obs_width": 44,
        "parallel": False,
        "samples": 1,
        "views": 2,
    }
    if name == "MiniWorldFourRooms":
        values["distinct_walls"] = True
    if name.endswith("Strafe"):
        values["starts"] = "anywhere"
    if name == "MiniWorldFourRoomsStrafe":
        values["start_seed"] = 4
    assert env_settings(name) == sorted(values)
    env = make_env(name, seed=0, **values)
    assert env.reset()["pixels"].shape == (3, 42, 88)
    assert env.base_env.num_states < make_env(name).base_env.num_states
    with pytest.raises(
        ValueError, match=r"unknown setting of .* 'sample' \(did you mean 'samples'"
    ):
        make_env(name, sample=1)


def test_gymnasium_knows_the_environments():
    import gymnasium as gym
    from gymnasium.utils.env_checker import check_env

    import torchrl_dceo.envs.miniworld  # noqa: F401

    env = gym.make("torchrl_dceo/MyWayHomeSparse-v0", render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    assert env.render().shape == (600, 800, 3)


def test_pictures_for_people():
    env = make_env("MyWayHomeSparse", seed=0)
    env.reset()
    above = env.base_env.render(top=True)
    assert above.shape == env.base_env.render().shape == (600, 800, 3)
    green = (above[..., 1] > 150) & (above[..., 0] < 50) & (above[..., 2] < 50)
    # The goal, top left of the plan.
    assert green.any() and green.nonzero().float().mean(0)[1] < 200


@pytest.mark.parametrize("name", ["MiniWorldFourRoomsStrafe", "MiniWorldFourRooms"])
def test_batched_steps_are_those_of_serial_env(name):
    """Transition by transition, over ends of episodes, against TorchRL's own path."""
    from torchrl_dceo._fast import fast_path
    from torchrl_dceo.envs.gym import SerialGymEnvs

    def collect(fast):
        settings = {"max_steps": 7, "obs_width": 12, "obs_height": 9, "samples": 1}
        env = make_env(name, batch_size=3, seed=0, visits="counts", **settings)
        assert isinstance(env.base_env, SerialGymEnvs)
        generator = torch.Generator().manual_seed(1)
        actions = env.action_spec.space.n

        def policy(tensordict):
            chosen = torch.randint(actions, env.batch_size, generator=generator)
            return tensordict.set("action", chosen)

        with fast_path(fast):
            return env.rollout(20, policy, break_when_any_done=False)

    fast, slow = collect(True), collect(False)
    assert set(fast.keys(True, True)) == set(slow.keys(True, True))
    assert fast["next", "truncated"].sum() >= 6
    for key in slow.keys(True, True):
        assert fast[key].dtype == slow[key].dtype and torch.equal(fast[key], slow[key]), key


def test_batched_steps_end_at_the_goal():
    env = make_env("MiniWorldFourRoomsStrafe", batch_size=2, seed=0, obs_width=8, obs_height=6)
    data = env.reset()
    env.base_env[0].gym_env[0].agent.pos = np.array([2.7, 0.0, 1.5])  # a step from the box
    data = env.step(data.set("action", torch.tensor([3, 3])))["next"]
    assert data["reward"].tolist() == [[1.0], [0.0]]
    assert data["terminated"].tolist() == data["done"].tolist() == [[True], [False]]
    assert not data["truncated"].any()
