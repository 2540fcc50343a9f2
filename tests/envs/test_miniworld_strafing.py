"""The paper's 3D environments against their published numbers, written down here once more."""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np
import pytest
import torch
from needs_miniworld import needs_miniworld

from torchrl_dceo.envs import get_env_state, make_env, num_states, set_env_state

LEFT, RIGHT, FORWARD, BACK = range(4)
MOVES = np.array([[0, -1], [0, 1], [1, 0], [-1, 0]])  # in x and z: the heading is along x
FOUR_ROOMS, MY_WAY_HOME = NAMES = ("MiniWorldFourRoomsStrafe", "MyWayHomeSparseStrafe")
STEP = {FOUR_ROOMS: 0.15, MY_WAY_HOME: 0.27}
GOAL = {FOUR_ROOMS: (1.5, 1.5), MY_WAY_HOME: (9.0, 5.0)}
LIMIT = {FOUR_ROOMS: 1000, MY_WAY_HOME: 2100}
# min x, max x, min z, max z
ROOMS = {
    FOUR_ROOMS: [(-7, -1, 1, 7), (1, 7, 1, 7), (1, 7, -7, -1), (-7, -1, -7, -1)],
    MY_WAY_HOME: [
        (-5, -1, 1, 5),
        (1, 5, 1, 5),
        (1, 5, -5, -1),
        (-5, -1, -5, -1),
        (-5, -1, 7, 11),
        (-4, -1, 13, 15),
        (-11, -7, 1, 5),
        (7, 11, -5, -1),
        (7, 11, 1, 5),
        (8, 10, 5, 7),
    ],
}
# The hallways behind the doors, 2 m wide; the goal's niche has none.
HALLWAYS = {
    FOUR_ROOMS: [(-1, 1, 3, 5), (3, 5, -1, 1), (-1, 1, -5, -3), (-5, -3, -1, 1)],
    MY_WAY_HOME: [
        (-1, 1, 2, 4),
        (2, 4, -1, 1),
        (-1, 1, -4, -2),
        (-4, -2, -1, 1),
        (-4, -2, 5, 7),
        (-4, -2, 11, 13),
        (-7, -5, 2, 4),
        (5, 7, -4, -2),
        (8, 10, -1, 1),
    ],
}
# The package's: half of the diagonal of a box of 0.8 m, and the agent's.
BOX_RADIUS, RADIUS = 0.4 * 2**0.5, 0.4
TINY = {"obs_width": 8, "obs_height": 6, "samples": 1}

pytestmark = needs_miniworld


def build(name, **settings):
    from torchrl_dceo.envs.miniworld import ENVIRONMENTS

    return ENVIRONMENTS[name](**settings)


@pytest.fixture(scope="module", params=NAMES)
def env(request):
    """With images that take no time."""
    env = build(request.param, **TINY)
    env.name = request.param
    return env


def place(env, x, z):
    env.agent.pos = np.array([x, 0.0, z])


def where(env):
    return env.agent.pos[[0, 2]]


# Geometry


def walk_through(env, x, z, action, metres):
    """Goes straight on from a point; returns how far it got."""
    place(env, x, z)
    for _ in range(round(metres / STEP[env.name])):
        env.step_count = 0
        env.step(action)
    return np.linalg.norm(where(env) - (x, z))


def test_every_door_can_be_passed_both_ways(env):
    env.reset(seed=0)
    env.entities = [env.agent]  # the box stands in one of them
    thresholds = list(HALLWAYS[env.name])
    if env.name == MY_WAY_HOME:
        thresholds.append((8, 10, 4, 6))  # the niche opens into its room
    for low_x, high_x, low_z, high_z in thresholds:
        x, z = (low_x + high_x) / 2, (low_z + high_z) / 2
        along_x = any(room[1] == low_x and room[2] < z < room[3] for room in ROOMS[env.name])
        there, back = (FORWARD, BACK) if along_x else (RIGHT, LEFT)
        before, behind = ((x - 1.5, z), (x + 1.5, z)) if along_x else ((x, z - 1.5), (x, z + 1.5))
        if (low_x, low_z) == (8, 4):
            before, behind = (9.0, 3.0), (9.0, 6.0)
        for point, action in ((before, there), (behind, back)):
            for sideways in (-0.55, 0.0, 0.55):  # the agent's radius, and 5 cm of air
                shift = np.array([0, sideways] if along_x else [sideways, 0])
                assert walk_through(env, *(point + shift), action, 2.7) > 2.5
        # Beside the door there is a wall.
        shift = np.array([0, 1.4] if along_x else [1.4, 0])
        if (low_x, low_z) != (8, 4):
            assert walk_through(env, *(np.array(before) + shift), there, 2.7) < 0.5


