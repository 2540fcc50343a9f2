from __future__ import annotations

import re

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs

from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
from torchrl_dceo.envs.grid.maps import (
    nine_rooms,
    nine_rooms_goal_switch,
    nine_rooms_topology_switch,
)
from torchrl_dceo.envs.grid.switching import SwitchingGridWorldEnv

# A corridor whose ends swap; then its middle closes.
CORRIDOR = ("S...G", "G...S", "S.X.S")


def act(env, *actions):
    """Steps through the same action in every environment; returns what each step gave."""
    root, results = env.reset(), []
    for action in actions:
        root["action"] = torch.full(env.batch_size, action)
        result, root = env.step_and_maybe_reset(root)
        results.append(result["next"].clone())
    return results


@pytest.mark.parametrize("batch_size", [(), (3,), (2, 2)])
@pytest.mark.parametrize("observation", ["pixels", "xy", "index"])
@pytest.mark.parametrize("maps", [nine_rooms_goal_switch, nine_rooms_topology_switch])
def test_specs(maps, observation, batch_size):
    env = SwitchingGridWorldEnv(maps(3), 5, observation=observation, batch_size=batch_size)
    check_env_specs(env)
    assert env.num_states == 93


def test_the_episode_goes_on_and_the_new_start_waits_for_the_reset():
    env = SwitchingGridWorldEnv(CORRIDOR[:2], 2, slip=0.0)
    right, left = 1, 3
    results = act(env, right, right, right, right, left, left, left, left)
    # Two steps right, switch: the old goal at the right end is none now, the new one is at the left.
    assert [r["state_id"].item() for r in results] == [1, 2, 3, 4, 3, 2, 1, 0]
    assert [r["reward"].item() for r in results] == [0.0] * 7 + [1.0]
    assert [r["done"].item() for r in results] == [False] * 7 + [True]
    assert env.get_env_state()["state_id"].item() == 4  # reset to the new start


def test_the_step_that_completes_the_count_is_still_of_the_old_map():
    env = SwitchingGridWorldEnv(CORRIDOR[:2], 4, slip=0.0)
    *_, last = act(env, 1, 1, 1, 1)
    assert last["terminated"].item() and last["reward"].item() == 1.0
    # The reset after it is the first thing of the new map.
    assert env.get_env_state()["state_id"].item() == 4
    early = SwitchingGridWorldEnv(CORRIDOR[:2], 3, slip=0.0)
    assert not act(early, 1, 1, 1, 1)[-1]["terminated"].item()


def test_nothing_but_the_map_tells():
    switching = SwitchingGridWorldEnv(nine_rooms_goal_switch(), 30, batch_size=[4], seed=0)
    plain = GridWorldEnv(nine_rooms(), batch_size=[4], seed=0)
    torch.manual_seed(0)
    expected = plain.rollout(60, break_when_any_done=False)
    torch.manual_seed(0)
    rollout = switching.rollout(60, break_when_any_done=False)
    assert set(rollout.keys(True, True)) == set(expected.keys(True, True))
    # The goal is invisible and no episode has ended: the switch cannot be noticed.
    assert not expected["next", "done"].any()
    assert (rollout == expected).all()


def test_every_environment_counts_its_own_steps():
    env = SwitchingGridWorldEnv(CORRIDOR, [100, 200], batch_size=[3], slip=0.0, max_steps=10)
    env.reset()
    state = env.get_env_state()
    state["env_steps"] = torch.tensor([99, 100, 250])
    state["state_id"] = torch.tensor([3, 1, 1])
    env.set_env_state(state)
    right, left = 1, 3
    action = torch.tensor([right, left, right])
    following = env.step(TensorDict({"action": action}, [3]))["next"]
    # The old goal, the new goal, and a hallway that has closed.
    assert following["state_id"].tolist() == [4, 0, 1]
    assert following["terminated"].squeeze(-1).tolist() == [True, True, False]
    reset = torch.tensor([True, True, False]).unsqueeze(-1)
    after = env.reset(following.exclude("reward").set("_reset", reset))
    assert after["state_id"].tolist() == [4, 4, 1]


