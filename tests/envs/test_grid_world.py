from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.envs import Compose, EnvBase, ParallelEnv, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs

from torchrl_dceo.envs.grid.grid_world import GridWorldEnv, tile
from torchrl_dceo.envs.grid.maps import MAPS, four_rooms, maze, nine_rooms

BATCH_SIZES = [(), (1,), (5,), (2, 3)]
OBSERVATIONS = ["pixels", "xy", "index"]
# Two starts, two goals, a floor cell on the edge of the map and one that is cut off.
ODD = "S.#..\n..#.#\n.S..G\n##.#G\n.#..."


class PlainGrid:
    """The same environment in plain Python, on the characters of the map."""

    moves = {0: (-1, 0), 1: (0, 1), 2: (1, 0), 3: (0, -1)}

    def __init__(self, text):
        self.grid = text.split("\n")
        self.free = [
            (r, c) for r, row in enumerate(self.grid) for c, mark in enumerate(row) if mark != "#"
        ]

    def step(self, state, action):
        r, c = self.free[state]
        dr, dc = self.moves[action]
        target = (r + dr, c + dc)
        state = self.free.index(target) if target in self.free else state
        r, c = self.free[state]
        goal = self.grid[r][c] == "G"
        return state, float(goal), goal

    def picture(self, state, size, goal_visible):
        colour = {"#": (100, 100, 100), "G": (0, 255, 0) if goal_visible else (0, 0, 0)}
        picture = torch.zeros(3, len(self.grid) * size, len(self.grid[0]) * size)
        for r, row in enumerate(self.grid):
            for c, mark in enumerate(row):
                rgb = (255, 0, 0) if (r, c) == self.free[state] else colour.get(mark, (0, 0, 0))
                block = picture[:, r * size : (r + 1) * size, c * size : (c + 1) * size]
                block.copy_(torch.tensor(rgb)[:, None, None])
        return picture.to(torch.uint8)


def place(env, states, elapsed=0):
    """Puts the environments into given states."""
    state = env.get_env_state()
    state["state_id"] = torch.as_tensor(states).reshape(env.batch_size)
    state["elapsed"] = torch.full(env.batch_size, elapsed)
    env.set_env_state(state)


@pytest.mark.parametrize("batch_size", [(), (3,), (2, 2)])
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("name", MAPS)
def test_specs(name, observation, batch_size):
    env = GridWorldEnv(MAPS[name](), observation=observation, batch_size=batch_size)
    check_env_specs(env)
    key = "pixels" if observation == "pixels" else "observation"
    shape = {
        "pixels": (3, env.height, env.width),
        "xy": (2,),
        "index": (env.num_states,),
    }[observation]
    reset = env.reset()
    assert reset[key].shape == (*batch_size, *shape)
    assert reset[key].dtype == (torch.uint8 if observation == "pixels" else torch.float32)
    assert reset["state_id"].shape == batch_size and reset["state_id"].dtype == torch.int64
    following = env.rand_step(reset)["next"]
    assert following["reward"].shape == (*batch_size, 1)
    assert following["reward"].dtype == torch.float32


@pytest.mark.parametrize("text", [*(MAPS[name]() for name in MAPS), ODD])
def test_every_state_and_action_as_in_plain_python(text):
    plain = PlainGrid(text)
    states = len(plain.free)
    env = GridWorldEnv(text, batch_size=[states, 4], slip=0.0)
    assert env.num_states == states and env.cells.tolist() == [list(cell) for cell in plain.free]
    env.reset()
    place(env, torch.arange(states).unsqueeze(-1).expand(states, 4))
    action = torch.arange(4).expand(states, 4)
    result = env.step(TensorDict({"action": action}, batch_size=[states, 4]))["next"]
    for state in range(states):
        for a in range(4):
            following, reward, terminated = plain.step(state, a)
            got = result[state, a]
            assert got["state_id"] == following
            assert got["reward"].tolist() == [reward]
            assert got["terminated"].tolist() == got["done"].tolist() == [terminated]
            assert got["truncated"].tolist() == [False]
    assert env.next_state.tolist() == [
        [plain.step(s, a)[0] for a in range(4)] for s in range(states)
    ]