def blocked_distance(name, points):
    """How far each point is from the nearest place that is no floor, from the rectangles alone (centimetres)."""
    from scipy.ndimage import distance_transform_edt

    low, fine = np.array([-13.0, -9.0]), 0.02
    floor = np.zeros((1400, 1300), bool)
    for low_x, high_x, low_z, high_z in (*ROOMS[name], *HALLWAYS[name]):
        (i, j), (k, m) = (
            np.round((np.array(corner) - low) / fine).astype(int)
            for corner in ((low_x, low_z), (high_x, high_z))
        )
        floor[i:k, j:m] = True
    index = np.floor((np.asarray(points) - low) / fine).astype(int)
    return distance_transform_edt(floor)[index[:, 0], index[:, 1]] * fine


def shortest_plan(name, start, margin):
    """The fewest moves from the start to where the box counts as reached, on the floor of the rectangles."""
    lattice = np.stack(np.meshgrid(*[np.arange(-160, 161)] * 2, indexing="ij"), -1)
    points = np.asarray(start) + lattice * STEP[name]
    inside = (points > (-12, -8)).all(-1) & (points < (12, 16)).all(-1)
    free = np.zeros(inside.shape, bool)
    free[inside] = blocked_distance(name, points[inside]) >= RADIUS + margin
    apart = np.linalg.norm(points - GOAL[name], axis=-1)
    reach = BOX_RADIUS + RADIUS + 1.1 * STEP[name]
    came, queue = {(160, 160): None}, deque([(160, 160)])
    while queue:
        here = queue.popleft()
        if apart[here] < reach:
            plan = []
            while came[here] is not None:
                action = came[here]
                plan.append(action)
                here = tuple(np.array(here) - MOVES[action])
            return plan[::-1]
        for action, (dx, dz) in enumerate(MOVES):
            there = here[0] + dx, here[1] + dz
            if free[there] and there not in came:
                came[there] = action
                queue.append(there)
    raise AssertionError("there is no way to the goal")


def test_shortest_way_is_that_of_the_rectangles(env):
    """A plan made without the environment ends it at the step it says, and no plan of fewer steps does."""
    name = env.name
    env.reset(seed=0)
    start = where(env)
    plan = shortest_plan(name, start, margin=0.03)
    outcomes = [env.step(action)[1:4] for action in plan]
    assert outcomes[-1] == (1.0, True, False)
    assert set(outcomes[:-1]) == {(0.0, False, False)}
    fewest = len(shortest_plan(name, start, margin=-0.03))
    # Breadth first through the environment itself.
    seen, frontier, depth = {(0, 0)}, [(0, 0)], 0
    reached = False
    while not reached:
        depth += 1
        following = []
        for i, j in frontier:
            for action, (dx, dz) in enumerate(MOVES):
                there = (i + dx, j + dz)
                if there in seen:
                    continue
                place(env, *(start + np.array([i, j]) * STEP[name]))
                env.step_count = 0
                _, reward, terminated, _, _ = env.step(action)
                reached |= terminated
                assert reward == float(terminated)
                if np.allclose(where(env), start + np.array(there) * STEP[name], atol=1e-6):
                    seen.add(there)
                    following.append(there)
        frontier = following
        assert frontier or reached
    assert fewest <= depth <= len(plan) <= fewest + 4
    # Through the neighbouring rooms, some 10 m, and through five of them, some 29 m.
    lengths = {FOUR_ROOMS: (50, 100), MY_WAY_HOME: (100, 140)}
    assert lengths[name][0] <= depth <= lengths[name][1]


def test_states_are_the_square_metres_of_the_floor(env):
    cells = {
        (x, z)
        for low_x, high_x, low_z, high_z in (*ROOMS[env.name], *HALLWAYS[env.name])
        for x in range(low_x, high_x)
        for z in range(low_z, high_z)
    }
    assert env.num_states == len(cells)
    numbers = {env.floor_plan.cell_of(x + 0.5, z + 0.5) for x, z in cells}
    assert numbers == set(range(len(cells)))
    assert num_states(make_env(env.name)) == len(cells)


def test_wall_and_door_heights(env):
    walls, doors = {FOUR_ROOMS: (2.74, 2.2), MY_WAY_HOME: (3.5, 3.5)}[env.name]
    rooms = env.rooms[: len(ROOMS[env.name])]
    assert {room.wall_height for room in rooms} == {walls}
    assert {portal["max_y"] for room in rooms for side in room.portals for portal in side} == {
        doors
    }


