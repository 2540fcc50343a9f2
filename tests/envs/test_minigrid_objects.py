"""EscapeRoom and ObstructedKey against a model of their rules that knows nothing of MiniGrid."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import pytest

from torchrl_dceo.envs.grid.grid_world import TILE_KINDS
from torchrl_dceo.envs.minigrid import EscapeRoom, KeyDoorEnv, ObstructedKey
from torchrl_dceo.envs.minigrid.key_and_door import escape_room, obstructed_key

PICKUP, TOGGLE = 4, 5
STEPS = [(0, -1), (1, 0), (0, 1), (-1, 0)]

ENVIRONMENTS = {
    "escape": (EscapeRoom, escape_room, {}),
    "escape-4": (EscapeRoom, escape_room, {"room_size": 4}),
    "obstructed": (ObstructedKey, obstructed_key, {"room_size": 3}),
    "obstructed-5": (ObstructedKey, obstructed_key, {}),
    "obstructed-6": (ObstructedKey, obstructed_key, {"room_size": 6, "num_breakable": 2}),
}
every_env = pytest.mark.parametrize("name", ENVIRONMENTS)


class State(NamedTuple):
    position: tuple[int, int]
    has_key: bool
    door: str
    broken: frozenset[tuple[int, int]]


class Model:
    """The rules, read off the map."""

    def __init__(self, rows):
        self.symbol = {(x, y): c for y, row in enumerate(rows) for x, c in enumerate(row)}
        self.start = next(cell for cell, c in self.symbol.items() if c == "S")

    def initial(self):
        return State(self.start, False, "locked", frozenset())

    def free(self, cell, state):
        symbol = self.symbol.get(cell, "#")
        return (
            symbol in ".S"
            or (symbol == "K" and state.has_key)
            or (symbol == "D" and state.door == "open")
            or (symbol == "B" and cell in state.broken)
        )

    def left(self, state):
        return self.symbol[state.position] == "D"

    def step(self, state, action):
        x, y = state.position
        if action < 4:
            cell = (x + STEPS[action][0], y + STEPS[action][1])
            return state._replace(position=cell) if self.free(cell, state) else state
        near = {(x + dx, y + dy) for dx, dy in STEPS} & self.symbol.keys()
        touched = {self.symbol[cell] for cell in near}
        if action == PICKUP:
            return state._replace(has_key=True) if "K" in touched else state
        broken = state.broken | {cell for cell in near if self.symbol[cell] == "B"}
        door = state.door
        if "D" in touched and (state.door != "locked" or state.has_key):
            door = "closed" if state.door == "open" else "open"
        return state._replace(broken=broken, door=door)

    def search(self, *, allowed=range(6), breaking=True, leaving_ends=True):
        """All states that can be reached, each with a shortest plan."""
        plans = {self.initial(): []}
        frontier = deque(plans)
        while frontier:
            state = frontier.popleft()
            if leaving_ends and self.left(state):
                continue
            for action in allowed:
                following = self.step(state, action)
                if following.broken and not breaking:
                    continue
                if following not in plans:
                    plans[following] = [*plans[state], action]
                    frontier.append(following)
        return plans


def build(name, **kwargs):
    env, layout, arguments = ENVIRONMENTS[name]
    return env(**arguments, **kwargs), Model(layout(**arguments))


def put(env, model, state):
    """Sets the environment to a state of the model."""
    saved = env.get_state()
    kind = {name: index for index, name in enumerate(TILE_KINDS)}
    symbols = {"#": "wall", ".": "floor", "S": "floor", "D": f"door_{state.door}"}
    for (x, y), symbol in model.symbol.items():
        if symbol == "K":
            name = "floor" if state.has_key else "key"
        elif symbol == "B":
            name = "floor" if (x, y) in state.broken else "breakable"
        else:
            name = symbols[symbol]
        saved["cells"][y, x] = kind[name]
    saved["agent_pos"] = np.array(state.position)
    saved["carrying"] = kind["key"] if state.has_key else -1
    env.set_state(saved)


def read(env):
    """The model's state that an environment is in."""
    doors = {"door_locked": "locked", "door_open": "open", "door_closed": "closed"}
    kinds = {
        (x, y): TILE_KINDS[kind]
        for y, row in enumerate(env.cells.tolist())
        for x, kind in enumerate(row)
    }
    door = next(doors[kind] for kind in kinds.values() if kind in doors)
    walls = [(x, y) for y, row in enumerate(env.rows) for x, c in enumerate(row) if c == "B"]
    broken = frozenset(cell for cell in walls if kinds[cell] != "breakable")
    return State(env.agent_pos, env.carrying is not None, door, broken)


@pytest.mark.parametrize("name", ["escape", "escape-4", "obstructed"])
def test_every_state_and_action_follows_the_rules(name):
    env, model = build(name, slip=0.0, max_steps=10**9)
    env.reset(seed=0)
    states = model.search()
    ids, pictures = {}, set()
    for state in states:
        put(env, model, state)
        ids[env.state_id] = state
        pictures.add(env.observe()["pixels"].tobytes())
        if model.left(state):
            continue
        for action in range(6):
            put(env, model, state)
            observation, reward, terminated, _, _ = env.step(action)
            expected = model.step(state, action)
            assert read(env) == expected
            left = model.left(expected)
            assert (reward, terminated) == (float(left), left)
            assert observation["state_id"] == env.state_id
    # Each state has a number and a picture of its own: countable, and Markov from one picture.
    assert len(ids) == len(pictures) == len(states)
    assert 0 <= min(ids) <= max(ids) < env.num_states