@pytest.mark.parametrize("table", [True, False])
def test_each_map_behaves_as_its_stationary_environment(table, monkeypatch):
    if not table:
        monkeypatch.setattr(SwitchingGridWorldEnv.__base__, "_largest_table", 0)
    maps = nine_rooms_topology_switch(3)
    env = SwitchingGridWorldEnv(maps, 10, slip=0.0, batch_size=[93, 4], goal_visible=True)
    assert (env._all_observations is not None) == table
    action = torch.arange(4).expand(93, 4)
    for index, steps in enumerate((9, 10)):
        stationary = env.stationary_env(index)
        assert stationary.layout == env.layouts[index] and stationary.num_states == 93
        env.reset()
        state = env.get_env_state()
        state["state_id"] = torch.arange(93).unsqueeze(-1).expand(93, 4)
        state["env_steps"] = torch.full((93, 4), steps)
        env.set_env_state(state)
        assert env.render(tile_size=1).equal(stationary.render(state["state_id"], tile_size=1))
        following = env.step(TensorDict({"action": action}, [93, 4]))["next"]
        assert following["state_id"].equal(stationary.next_state)
        assert following["terminated"].squeeze(-1).equal(stationary._is_goal[stationary.next_state])
        assert following["pixels"].equal(stationary.observe(stationary.next_state))
    closed = [
        (r, c) for r, row in enumerate(env.layouts[1].rows) for c in range(13) if row[c] == "X"
    ]
    assert len(closed) == 7
    wall = torch.tensor([100, 100, 100], dtype=torch.uint8)
    for r, c in closed:
        others = env.cells.tolist().index([r, c]) != stationary.next_state  # the agent is elsewhere
        assert (following["pixels"][others][:, :, r, c] == wall).all()


def test_who_stands_in_a_closing_hallway_can_leave_it():
    env = SwitchingGridWorldEnv(("S...G", "S.X.S"), 2, slip=0.0)
    # S.X.S has no goal, and its two sides are cut off from each other.
    right, left = 1, 3
    results = act(env, right, right, left, right)
    assert [r["state_id"].item() for r in results] == [1, 2, 1, 1]


def test_several_starts_are_drawn_from_the_map_in_force():
    env = SwitchingGridWorldEnv(("S..SG", ".SSSG"), 1, batch_size=[9000], seed=0)
    share = torch.bincount(env.reset()["state_id"], minlength=5) / 9000
    assert share.tolist() == pytest.approx([1 / 2, 0, 0, 1 / 2, 0], abs=0.02)
    env.rand_step(env.reset())
    share = torch.bincount(env.reset()["state_id"], minlength=5) / 9000
    assert share.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0], abs=0.02)


@pytest.mark.parametrize("saved_at", [10, 29, 30, 31, 45])
def test_the_switch_survives_saving_and_loading(saved_at, tmp_path):
    def make(seed):
        return SwitchingGridWorldEnv(
            nine_rooms_topology_switch(2), 30, batch_size=[5], max_steps=12, seed=seed
        )

    def go_on(env, root):
        torch.manual_seed(1)
        return env.rollout(80, auto_reset=False, tensordict=root.clone(), break_when_any_done=False)

    env = make(0)
    root = env.reset()
    for _ in range(saved_at):
        _, root = env.step_and_maybe_reset(env.rand_action(root))
    torch.save(env.get_env_state(), tmp_path / "state.pt")
    expected = go_on(env, root)
    other = make(1)
    other.set_env_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert (go_on(other, root) == expected).all()
    # Both starts occur: the run crosses the switch.
    starts = {env.stationary_env(i)._starts.item() for i in (0, 1)}
    if saved_at < 12:
        assert starts <= set(expected["state_id"].flatten().tolist())


@pytest.mark.parametrize(
    ("maps", "steps", "message"),
    [
        (["S.G"], [], "needs at least two maps"),
        (["S.G", "G.S"], [5, 9], "got 2 maps and 2 switch_steps"),
        (["S.G", "G.S"], 0, "switch_steps must be positive and increasing, got [0]"),
        (["S.G", "G.S", "S.G"], [5, 5], "switch_steps must be positive and increasing, got [5, 5]"),
        (["S.G", "G..S"], 5, "got 1 x 3 cells for map 0 and 1 x 4 for map 1"),
        (["S.G.", "G.S#"], 5, "cell (0, 3) has a state_id in only one of maps 0 and 1"),
    ],
)
def test_bad_switches_get_one_sentence(maps, steps, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SwitchingGridWorldEnv(maps, steps)


def test_goals_and_starts_belong_to_the_maps():
    with pytest.raises(TypeError, match="goals is given by the marks of each map"):
        SwitchingGridWorldEnv(CORRIDOR, [3, 6], goals=[(0, 1)])