# Start and goal


def test_four_rooms_starts_where_it_was_built_to():
    starts = []
    for seed in range(12):
        env = build(FOUR_ROOMS, start_seed=seed, **TINY)
        for episode_seed in (0, 7, None):
            env.reset(seed=episode_seed)
            starts.append((*where(env), env.agent.dir))
    starts = np.array(starts).reshape(12, 3, 3)
    assert (starts == starts[:, :1]).all() and (starts[..., 2] == 0).all()
    first = starts[:, 0, :2]
    assert len(np.unique(first, axis=0)) == 12
    assert (first >= -6).all() and (first <= -2).all()
    assert (first.min(0) < -5).all() and (first.max(0) > -3).all()
    again = build(FOUR_ROOMS, start_seed=3, **TINY)
    again.reset(seed=11)
    np.testing.assert_array_equal(where(again), first[3])


def test_environments_of_a_batch_share_the_start():
    env = make_env(FOUR_ROOMS, batch_size=3, seed=5, start_seed=2, **TINY)
    poses = env.reset()["pose"]
    assert (poses == poses[0]).all()
    assert not torch.equal(make_env(FOUR_ROOMS, start_seed=3, **TINY).reset()["pose"], poses[0])


def test_my_way_home_starts_anywhere_in_its_room():
    env = build(MY_WAY_HOME, **TINY)
    starts = []
    for seed in range(400):
        env.reset(seed=seed)
        starts.append(where(env))
        assert env.agent.dir == 0
    starts = np.array(starts)
    low, high = np.array([-11, 1]) + RADIUS, np.array([-7, 5]) - RADIUS
    # The doorway, 1 m long of which the agent may stand in none: the room's own floor alone.
    assert (starts >= (-11 + RADIUS, 1 + RADIUS)).all() and (starts <= (-7, 5 - RADIUS)).all()
    # The mean of 400 uniform draws from 3.2 m: a standard error of 5 cm (the doorway adds a little to x).
    assert np.abs(starts.mean(0) - (low + high) / 2).max() < 0.2
    assert (starts.min(0) < low + 0.1).all() and (starts.max(0) > high - 0.1).all()


def test_starts_anywhere_cover_the_floor(env):
    """Floor area decides: shares of rooms and hallways within five standard deviations."""
    anywhere = build(env.name, starts="anywhere", **TINY)
    starts = []
    for seed in range(600):
        anywhere.reset(seed=seed)
        starts.append(where(anywhere))
        assert anywhere.agent.dir == 0
    assert anywhere.floor_plan.is_free(np.array(starts)).all()
    # An attempt that touches a wall or the box is drawn again: what counts is the free floor.
    lattice = anywhere.floor_plan.lattice(0.1)
    from_box = np.linalg.norm(lattice - GOAL[env.name], axis=-1)
    lattice = lattice[from_box >= BOX_RADIUS + RADIUS]
    for low_x, high_x, low_z, high_z in (*ROOMS[env.name], *HALLWAYS[env.name]):
        expected, share = (
            ((points > (low_x, low_z)) & (points < (high_x, high_z))).all(-1).mean()
            for points in (lattice, np.array(starts))
        )
        assert abs(share - expected) < 5 * (expected * (1 - expected) / 600) ** 0.5 + 0.01
    with pytest.raises(ValueError, match="starts must be 'authors' or 'anywhere', got 'here'"):
        build(env.name, starts="here")


def test_the_goal_stays_and_ends_the_episode_with_one(env):
    name = env.name
    reach = BOX_RADIUS + RADIUS + 1.1 * STEP[name]
    for seed, steps in ((0, 0), (1, LIMIT[name] - 2)):
        env.reset(seed=seed)
        np.testing.assert_array_equal(env.box.pos[[0, 2]], GOAL[name])
        assert env.box.dir == 0 and env.box.color == "red"
        x, z = GOAL[name]
        # Just within a step of it, and just not, on the side of the room.
        away = np.array([1.0, 0.0]) if name == FOUR_ROOMS else np.array([0.0, -1.0])
        place(env, *(np.array([x, z]) + away * (reach + 0.9 * STEP[name])))
        env.step_count = steps
        towards = BACK if name == FOUR_ROOMS else RIGHT
        assert env.step(towards)[1:4] == (1.0, True, False)  # however late
        place(env, *(np.array([x, z]) + away * (reach + 1.1 * STEP[name])))
        env.step_count = 0
        assert env.step(towards)[1:4] == (0.0, False, False)


