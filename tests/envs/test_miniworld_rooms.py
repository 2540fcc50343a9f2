"""The 3D environments, where MiniWorld can draw; the environments of the package are the reference."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from needs_miniworld import needs_miniworld

ENVIRONMENTS = ["MiniWorldFourRooms", "MyWayHomeSparse"]
LEFT, RIGHT, FORWARD = range(3)

pytestmark = needs_miniworld


@pytest.fixture(scope="module")
def four_rooms():
    from torchrl_dceo.envs.miniworld import MiniWorldFourRooms

    return MiniWorldFourRooms()


@pytest.fixture(scope="module")
def my_way_home():
    from torchrl_dceo.envs.miniworld import MyWayHomeSparse

    return MyWayHomeSparse()


@pytest.fixture(scope="module")
def packages_four_rooms():
    """Drawn and loaded by the package alone."""
    from miniworld.envs.fourrooms import FourRooms
    from miniworld.opengl import Texture

    import torchrl_dceo.envs.miniworld  # noqa: F401  (headless)

    # Ours are in use already, and stay in use; the package finds none and loads its own.
    Texture.tex_cache.clear()
    return FourRooms(window_width=80, window_height=60)


# FourRooms is the package's


@pytest.mark.parametrize("seed", [0, 1])
def test_four_rooms_is_the_packages_step_by_step(four_rooms, packages_four_rooms, seed):
    ours, theirs = four_rooms, packages_four_rooms
    (seen, _), (expected, _) = ours.reset(seed=seed), theirs.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(60):
        difference = np.abs(seen["pixels"].transpose(1, 2, 0).astype(int) - expected)
        # Bytes instead of floats, and four samples instead of their mean in float: rounding.
        assert difference.max() <= 3 and difference.mean() < 0.2
        assert seen["pose"].tolist() == pytest.approx(
            [*theirs.agent.pos[[0, 2]], theirs.agent.dir], abs=1e-5
        )
        action = int(rng.choice(3, p=[0.2, 0.2, 0.6]))
        seen, *outcome, _ = ours.step(action)
        expected, *theirs_outcome, _ = theirs.step(action)
        assert outcome == theirs_outcome
        if outcome[1]:
            break


def test_the_next_episodes_are_the_packages_too(four_rooms, packages_four_rooms):
    """Rooms are built once, but agent and box are placed by the same draws."""
    for seed in (5, None, None):
        four_rooms.reset(seed=seed)
        packages_four_rooms.reset(seed=seed)
        for ours, theirs in zip(four_rooms.entities, packages_four_rooms.entities, strict=True):
            np.testing.assert_array_equal(ours.pos, theirs.pos)
            assert ours.dir == theirs.dir


def test_distinct_walls_tell_the_rooms_apart(four_rooms):
    """Without them, a corner looks the same in every room."""
    from torchrl_dceo.envs.miniworld import MiniWorldFourRooms

    corners = np.array([[-1.6, 1.6], [6.4, 1.6], [-1.6, -6.4], [6.4, -6.4]])
    for env, least, most in (
        (four_rooms, 0.0, 1.0),
        (MiniWorldFourRooms(distinct_walls=True), 5.0, 255.0),
    ):
        env.reset(seed=0)
        env.entities = [env.agent]
        pictures = env.observe_at(corners, np.pi / 4).astype(float)
        for one, other in itertools.combinations(pictures, 2):
            assert least <= np.abs(one - other).mean() <= most


def test_reward_and_end_at_the_box(four_rooms):
    env = four_rooms
    env.reset(seed=0)
    env.box.pos = np.array([-4.0, 0.0, -4.0])
    env.agent.pos, env.agent.dir = np.array([-4.0 + 2.0, 0.0, -4.0]), math.pi
    rewards = []
    while True:
        _, reward, terminated, truncated, _ = env.step(FORWARD)
        rewards.append(reward)
        if terminated:
            break
    assert not truncated and rewards[:-1] == [0.0] * (len(rewards) - 1)
    assert rewards[-1] == pytest.approx(1 - 0.2 * len(rewards) / 250)
    reach = env.box.radius + env.agent.radius + 1.1 * 0.15
    assert np.linalg.norm(env.agent.pos - env.box.pos) < reach


def test_time_is_up_without_termination():
    from torchrl_dceo.envs.miniworld import MiniWorldFourRooms

    env = MiniWorldFourRooms(max_steps=3, coverage=True)
    env.reset(seed=0)
    assert [env.step(LEFT)[2:4] for _ in range(3)] == [
        (False, False),
        (False, False),
        (False, True),
    ]


# MyWayHomeSparse


def walk_to(env, x: float, z: float) -> list[tuple[float, bool]]:
    """Turns towards a point and goes there, by the three actions alone."""
    outcomes = []
    for _ in range(400):
        dx, dz = x - env.agent.pos[0], z - env.agent.pos[2]
        if math.hypot(dx, dz) < 0.2:
            break
        turn = (math.atan2(-dz, dx) - env.agent.dir + math.pi) % (2 * math.pi) - math.pi
        action = FORWARD if abs(turn) < math.radians(8) else (LEFT if turn > 0 else RIGHT)
        outcomes.append(env.step(action)[1:3])
        if outcomes[-1][1]:
            break
    return outcomes


def test_the_way_home(my_way_home):
    """The documented way leads to the goal, gives +1 once, and takes about as long as documented."""
    from torchrl_dceo.envs.miniworld.turning import GOAL, HALLWAYS, START

    env = my_way_home
    env.reset(seed=0)
    assert tuple(env.agent.pos[[0, 2]]) == env._centre(START) and env.agent.dir == 0
    way = "IJFGCBA"
    assert way[0] == START and way[-1] == GOAL
    assert all("".join(sorted(pair)) in HALLWAYS for pair in itertools.pairwise(way))
    outcomes = [outcome for room in way for outcome in walk_to(env, *env._centre(room))]
    assert outcomes[-1] == (1.0, True) and not any(reward for reward, _ in outcomes[:-1])
    assert 200 <= len(outcomes) <= 260 and env.step_count < env.max_episode_steps


def test_the_hallways_make_a_tree(my_way_home):
    from torchrl_dceo.envs.miniworld.turning import HALLWAYS, ROOMS

    assert len(HALLWAYS) == len(ROOMS) - 1
    reached = {"A"}
    for _ in ROOMS:
        reached |= {room for pair in HALLWAYS if set(pair) & reached for room in pair}
    assert reached == set(ROOMS)


def test_walls_hold(my_way_home):
    """From E, which only leads back to the start, no straight way reaches A, its neighbour."""
    env = my_way_home
    env.reset(seed=0)
    walk_to(env, *env._centre("E"))
    outcomes = walk_to(env, *env._centre("A"))
    assert len(outcomes) == 400 and not any(done for _, done in outcomes)


def test_two_environments_in_one_process_are_drawn_each_as_itself(four_rooms, my_way_home):
    alone = four_rooms.reset(seed=0)[0]["pixels"]
    my_way_home.reset(seed=0)
    again = four_rooms.observe()["pixels"]
    np.testing.assert_array_equal(alone, again)
    assert np.abs(alone.astype(int) - my_way_home.observe()["pixels"]).mean() > 10


# States


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_cells_and_free_positions(name, four_rooms, my_way_home):
    env = four_rooms if name == ENVIRONMENTS[0] else my_way_home
    plan = env.floor_plan
    points = plan.lattice(0.5)
    assert plan.is_free(points).all()
    env.reset(seed=0)
    env.entities = [env.agent]
    rng = np.random.default_rng(0)
    anywhere = rng.uniform(plan.low - 1, plan.high + 1, (400, 2))
    inside = np.array(
        [any(room.point_inside(np.array([x, 0, z])) for room in env.rooms) for x, z in anywhere]
    )
    hits = np.array([bool(env.intersect(env.agent, np.array([x, 0, z]), 0.4)) for x, z in anywhere])
    np.testing.assert_array_equal(plan.is_free(anywhere), inside & ~hits)
    assert 50 < plan.is_free(anywhere).sum() < 350
    cells = {plan.cell_of(x, z) for x, z in plan.lattice(0.1)}
    assert cells == set(range(env.num_states))
    for number, (x, z) in enumerate(plan.cell_centres):
        assert plan.cell_of(x, z) == number


def test_moves_stay_on_the_free_floor(four_rooms):
    env = four_rooms
    env.reset(seed=3)
    rng = np.random.default_rng(3)
    for _ in range(150):
        env.step(int(rng.choice(3, p=[0.1, 0.1, 0.8])))
        assert env.floor_plan.is_free(env.agent.pos[[0, 2]])


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_observe_at_changes_nothing_and_sees_what_the_agent_would(name, four_rooms, my_way_home):
    env = four_rooms if name == ENVIRONMENTS[0] else my_way_home
    env.reset(seed=0)
    for _ in range(5):
        env.step(FORWARD)
    before = env.get_state()
    x, _, z = env.agent.pos
    pictures = env.observe_at(np.array([[x, z], [0.0, -4.0]]), env.agent.dir)
    np.testing.assert_array_equal(pictures[0], env.observe()["pixels"])
    assert not np.array_equal(pictures[0], pictures[1])
    after = env.get_state()
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_views_are_what_the_agent_would_see_turning_its_head(four_rooms):
    from torchrl_dceo.envs.miniworld import MiniWorldFourRooms

    around = MiniWorldFourRooms(views=4)
    turns = round(90 / around.params.sample(None, "turn_step"))  # of 15 degrees
    for env in (around, four_rooms):
        env.reset(seed=3)
        env.step(FORWARD)
    before = around.get_state()
    pixels = around.observe()["pixels"]
    assert pixels.shape == (3, 60, 320) and pixels.flags["C_CONTIGUOUS"]
    after = around.get_state()
    assert all(np.array_equal(before[key], after[key]) for key in before)
    x, _, z = around.agent.pos
    np.testing.assert_array_equal(
        around.observe_at(np.array([[x, z]]), around.agent.dir)[0], pixels
    )
    views = [pixels[:, :, 80 * k : 80 * (k + 1)].astype(int) for k in range(4)]
    for place in (1, 0, 3, 2):  # ahead, then to the left, behind, to the right
        seen = four_rooms.observe()["pixels"]
        # Turning adds up rounding errors: a few pixels at edges may fall to the other side.
        apart = [np.abs(seen - view).mean() for view in views]
        assert apart.pop(place) < 0.5 and min(apart) > 5
        for _ in range(turns):
            four_rooms.step(LEFT)


def test_bad_values(four_rooms):
    from torchrl_dceo.envs.miniworld import MiniWorldFourRooms

    for settings, message in (
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"render_mode": "human"}, "render_mode must be 'rgb_array' or None, got 'human'"),
        ({"cell_size": 0}, "cell_size must be positive, got 0"),
        ({"views": 0}, "views must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            MiniWorldFourRooms(**settings)
    with pytest.raises(ValueError, match=r"action must lie in \[0, 3\), got 3"):
        four_rooms.step(3)


def test_a_saved_state_of_another_kind_is_refused(four_rooms):
    from torchrl_dceo.envs.miniworld import MiniWorldFourRooms

    other = MiniWorldFourRooms(coverage=True)
    four_rooms.reset(seed=0)
    with pytest.raises(ValueError, match="has 2 objects, but this one has 1"):
        other.set_state(four_rooms.get_state())