@pytest.mark.parametrize("goal_visible", [False, True])
@pytest.mark.parametrize("tile_size", [1, 3])
@pytest.mark.parametrize("table", [True, False])
def test_pixels_show_walls_agent_and_perhaps_the_goal(tile_size, goal_visible, table, monkeypatch):
    if not table:
        monkeypatch.setattr(GridWorldEnv, "_largest_table", 0)
    env = GridWorldEnv(ODD, tile_size=tile_size, goal_visible=goal_visible, batch_size=[3])
    assert (env._observations is not None) == table
    plain = PlainGrid(ODD)
    seen = env.observe(torch.arange(env.num_states))
    for state in range(env.num_states):
        assert seen[state].equal(plain.picture(state, tile_size, goal_visible))
    rollout = env.rollout(30, break_when_any_done=False)
    assert rollout["pixels"].equal(seen[rollout["state_id"]])
    assert rollout["next", "pixels"].equal(seen[rollout["next", "state_id"]])


def test_xy_and_index_observations():
    env = GridWorldEnv("S..\n.#.\n..G\n...\n...", observation="xy")
    xy = env.observe(torch.arange(env.num_states).view(2, -1))
    assert xy.shape == (2, 7, 2)
    expected = [[c - 1.0, r / 2 - 1.0] for r, c in env.layout.cells]
    assert xy.flatten(0, 1).tolist() == expected
    index = GridWorldEnv(nine_rooms(), observation="index")
    assert index.observe(torch.arange(237)).equal(torch.eye(237))


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_same_seed_same_trajectory(batch_size):
    def run(seed):
        env = GridWorldEnv(ODD, batch_size=batch_size)
        env.set_seed(seed)
        torch.manual_seed(0)  # the policy's actions
        return env.rollout(60, break_when_any_done=False)

    assert (run(1) == run(1)).all()
    assert not run(1)["state_id"].equal(run(2)["state_id"])


def test_seed_argument_and_global_seed():
    def states(**kwargs):
        env = GridWorldEnv(ODD, batch_size=[8], **kwargs)
        actions = iter(torch.arange(80).remainder(4).view(10, 8))
        return env.rollout(
            10, lambda td: td.set("action", next(actions)), break_when_any_done=False
        )["state_id"]

    assert states(seed=5).equal(states(seed=5))
    assert not states(seed=5).equal(states(seed=6))
    torch.manual_seed(3)
    first = states()
    torch.manual_seed(3)
    assert first.equal(states())


@pytest.mark.parametrize("batch_size", [(4,), (2, 2)])
def test_environment_i_of_a_batch_equals_a_lone_one_with_the_same_random_numbers(batch_size):
    steps, count = 600, 4
    slips = torch.rand(steps + 1, count, dtype=torch.float64)
    starts = torch.rand(count)
    actions = torch.randint(4, (steps, count))

    def run(shape, column):
        env = GridWorldEnv(ODD, batch_size=shape, slip=0.4, max_steps=30)
        env._slip._shape = (steps + 1, *shape)
        env._slip._uniform = lambda: slips[:, column].view(steps + 1, *shape)
        env._slip._next_block()
        first = starts[column].view(shape)  # the same one at every reset of an environment
        env._uniform = lambda: first
        given = iter(actions[:, column].view(steps, *shape))
        return env.rollout(
            steps, lambda td: td.set("action", next(given)), break_when_any_done=False
        )

    batched = run(batch_size, slice(None)).reshape(count, steps)
    assert batched["next", "terminated"].sum() > 5 and batched["next", "truncated"].sum() > 5
    for i in range(count):
        assert (run((), i) == batched[i]).all()