def test_time_is_up_after_the_authors_steps():
    for name, limit in LIMIT.items():
        env = build(name, **TINY)
        env.reset(seed=0)
        ends = [env.step(BACK)[2:4] for _ in range(limit)]
        assert ends == [(False, False)] * (limit - 1) + [(False, True)]


def test_coverage_has_no_goal():
    for name in NAMES:
        env = build(name, coverage=True, **TINY)
        env.reset(seed=0)
        place(env, *GOAL[name])
        assert env.step(FORWARD)[1:3] == (0.0, False)


# Actions


def test_each_action_moves_by_a_step_in_its_direction(env):
    env.reset(seed=0)
    for action, direction in enumerate(MOVES):
        place(env, -3.0, -3.0)
        env.step(action)
        np.testing.assert_allclose(where(env) - (-3.0, -3.0), STEP[env.name] * direction)
    assert env.action_names == ("move_left", "move_right", "move_forward", "move_back")
    assert env.action_space.n == 4
    with pytest.raises(ValueError, match=r"action must lie in \[0, 4\), got 4: .* move_back"):
        env.step(4)


def test_the_heading_never_changes_and_walls_hold(env):
    """Long strides, so that walls are met: a step is whole or none."""
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    blocked = 0
    for action in np.repeat(rng.integers(4, size=60), 15):
        before = where(env)
        env.step_count = 0
        seen = env.step(int(action))[0]
        moved = where(env) - before
        assert env.agent.dir == 0 and seen["pose"][2] == 0
        assert np.allclose(moved, 0) or np.allclose(moved, STEP[env.name] * MOVES[action])
        blocked += np.allclose(moved, 0)
        assert env.floor_plan.is_free(where(env))
    assert 50 < blocked < 800


# Images


@pytest.mark.parametrize("size", [(80, 60), (40, 30)])
@pytest.mark.parametrize("name", NAMES)
def test_walls_tell_the_rooms_apart(name, size):
    """Close to a wall, beside the door: nothing but the wall is in sight, and a corner of floor and ceiling."""
    env = build(name, obs_width=size[0], obs_height=size[1], samples=1, coverage=True)
    places = np.array([(high_x - 0.45, high_z - 0.45) for _, high_x, _, high_z in ROOMS[name]])
    assert env.floor_plan.is_free(places).all()
    images = env.observe_at(places, 0.0).astype(float)
    assert images.shape == (len(places), 3, *size[::-1])
    for one, other in itertools.combinations(images, 2):
        assert np.abs(one - other).mean() > 5
    # By colour and contrast, a wall is nearest to itself seen from a little further left.
    again = env.observe_at(places - (0, 0.1), 0.0).astype(float)
    one, other = (np.stack([seen.mean((2, 3)), seen.std((2, 3))], 1) for seen in (images, again))
    apart = np.abs(one[:, None] - other[None]).max((2, 3))
    assert (apart.argmin(1) == np.arange(len(places))).all()
    assert np.diag(apart).max() < 2.5 < (apart + 255 * np.eye(len(places))).min()


def test_default_image_is_the_authors():
    assert make_env(FOUR_ROOMS).reset()["pixels"].shape == (3, 60, 80)


# Save and resume


@pytest.mark.parametrize("name", NAMES)
def test_saved_state_continues_identically(name):
    settings = {"batch_size": 2, "max_steps": 25, "obs_width": 40, "obs_height": 30, "samples": 1}
    env = make_env(name, seed=0, **settings)
    data = env.rollout(12, break_when_any_done=False)[:, -1]["next"].exclude("reward")
    saved = get_env_state(env)
    assert all(isinstance(value, torch.Tensor) for value in saved.values())
    other = make_env(name, seed=9, **settings)
    other.reset()
    set_env_state(other, saved)

    def resume(env):
        generator = torch.Generator().manual_seed(1)

        def policy(tensordict):
            return tensordict.set("action", torch.randint(4, env.batch_size, generator=generator))

        # Past the end of the episode, so that the saved generator draws the next start.
        return env.rollout(
            30, policy, auto_reset=False, tensordict=data.clone(), break_when_any_done=False
        )

    one, two = resume(env), resume(other)
    for key in ("pixels", "pose", "state_id", "is_init", ("next", "reward"), ("next", "done")):
        assert torch.equal(one[key], two[key]), key
    assert one["is_init"].any()


def test_gymnasium_knows_them():
    import gymnasium as gym
    from gymnasium.utils.env_checker import check_env

    for name in NAMES:
        env = gym.make(f"torchrl_dceo/{name}-v0")
        check_env(env.unwrapped, skip_render_check=True)
        assert env.action_space.n == 4