@every_env
def test_shortest_plan_leaves_and_only_its_last_step_is_rewarded(name):
    env, model = build(name, slip=0.0)
    plan = min((plan for state, plan in model.search().items() if model.left(state)), key=len)
    assert env.plan_length == len(plan)
    assert env.max_steps == max(200, 6 * len(plan))
    env.reset(seed=0)
    outcomes = [env.step(action)[1:4] for action in plan]
    assert outcomes[:-1] == [(0.0, False, False)] * (len(plan) - 1)
    assert outcomes[-1] == (1.0, True, False)


@every_env
def test_cannot_leave_without_the_key(name):
    _, model = build(name)
    states = model.search(allowed=[0, 1, 2, 3, TOGGLE])
    assert not any(model.left(state) or state.door != "locked" for state in states)


@pytest.mark.parametrize("name", ["obstructed", "obstructed-5", "obstructed-6"])
def test_cannot_reach_the_key_without_breaking_the_wall(name):
    _, model = build(name)
    states = model.search(breaking=False)
    assert len(states) > 20
    assert not any(state.has_key for state in states)


@pytest.mark.parametrize("forbidden", ["pickup", "breaking"])
def test_the_environment_itself_cannot_be_left_without(forbidden):
    # The same by searching through the environment, not the model.
    env = ObstructedKey(room_size=3, slip=0.0, max_steps=10**9)
    env.reset(seed=0)
    allowed = [0, 1, 2, 3, TOGGLE] if forbidden == "pickup" else range(6)
    seen = {env.state_id}
    frontier = [env.get_state()]
    while frontier:
        saved = frontier.pop()
        for action in allowed:
            env.set_state(saved)
            _, reward, terminated, _, _ = env.step(action)
            assert (reward, terminated) == (0.0, False)
            broke = (env.cells != saved["cells"]).any()
            if env.state_id not in seen and not (forbidden == "breaking" and broke):
                seen.add(env.state_id)
                frontier.append(env.get_state())
    assert len(seen) > 20


def test_coverage_mode_opens_the_door_but_ends_nothing():
    env, model = build("escape", slip=0.0, coverage=True)
    plan = min((plan for state, plan in model.search().items() if model.left(state)), key=len)
    env.reset(seed=0)
    outcomes = [env.step(action)[1:4] for action in [*plan, 3, 1]]  # out of the map, and back in
    assert outcomes == [(0.0, False, False)] * (len(plan) + 2)
    assert env.agent_pos == (1, 3)


def test_key_is_seen_with_the_agent_and_door_opens_and_closes():
    env = KeyDoorEnv(["#####", "#KS.D", "#####"], slip=0.0)
    env.reset(seed=0)
    colour = {}
    for name, actions in {
        "start": [],
        "toggle without key": [1, TOGGLE, 3],
        "key": [PICKUP],
        "pickup again": [PICKUP],
        "open": [1, TOGGLE, 3],
        "closed": [1, TOGGLE, 3],
    }.items():
        for action in actions:
            env.step(action)
        pixels = env.observe()["pixels"]
        colour[name] = [tuple(pixels[:, 1, x].tolist()) for x in (1, 2, 4)]
    assert colour["start"] == colour["toggle without key"]
    assert colour["key"] == colour["pickup again"]
    assert colour["key"][0] == (0, 0, 0)  # the key's cell is floor now
    assert len({colour["start"][1], colour["key"][1]}) == 2
    assert len({colour[name][2] for name in ("key", "open", "closed")}) == 3


def test_num_states_is_position_key_door_and_wall():
    # 100 cells in the rooms, 4 hallways and the door; or 3 hallways, and 5 tiles to break.
    assert EscapeRoom().num_states == 105 * 4
    assert ObstructedKey().num_states == 104 * 4 * 2**5
    assert ObstructedKey(room_size=7).num_states == (4 * 49 + 3 + 1 - 2) * 4 * 2**5


@pytest.mark.parametrize("room_size", [3, 4, 7, 9])
def test_rooms_scale(room_size):
    for env in (EscapeRoom, ObstructedKey):
        shape = env(room_size=room_size).reset(seed=0)[0]["pixels"].shape
        assert shape == (3, 2 * room_size + 3, 2 * room_size + 3)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["#####", "#S.D#", "#####"], r"exactly one key \(K\), got 0"),
        (["#####", "#SKDD", "#####"], r"exactly one door \(D\), got 2"),
        (["######", "#S#.KD", "######"], "cannot be solved: the key or the door is out of reach"),
    ],
)
def test_bad_maps(rows, message):
    with pytest.raises(ValueError, match=message):
        KeyDoorEnv(rows)


def test_bad_number_of_breakable_tiles():
    with pytest.raises(ValueError, match=r"num_breakable must lie in \[1, 5\], got 6"):
        ObstructedKey(num_breakable=6)
