"""RoomsWithObstacles: the obstacles against the closed form of their patrol."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from torchrl_dceo.envs.minigrid import RoomsWithObstacles
from torchrl_dceo.envs.minigrid.cells import KIND, Obstacle

UP, RIGHT, DOWN, LEFT = range(4)
STEPS = [(0, -1), (1, 0), (0, 1), (-1, 0)]


def patrol(y, step, t, room_size):
    """Row after t steps: a triangle wave over the rows 1..room_size."""
    period = 2 * (room_size - 1)
    phase = y - 1 if step > 0 else period - (y - 1)
    phase = (phase + t) % period
    return 1 + min(phase, period - phase)


def place(env, agent, obstacles):
    """Puts the agent and (x, y, step) obstacles where a test wants them."""
    state = env.get_state()
    cells = state["cells"]
    cells[np.isin(cells, [KIND["obstacle"], KIND["obstacle_down"]])] = KIND["floor"]
    for x, y, step in obstacles:
        cells[y, x] = KIND["obstacle" if step < 0 else "obstacle_down"]
    state["agent_pos"] = np.array(agent)
    env.set_state(state)


def rooms_env(**kwargs):
    env = RoomsWithObstacles(slip=0.0, max_steps=10**9, **kwargs)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize("room_size", [4, 5, 6])
def test_obstacles_move_at_every_step_and_bounce(room_size):
    env = rooms_env(room_size=room_size)
    for _ in range(20):
        env.reset()
        spawned = env.obstacles()
        before = spawned
        for t in range(1, 25):
            _, reward, terminated, _, _ = env.step(UP)  # into the wall: the agent waits
            assert (reward, terminated, env.agent_pos) == (0.0, False, (1, 1))
            now = env.obstacles()
            assert all(abs(a[1] - b[1]) == 1 for a, b in zip(before, now, strict=True))
            expected = [(x, patrol(y, step, t, room_size)) for x, y, step in spawned]
            assert [(x, y) for x, y, _ in now] == expected
            balls = {
                (x, y)
                for x in range(env.width)
                for y in range(env.height)
                if isinstance(env.grid.get(x, y), Obstacle)
            }
            assert balls == set(expected)
            before = now


def test_spawning_is_random_over_columns_rows_and_directions():
    env = rooms_env()
    columns, rows, steps = Counter(), Counter(), Counter()
    n = 1500
    for _ in range(n):
        env.reset()
        obstacles = env.obstacles()
        assert len({x for x, _, _ in obstacles}) == 4
        for x, y, step in obstacles:
            columns[x] += 1
            rows[y] += 1
            steps[step] += 1
    # Not the start's two columns, not the hallways' (6, 12), not the goal's (17).
    allowed = [3, 4, 5, 7, 8, 9, 10, 11, 13, 14, 15, 16]
    assert sorted(columns) == allowed
    assert sorted(rows) == [1, 2, 3, 4, 5]
    # Standard errors are below 0.004 (shares of 6000 draws).
    assert [columns[x] / (4 * n) for x in allowed] == pytest.approx([1 / 12] * 12, abs=0.02)
    assert [rows[y] / (4 * n) for y in range(1, 6)] == pytest.approx([0.2] * 5, abs=0.03)
    assert steps[1] / (4 * n) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("agent", "obstacle", "action"),
    [
        ((8, 2), (9, 2, 1), RIGHT),  # the agent walks into it
        ((9, 3), (9, 2, 1), UP),  # head on
        ((10, 3), (9, 2, 1), LEFT),  # both enter the same cell
        ((9, 5), (9, 4, 1), DOWN),  # the agent waits at the wall and is hit
        ((9, 2), (9, 1, -1), UP),  # it is about to turn round, the agent walks into it
        ((8, 2), (9, 1, -1), RIGHT),  # it turns round at the wall into the agent
    ],
)
def test_collisions(agent, obstacle, action):
    env = rooms_env()
    place(env, agent, [obstacle])
    _, reward, terminated, truncated, _ = env.step(action)
    assert (reward, terminated, truncated) == (-1.0, True, False)
    # Nobody stands on anybody, so the last picture still shows both.
    assert env.agent_pos not in [(x, y) for x, y, _ in env.obstacles()]
    assert len(env.obstacles()) == 1


@pytest.mark.parametrize(
    ("agent", "obstacle", "action"),
    [
        ((9, 4), (9, 2, 1), DOWN),  # it follows one step behind
        ((9, 1), (9, 2, 1), UP),  # it goes away
        ((9, 3), (9, 2, 1), LEFT),  # the agent steps aside
        ((8, 2), (9, 2, 1), LEFT),  # beside it
        ((8, 2), (9, 3, 1), RIGHT),  # passing behind it
    ],
)
def test_near_misses(agent, obstacle, action):
    env = rooms_env()
    place(env, agent, [obstacle])
    assert env.step(action)[1:4] == (0.0, False, False)


def test_coverage_mode_only_blocks():
    env = rooms_env(coverage=True)
    place(env, (8, 2), [(9, 2, 1)])
    assert env.step(RIGHT)[1:4] == (0.0, False, False)
    assert (env.agent_pos, env.obstacles()) == ((8, 2), [(9, 3, 1)])
    place(env, (9, 5), [(9, 4, 1)])
    assert env.step(DOWN)[1:4] == (0.0, False, False)
    assert env.obstacles() == [(9, 3, -1)]  # turned round at the agent
    place(env, (9, 2), [(9, 1, 1)])
    env.step(UP)
    assert env.obstacles()[0][:2] == (9, 1)  # shut in between the wall and the agent
    place(env, (16, 5), [])
    env.step(RIGHT)
    assert env.step(RIGHT)[1:4] == (0.0, False, False)


def test_one_picture_tells_the_direction():
    env = rooms_env()
    pictures = []
    for step in (-1, 1):
        place(env, (1, 1), [(9, 3, step)])
        pictures.append(env.observe()["pixels"])
    assert (pictures[0] != pictures[1]).any()


def test_scripted_plan_reaches_the_goal():
    for seed in range(10):
        env = RoomsWithObstacles(slip=0.0)
        env.reset(seed=seed)
        plan = search(env.rows, env.obstacles(), env.room_size)
        assert len(plan) >= env.plan_length
        outcomes = [env.step(action)[1:4] for action in plan]
        assert outcomes[:-1] == [(0.0, False, False)] * (len(plan) - 1)
        assert outcomes[-1] == (1.0, True, False)


@pytest.mark.parametrize(("room_size", "num_obstacles", "most"), [(4, 1, 0.0), (5, 4, 0.1)])
def test_hardly_an_episode_has_no_way_through(room_size, num_obstacles, most):
    env = RoomsWithObstacles(slip=0.0, room_size=room_size, num_obstacles=num_obstacles)
    hopeless = 0
    for seed in range(150):
        env.reset(seed=seed)
        hopeless += search(env.rows, env.obstacles(), room_size) is None
    # Four in rooms of five: measured 0.055, standard error 0.02.
    assert hopeless / 150 <= most


def search(rows, obstacles, room_size):
    """A shortest plan through space and time, with the obstacles where their closed form says; or ``None``."""
    plans = {(1, 1): []}
    for t in range(200):
        now = {(x, patrol(y, step, t, room_size)) for x, y, step in obstacles}
        then = {(x, patrol(y, step, t + 1, room_size)) for x, y, step in obstacles}
        following = {}
        for (x, y), plan in plans.items():
            for action, (dx, dy) in enumerate(STEPS):
                cell = (x + dx, y + dy)
                if rows[cell[1]][cell[0]] == "#":
                    cell = (x, y)
                if rows[cell[1]][cell[0]] == "G":
                    return [*plan, action]
                if cell not in now and cell not in then:
                    following.setdefault(cell, [*plan, action])
        plans = following
    return None


def test_shortest_path_without_obstacles_and_step_limit():
    env = RoomsWithObstacles(num_obstacles=0)
    # 16 columns to the right and 4 rows down.
    assert (env.plan_length, env.max_steps) == (20, 200)
    assert RoomsWithObstacles(room_size=15).max_steps == 6 * (46 + 14)
    assert env.num_states == 3 * 25 + 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_obstacles": 13}, r"num_obstacles must lie in \[0, 12\], got 13"),
        (
            {"room_size": 3},
            "room_size must be at least 4, got 3: in smaller rooms an obstacle beside",
        ),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RoomsWithObstacles(**arguments)