def test_slip_frequency():
    count = 10_000
    env = GridWorldEnv("...\n.S.\n...", batch_size=[count], slip=0.15, max_steps=None, seed=0)
    centre = env._starts.item()
    moved = []
    for _ in range(200):
        env.reset()
        action = torch.zeros(count, dtype=torch.int64)
        moved.append(env.step(TensorDict({"action": action}, [count]))["next", "state_id"])
    moved = torch.stack(moved)
    share = [(moved == env.next_state[centre, a]).double().mean().item() for a in range(4)]
    # Up w.p. 0.85 + 0.15 / 4, the others 0.15 / 4 each. Of 2e6 draws, 1% is five standard errors.
    assert share == pytest.approx([0.8875, 0.0375, 0.0375, 0.0375], abs=0.0008)
    assert (1 - share[0]) * 4 / 3 == pytest.approx(0.15, rel=0.01)


def test_step_limit_truncates_and_a_goal_terminates():
    env = GridWorldEnv("S..G", slip=0.0, max_steps=3, batch_size=[2])
    actions = iter([[1, 0], [1, 0], [1, 0]])
    policy = lambda td: td.set("action", torch.tensor(next(actions)))  # noqa: E731
    rollout = env.rollout(3, policy)
    assert rollout["next", "state_id"].tolist() == [[1, 2, 3], [0, 0, 0]]
    assert rollout["next", "reward"].squeeze(-1).tolist() == [[0, 0, 1], [0, 0, 0]]
    assert rollout["next", "terminated"].squeeze(-1).tolist() == [[False, False, True], [False] * 3]
    assert rollout["next", "truncated"].squeeze(-1).tolist() == [[False, False, True]] * 2
    assert rollout["next", "done"].squeeze(-1).tolist() == [[False, False, True]] * 2
    endless = GridWorldEnv("S..", max_steps=None)
    assert not endless.rollout(300)["next", "done"].any()


def test_coverage_ends_nowhere_and_gives_nothing():
    for env in (
        GridWorldEnv("S.G", coverage=True, goal_visible=True, batch_size=[4]),
        GridWorldEnv("S..", batch_size=[4]),
        GridWorldEnv("S.G", goals=[], batch_size=[4]),
    ):
        rollout = env.rollout(250, break_when_any_done=False)
        assert (rollout["next", "state_id"] == 2).any()
        assert not rollout["next", "reward"].any() and not rollout["next", "terminated"].any()
        done = rollout["next", "done"].squeeze(-1)
        assert done.nonzero()[:, 1].unique().tolist() == [99, 199]
        assert not (rollout["pixels"] == tile("goal")).all(-3).any()  # no goal is shown


@pytest.mark.parametrize("batch_size", [(6,), (2, 3)])
def test_partial_reset_touches_only_its_environments(batch_size):
    env = GridWorldEnv(nine_rooms(), batch_size=batch_size, slip=0.0)
    tensordict = env.rollout(20, break_when_any_done=False, auto_reset=True)[..., -1]["next"]
    reset = torch.arange(6).remainder(3).eq(0).view(batch_size).unsqueeze(-1)
    before = tensordict.exclude("reward").clone()
    after = env.reset(before.clone().set("_reset", reset))
    mask = reset.squeeze(-1)
    start = env._starts.item()
    assert (after["state_id"][mask] == start).all()
    assert after["state_id"][~mask].equal(before["state_id"][~mask])
    assert after["pixels"][~mask].equal(before["pixels"][~mask])
    assert env.get_env_state()["elapsed"].eq(0).equal(mask)
    assert env.get_env_state()["env_steps"].eq(20).all()


