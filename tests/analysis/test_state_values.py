from __future__ import annotations

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from torchrl_dceo.analysis import (
    find_table_env,
    followed_eigenfunctions,
    reachable_states,
    state_values,
)
from torchrl_dceo.envs import GridWorldEnv, RubiksCubeEnv, make_env
from torchrl_dceo.modules import EigenReward


def test_every_state_gets_the_value_of_its_own_observation():
    env = make_env("NineRooms", room_size=3, batch_size=[2])
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 13 * 13, 4))
    module = TensorDictModule(lambda x: net(x.float()), in_keys=["pixels"], out_keys=["f"])
    values = state_values(module, env)
    rollout = env.rollout(30)
    seen = net(rollout["pixels"].flatten(0, 1).float())
    torch.testing.assert_close(values[rollout["state_id"].flatten()], seen)
    assert not values.requires_grad


def test_more_states_than_one_pass_holds():
    cube = RubiksCubeEnv(max_depth=4)
    assert cube.num_states > 2048
    module = TensorDictModule(lambda s: s * 2, in_keys=["state_id"], out_keys=["double"])
    assert torch.equal(state_values(module, cube), 2 * torch.arange(cube.num_states))


def test_another_output_can_be_asked_for():
    two = TensorDictModule(lambda s: (s, -s), in_keys=["state_id"], out_keys=["a", "b"])
    env = GridWorldEnv("S..")
    assert state_values(two, env).tolist() == [0, 1, 2]
    assert state_values(two, env, out_key="b").tolist() == [0, -1, -2]


def test_no_random_number_is_drawn():
    module = TensorDictModule(nn.Identity(), in_keys=["state_id"], out_keys=["same"])
    for name in ("NineRooms", "NineRoomsTopologySwitch"):
        env = make_env(name)
        before = torch.get_rng_state()
        state_values(module, env)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_changing_environment_is_the_one_in_force():
    env = make_env("NineRoomsTopologySwitch", room_size=3, switch_steps=5)
    before = find_table_env(env)
    env.rollout(6, break_when_any_done=False)
    after = find_table_env(env)
    assert before.layout == env.base_env.layouts[0] and after.layout == env.base_env.layouts[1]
    # Three rooms can no longer be entered, nor can the closed hallways.
    reached = reachable_states(after.next_state, after._starts)
    assert int(reached.sum()) == 6 * 9 + 5
    assert int(reachable_states(before.next_state, before._starts).sum()) == before.num_states


@pytest.mark.parametrize(
    ("signs", "skip_first", "expected"),
    [
        ("+", True, [1.0, 2.0]),
        ("-", True, [-1.0, -2.0]),
        ("both", False, [0.0, 1.0, 0.0, -1.0]),
    ],
)
def test_followed_functions_are_those_whose_differences_reward(signs, skip_first, expected):
    encoder = TensorDictModule(nn.Identity(), in_keys=["observation"], out_keys=["representation"])
    reward = EigenReward(encoder, 2, skip_first=skip_first, signs=signs)
    f = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    followed = followed_eigenfunctions(reward, f)
    assert followed.flatten().tolist() == expected
    from tensordict import TensorDict

    batch = TensorDict({"observation": 0 * f, "next": {"observation": f}}, [1])
    assert torch.equal(reward(batch)["option_reward"], followed)


def test_environments_and_modules_that_do_not_fit_are_named():
    module = TensorDictModule(nn.Identity(), in_keys=["pixels"], out_keys=["f"])
    with pytest.raises(
        ValueError, match="only an environment with a transition table can list its states"
    ):
        state_values(module, make_env("EscapeRoom"))
    with pytest.raises(
        KeyError, match=r"reads \['pixels'\], but the environment has only \['observation'"
    ):
        state_values(module, GridWorldEnv("S..", observation="xy"))
