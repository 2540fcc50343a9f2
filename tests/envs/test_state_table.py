"""The table of a key-and-door environment against the MiniGrid environment itself."""

from __future__ import annotations

import pytest
import torch
from torchrl.envs.utils import check_env_specs

from torchrl_dceo.envs.minigrid import EscapeRoom, ObstructedKey
from torchrl_dceo.envs.minigrid.key_and_door import KeyDoorTableEnv, list_states

ENVIRONMENTS = [(EscapeRoom, {}), (ObstructedKey, {"num_breakable": 2})]


def plan(table) -> list[int]:
    """A shortest way from the start out of the door, by breadth-first search in the table."""
    ways, frontier, goals = {table.start: []}, [table.start], set(table.goals.tolist())
    for state in frontier:  # it grows on the way
        if state in goals:
            return ways[state]
        for action, following in enumerate(table.next_state[state].tolist()):
            if following not in ways:
                ways[following] = [*ways[state], action]
                frontier.append(following)
    raise AssertionError("there is no way out")


@pytest.mark.parametrize(("kind", "settings"), ENVIRONMENTS)
def test_walks_the_same_way_as_the_minigrid_world(kind, settings):
    """Step by step: ids, pictures, rewards and ends, on random walks and on the shortest way out."""
    minigrid_env = kind(room_size=3, slip=0.0, **settings)
    table = list_states(kind(room_size=3, slip=0.0, **settings))
    env = KeyDoorTableEnv(table, slip=0.0)
    generator = torch.Generator().manual_seed(0)
    walks = [torch.randint(6, (150,), generator=generator).tolist() for _ in range(5)]
    way_out = plan(table)
    assert len(way_out) == minigrid_env.plan_length
    for actions in (*walks, way_out):
        observation, _ = minigrid_env.reset(seed=0)
        data = env.reset()
        for action in actions:
            assert int(data["state_id"]) == int(observation["state_id"])
            assert torch.equal(data["pixels"], torch.from_numpy(observation["pixels"]))
            observation, reward, terminated, _, _ = minigrid_env.step(action)
            data = env.step(data.set("action", torch.tensor(action)))["next"]
            assert float(data["reward"]) == reward
            assert bool(data["terminated"]) == terminated
            if terminated:
                break
    assert terminated and reward == 1.0


@pytest.mark.parametrize(("kind", "settings"), ENVIRONMENTS)
def test_states_that_occur(kind, settings):
    """Counted by hand: every position for each state of the objects, but what is not free."""
    minigrid_env = kind(room_size=3, slip=0.0, **settings)
    table, positions = list_states(minigrid_env), minigrid_env.num_positions
    occurs = table.occurs.view(-1, positions).sum(1).tolist()
    if kind is EscapeRoom:
        # Without key: not on the key, not in the door; with it: not in the door; the open door can be stood in.
        assert occurs == [positions - 2, positions - 1, positions, positions - 1]
    else:
        # Whole wall, without key: the two rooms' rest. No key without a hole in the wall.
        behind = 3
        assert occurs[0] == positions - 1 - 2 - behind
        assert occurs[1:4] == [0, 0, 0]
        assert occurs[13:16] == [positions - 1, positions, positions - 1]
    assert len(table.goals) == (1 if kind is EscapeRoom else 3)  # in the open door, for each hole


def test_specs_and_starts():
    table = list_states(EscapeRoom(room_size=3, slip=0.0))
    check_env_specs(KeyDoorTableEnv(table, batch_size=[2], seed=0))
    env = KeyDoorTableEnv(table, batch_size=[3000], starts="anywhere", coverage=True, seed=0)
    drawn = env.reset()["state_id"].unique()
    assert torch.equal(drawn, table.occurs.nonzero().flatten())
    with pytest.raises(ValueError, match=r"build it with slip=0\.0, got 0\.15"):
        list_states(EscapeRoom(room_size=3))