def test_starts_are_drawn_uniformly():
    env = GridWorldEnv("S.S\n.G.\nS.S", batch_size=[10_000], seed=0)
    share = torch.bincount(env.reset()["state_id"], minlength=9) / 10_000
    assert share[[0, 2, 6, 8]].tolist() == pytest.approx([0.25] * 4, abs=0.02)
    assert share.sum() == pytest.approx(1) and not share[[1, 3, 4, 5, 7]].any()
    anywhere = GridWorldEnv("S.S\n.G.\nS.#", batch_size=[10_000], starts="anywhere", seed=0)
    share = torch.bincount(anywhere.reset()["state_id"], minlength=8) / 10_000
    assert share.tolist() == pytest.approx([1 / 7] * 4 + [0] + [1 / 7] * 3, abs=0.02)
    island = GridWorldEnv("SG#.", starts="anywhere")  # no goal to be reached from the last cell
    assert island.layout.starts == ((0, 0),)


def test_starts_and_goals_in_place_of_the_maps():
    env = GridWorldEnv(four_rooms(), starts=[(11, 1)], goals=[(1, 1)], slip=0.0)
    assert env.cells[env.reset()["state_id"]].tolist() == [11, 1]
    assert env.cells[env._is_goal].tolist() == [[1, 1]]


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_goes_on_identically_after_saving_and_loading(batch_size):
    env = GridWorldEnv(ODD, batch_size=batch_size, max_steps=20, seed=1)
    carrier = env.rollout(33, break_when_any_done=False)[..., -1]
    carrier = env.maybe_reset(env.step_mdp(carrier))
    state = {key: value.clone() for key, value in env.get_env_state().items()}
    assert all(isinstance(value, torch.Tensor) for value in state.values())

    def go_on(env):
        torch.manual_seed(0)
        return env.rollout(
            300, auto_reset=False, tensordict=carrier.clone(), break_when_any_done=False
        )

    expected = go_on(env)
    other = GridWorldEnv(ODD, batch_size=batch_size, max_steps=20, seed=2)
    other.reset()
    other.set_env_state(state)
    assert (go_on(other) == expected).all()
    with pytest.raises(ValueError, match="batch size"):
        GridWorldEnv(ODD, batch_size=[7]).set_env_state(state)


@pytest.mark.parametrize("text", [nine_rooms(3), maze(), ODD])
def test_transition_matrix_counts_moves(text):
    plain = PlainGrid(text)
    env = GridWorldEnv(text, slip=0.15)
    expected = torch.zeros(env.num_states, env.num_states, dtype=torch.float64)
    for state in range(env.num_states):
        for action in range(4):
            expected[state, plain.step(state, action)[0]] += 0.25
    assert env.transition_matrix().to_dense().equal(expected)


def test_transition_matrix_against_the_running_environment():
    env = GridWorldEnv("S..#\n.#..\n....", batch_size=[4000], max_steps=None, seed=0)
    greedy = torch.zeros(env.num_states, 4)
    greedy[:, 1] = 1  # always to the right, so that slip matters
    exact = env.transition_matrix(greedy).to_dense()
    env.reset()
    counts = torch.zeros(env.num_states, env.num_states)
    for _ in range(60):
        state = torch.randint(env.num_states, (4000,))
        place(env, state)
        action = torch.ones(4000, dtype=torch.int64)
        following = env.step(TensorDict({"action": action}, [4000]))["next", "state_id"]
        counts.index_put_((state, following), torch.ones(()), accumulate=True)
    assert (counts / counts.sum(1, keepdim=True) - exact).abs().max() < 0.01


def test_writing_into_a_result_does_not_change_the_environment():
    env = GridWorldEnv("S.G", slip=0.0)
    for _ in range(2):
        tensordict = env.reset()
        for state in (1, 2):
            tensordict = env.step(tensordict.set("action", torch.tensor(1)))["next"]
            assert tensordict["state_id"] == state
            assert tensordict["terminated"].item() == (state == 2)
            assert (tensordict["pixels"][0] == 255).nonzero().tolist() == [[0, state]]
            kept = tensordict.clone()
            tensordict.zero_()
            place(env, kept["state_id"])
            tensordict = kept


@pytest.mark.parametrize("batch_size", [(), (3,)])
@pytest.mark.parametrize("preset", [False, True])
def test_the_short_way_of_a_step_equals_torchrls(batch_size, preset):
    class LongWay(GridWorldEnv):
        _step_and_maybe_reset = EnvBase._step_and_maybe_reset
        _step_proc_data = EnvBase._step_proc_data

    def run(cls):
        torch.manual_seed(0)
        env = cls(ODD, batch_size=batch_size, max_steps=9, seed=4)
        root = env.reset()
        root["hidden"] = torch.zeros(*batch_size, 2)
        root["nested"] = TensorDict({"x": torch.zeros(*batch_size, 2)}, batch_size)
        results = []
        for step in range(40):
            root = env.rand_action(root)
            if preset:
                root["next", "hidden"] = torch.full((*batch_size, 2), float(step))
            done, root = env.step_and_maybe_reset(root)
            results += [done.clone(), root.clone()]
        return results

    for short, long in zip(run(GridWorldEnv), run(LongWay), strict=True):
        assert set(short.keys(True, True)) == set(long.keys(True, True))
        assert (short == long).all()


def test_in_a_transformed_environment_a_collector_and_processes():
    env = TransformedEnv(GridWorldEnv(nine_rooms(), batch_size=[4]), Compose(StepCounter()))
    check_env_specs(env)
    for batch in Collector(env, None, frames_per_batch=80, total_frames=160):
        assert batch.shape == (4, 20)
        same = ~batch["next", "done"][:, :-1].squeeze(-1)
        assert batch["next", "state_id"][:, :-1][same].equal(batch["state_id"][:, 1:][same])
    parallel = ParallelEnv(2, partial(GridWorldEnv, maze()), mp_start_method="fork")
    try:
        assert parallel.rollout(5).shape == (2, 5)
    finally:
        parallel.close()


def test_a_copy_is_independent_and_equal():
    env = GridWorldEnv(ODD, batch_size=[3], seed=0)
    env.rollout(10)
    other = copy.deepcopy(env)
    torch.manual_seed(0)
    first = env.rollout(20)
    torch.manual_seed(0)
    assert (other.rollout(20) == first).all()


def test_render_shows_every_environment_and_its_goal():
    env = GridWorldEnv("#S.#\n#.G#", batch_size=[2, 2], slip=0.0)
    env.reset()
    place(env, [[0, 1], [2, 3]])
    pictures = env.render(tile_size=9)
    assert pictures.shape == (2, 2, 18, 36, 3) and pictures.dtype == torch.uint8
    patch = pictures[0, 1, :9, 18:27].movedim(-1, 0)
    assert patch.equal(tile("agent", 9))
    assert pictures[0, 0, 9:, 18:27].movedim(-1, 0).equal(tile("goal", 9))
    assert pictures[0, 0, :9, :9].movedim(-1, 0).equal(tile("wall", 9))
    assert pictures[1, 1, 9:, 18:27].movedim(-1, 0).equal(tile("agent", 9))
    assert env.render(torch.arange(4).view(2, 2), tile_size=9).equal(pictures)
    assert GridWorldEnv("S.G").render().shape == (16, 48, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"observation": "image"}, "observation must be 'pixels', 'xy' or 'index', got 'image'"),
        ({"tile_size": 0}, "tile_size must be at least 1, got 0"),
        ({"slip": 1.5}, r"slip must lie in \[0, 1\], got 1.5"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        GridWorldEnv("S.G", **arguments)


def test_starting_anywhere_in_coverage_mode_includes_the_goal_cell():
    env = GridWorldEnv("S.G", coverage=True, starts="anywhere", batch_size=[200], seed=0)
    assert set(env.reset()["state_id"].tolist()) == {0, 1, 2}
    ending = GridWorldEnv("S.G", starts="anywhere", batch_size=[200], seed=0)
    assert set(ending.reset()["state_id"].tolist()) == {0, 1}


def test_starts_of_another_name_are_refused_by_name():
    with pytest.raises(ValueError, match=r"starts must be .* or 'anywhere', got 'any'"):
        GridWorldEnv("S.G", starts="any")
