"""The diagnosis of a run's options: its parts against slow models, and cases whose answer is known."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule

from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import exact_eigenfunctions, solved_option_values
from torchrl_dceo.analysis.diagnosis import (
    PARTS,
    Diagnosis,
    OptionTables,
    diagnose,
    explored,
    option_tables,
    read_diagnosis,
)
from torchrl_dceo.cli.runs import diagnose as command
from torchrl_dceo.envs import GridWorldEnv, make_env
from torchrl_dceo.envs.grid.maps import nine_rooms
from torchrl_dceo.modules import EigenReward, OptionExplorationModule
from torchrl_dceo.modules.exploration import value_termination
from torchrl_dceo.tabular import TabularConfig, run_tabular
from torchrl_dceo.training import train
from torchrl_dceo.training.probes import diagnose_run

MAP = "S....\n.##..\n...#G"
GAMMA = 0.9


def a_reward(num_options=2, signs="both", **settings):
    encoder = TensorDictModule(
        torch.nn.Identity(), in_keys=["observation"], out_keys=["representation"]
    )
    return EigenReward(encoder, num_options, signs=signs, gamma=GAMMA, **settings)


def an_explorer(env, num_options, **settings):
    settings = {"option_prob": 0.7, "option_duration": 4, **settings}
    return OptionExplorationModule(env.action_spec, num_options=num_options, **settings)


def slow_moves(env, state, inside):
    """Where each action leads, one cell at a time; into a cell outside: nowhere."""
    cells = [tuple(cell) for cell in env.cells.tolist()]
    row, column = cells[state]
    places = []
    for down, right in ((-1, 0), (0, 1), (1, 0), (0, -1)):
        there = (row + down, column + right)
        reached = cells.index(there) if there in cells else state
        places.append(reached if reached in inside else state)
    return places


def slow_functions(env, inside, d):
    """The eigenfunctions of the graph with loops, dense, all states alike; largest entry positive."""
    order = sorted(inside)
    walk = np.zeros((len(order), len(order)))
    for place, state in enumerate(order):
        for reached in slow_moves(env, state, inside):
            walk[place, order.index(reached)] += 0.25
    _, vectors = np.linalg.eigh(np.eye(len(order)) - (walk + walk.T) / 2)
    functions = np.zeros((env.num_states, d))
    for column in range(d):
        own = vectors[:, column] * len(order) ** 0.5
        functions[order, column] = own * np.sign(own[np.abs(own).argmax()])
    return functions


def slow_values(env, f, inside, goal_ends):
    """Value iteration, one state and action at a time."""
    goals = set(env._is_goal.nonzero().flatten().tolist()) if goal_ends else set()
    best = [0.0] * env.num_states
    for _ in range(400):
        table = np.zeros((env.num_states, 4))
        for state in range(env.num_states):
            outcomes = [
                f[reached] - f[state] + (0 if reached in goals else GAMMA * best[reached])
                for reached in slow_moves(env, state, inside)
            ]
            for action in range(4):
                slipped = env.slip * sum(outcomes) / 4
                table[state, action] = (1 - env.slip) * outcomes[action] + slipped
        best = table.max(1).tolist()
    return table


@pytest.mark.parametrize("reward_free", [False, True])
@pytest.mark.parametrize("part", ["solved", "visited", "exact"])
def test_the_tables_are_those_of_a_slow_model(part, reward_free):
    env = GridWorldEnv(MAP, slip=0.2)
    reward = a_reward()
    f = torch.randn(env.num_states, 3, generator=torch.Generator().manual_seed(1)).double()
    visits = torch.tensor([9, 4, 2, 1, 7, 0, 3, 1, 0, 0, 5, 0])
    assert len(visits) == env.num_states
    tables = option_tables(
        env, reward, f, torch.zeros(env.num_states, 4, 4), visits, reward_free=reward_free
    )
    everywhere = set(range(env.num_states))
    inside = set(visits.nonzero().flatten().tolist()) if part == "visited" else everywhere
    functions = f.numpy() if part == "solved" else slow_functions(env, inside, 3)
    known = torch.tensor([state in inside for state in range(env.num_states)])
    assert torch.equal(tables[part].known, known.unsqueeze(-1).expand(-1, 4))
    for option, (column, sign) in enumerate([(1, 1), (2, 1), (1, -1), (2, -1)]):
        slow = slow_values(env, sign * functions[:, column], inside, not reward_free)
        given = tables[part].values[:, option]
        np.testing.assert_allclose(given[known].numpy(), slow[known.numpy()], atol=1e-6)


def test_learned_values_are_what_an_action_gains():
    env = GridWorldEnv(MAP)
    f, values = torch.randn(env.num_states, 3), torch.randn(env.num_states, 4, 4)
    visits = torch.ones(env.num_states, dtype=torch.int64)
    plain = option_tables(env, a_reward(), f, values, visits)["learned"].values
    shifted = option_tables(env, a_reward(mode="potential"), f, values, visits)["learned"].values
    torch.testing.assert_close(plain, values.double())
    followed = torch.cat([f[:, 1:], -f[:, 1:]], -1).double()
    torch.testing.assert_close(shifted, values.double() - followed.unsqueeze(-1))


def test_a_graph_with_fewer_functions_than_options_leaves_the_rest_to_chance():
    env = GridWorldEnv(MAP)
    visits = torch.zeros(env.num_states, dtype=torch.int64)
    visits[:2] = 1
    tables = option_tables(
        env,
        a_reward(num_options=3, signs="+"),
        torch.randn(env.num_states, 4),
        torch.randn(env.num_states, 3, 4),
        visits,
    )
    assert tables["visited"].known[:3].tolist() == [[True, False, False]] * 2 + [[False] * 3]


def test_an_unknown_state_is_left_by_a_random_walk():
    """Goals per 1,000 steps of a random walk in a corridor: 1,000 over the expected steps, h = 1 + P h."""
    env = GridWorldEnv("S...G", slip=0.15, max_steps=None)
    walk = np.zeros((4, 4))
    for state in range(4):
        for reached in (state, state, max(state - 1, 0), state + 1):
            if reached < 4:
                walk[state, reached] += 0.25
    expected = 1000 / np.linalg.solve(np.eye(4) - walk, np.ones(4))[0]
    nothing = OptionTables(torch.zeros(5, 2, 4), torch.zeros(5, 2, dtype=torch.bool))
    goals, _ = explored(env, [nothing], an_explorer(env, 2), steps=1000, repeats=100)
    error = float(goals.std()) / 100**0.5
    assert abs(float(goals.mean()) - expected) < 4 * error < 0.1 * expected


def slow_exploration(env, values, steps, prob, duration, generator):
    """Algorithm 1 at ε = 1, in plain Python."""
    start, goal = int(env._starts[0]), int(env._is_goal.nonzero())
    everywhere = set(range(env.num_states))
    moves = [slow_moves(env, state, everywhere) for state in range(env.num_states)]
    state, elapsed, option, goals, seen = start, 0, None, 0, {start}
    for _ in range(steps):
        if option is not None and (elapsed == 0 or generator.random() < 1 / duration):
            option = None
        action = generator.randrange(4)
        if option is None and generator.random() < prob:
            option = generator.randrange(len(values[0]))
        if option is not None:
            action = int(np.argmax(values[state][option]))
        if generator.random() < env.slip:
            action = generator.randrange(4)
        state, elapsed = moves[state][action], elapsed + 1
        seen.add(state)
        if state == goal or elapsed == env.max_steps:
            goals += state == goal
            state, elapsed = start, 0
    return 1000 * goals / steps, len(seen)


def test_exploration_is_that_of_a_slow_model():
    env = GridWorldEnv(nine_rooms(3), slip=0.2, max_steps=40)
    _, functions = exact_eigenfunctions(env, 3)
    f = torch.cat([functions[:, 1:], -functions[:, 1:]], -1)
    values = solved_option_values(f, env.next_state, gamma=GAMMA, slip=env.slip)
    table = OptionTables(values, torch.ones(env.num_states, 4, dtype=torch.bool))
    explorer = an_explorer(env, 4, eps_init=0.5)  # whatever ε the agent is at
    goals, states = explored(env, [table], explorer, steps=1000, repeats=40, seed=3)
    generator = random.Random(0)
    rows = values.float().numpy()
    slow = torch.tensor(
        [slow_exploration(env, rows, 1000, 0.7, 4, generator) for _ in range(40)]
    ).double()
    for ours, theirs in ((goals, slow[:, 0]), (states, slow[:, 1])):
        error = float((ours.var() / 40 + theirs.var() / 40).sqrt())
        assert abs(float(ours.mean() - theirs.mean())) < 4 * error


def exact_case(env, reward):
    _, functions = exact_eigenfunctions(env, reward.num_options + 1)
    f = torch.cat([functions[:, 1:], -functions[:, 1:]], -1)
    values = solved_option_values(
        f, env.next_state, gamma=GAMMA, slip=env.slip, terminal=env._is_goal
    )
    if reward.mode == "potential":
        values = values + f.unsqueeze(-1)
    return functions, values


@pytest.mark.parametrize("mode", ["telescoped", "potential"])
def test_exact_functions_and_options_lose_nothing(mode):
    """And options that go the other way lose, so that the first could have failed."""
    env = GridWorldEnv(nine_rooms(3), slip=0.1)
    reward = a_reward(mode=mode)
    functions, values = exact_case(env, reward)
    visits = torch.ones(env.num_states, dtype=torch.int64)
    explorer = an_explorer(env, 4, option_duration=10)
    given = diagnose(env, explorer, reward, functions, values, visits, steps=700, repeats=20)
    for measure in ("goals", "states"):
        for part in ("solved", "visited", "exact"):
            (ours, width), (theirs, other) = (given.mean(p, measure) for p in ("learned", part))
            assert abs(ours - theirs) <= 2 * (width**2 + other**2) ** 0.5
    up = torch.zeros_like(values)
    up[..., 0] = 1.0  # whatever the option
    table = OptionTables(up, torch.ones(env.num_states, 4, dtype=torch.bool))
    _, states = explored(env, [table], explorer, steps=700, repeats=20)
    mean, width = given.mean("learned", "states")
    assert float(states.mean()) < mean - 4 * width


def test_value_termination_compares_with_the_values_of_the_tables():
    """Under the potential mode the agent's own termination subtracts f, which the tables no longer hold."""
    env = GridWorldEnv("S....", slip=0.0)
    reward = a_reward(num_options=1, signs="+", mode="potential")
    explorer = an_explorer(
        env,
        1,
        option_prob=1.0,
        termination=functools.partial(value_termination, reward=reward),
    )
    right = torch.zeros(5, 1, 4)
    right[:4, 0, 1] = 1.0
    table = OptionTables(right, torch.ones(5, 1, dtype=torch.bool))
    _, states = explored(env, [table], explorer, steps=20, repeats=2)
    assert states.tolist() == [[5.0, 5.0]]
    assert isinstance(explorer.termination, functools.partial)  # the agent's is as it was


def test_ceo_is_the_tabular_agent():
    """Its goals by another way: with a row of every step, a return is that of the one episode that ended."""
    table_env = GridWorldEnv(nine_rooms(3))
    functions, values = exact_case(table_env, a_reward())
    visits = torch.ones(table_env.num_states, dtype=torch.int64)
    parts = (table_env, an_explorer(table_env, 4), a_reward(), functions, values, visits)
    given = diagnose(*parts, steps=500, repeats=6, seed=5)
    torch.manual_seed(5)
    env = GridWorldEnv(nine_rooms(3), batch_size=[6], seed=5)
    config = TabularConfig(total_steps=500, eps=1.0, log_period=1, eval_period=1)
    result = run_tabular("ceo", env, config)
    goals = result["train_return"].nan_to_num().sum(0)
    assert goals.sum() > 0
    torch.testing.assert_close(given.goals["ceo"], goals * 2)
    torch.testing.assert_close(given.states["ceo"], result["coverage"][-1].double())


def test_the_generators_stay_as_they_are():
    env = GridWorldEnv(MAP)
    functions, values = exact_case(env, a_reward())
    visits = torch.ones(env.num_states, dtype=torch.int64)
    before = torch.get_rng_state()
    parts = (env, an_explorer(env, 4), a_reward(), functions, values, visits)
    first = diagnose(*parts, steps=50, repeats=2, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    again = diagnose(*parts, steps=50, repeats=2, seed=3)
    assert all(torch.equal(first.states[part], again.states[part]) for part in PARTS)


def made_up(goals):
    each = {part: torch.tensor(value).double() for part, value in zip(PARTS, goals, strict=True)}
    return Diagnosis(each, each, steps=1000, num_states=50, num_visited=20)


def test_the_sentence_names_the_largest_loss_first():
    given = made_up([[0.0], [1.0], [1.5], [4.0], [4.25], [4.0]])
    assert given.sentence() == (
        "Of 4.00 goals per 1,000 steps (tabular CEO) the learned options keep 1.00: the representation loses 2.50, "
        "the learning of the options loses 0.50, what was not visited yet loses 0.25, the behaviour gains 0.25."
    )
    assert [given.loss(what)[0] for what in ("options", "representation", "data", "behaviour")] == [
        0.5,
        2.5,
        0.25,
        -0.25,
    ]


def test_intervals_are_those_of_the_mean():
    given = made_up([[0.0, 0.0], [1.0, 3.0], [2.0, 2.0], [4.0, 4.0], [4.0, 4.0], [4.0, 4.0]])
    mean, half = given.mean("learned")
    assert (mean, half) == (2.0, pytest.approx(1.96 * 2**0.5 / 2**0.5))
    pooled = Diagnosis.pooled([given, made_up([[1.0]] * 6)])
    assert pooled.goals["learned"].tolist() == [2.0, 1.0]


def test_a_run_is_diagnosed_by_the_command(tmp_path, capsys):
    torch.manual_seed(0)
    env = make_env("NineRooms", room_size=3, seed=0, visits="counts")
    settings = {"learning_starts": 100, "log_period": 100, "progress": False, "draw": False}
    row = train(
        make_agent("dceo", env, num_options=2),
        env,
        total_frames=300,
        run_dir=tmp_path / "run",
        **settings,
    )
    diagnosis = diagnose_run(tmp_path / "run", steps=60, repeats=2)
    assert diagnosis.num_visited == row["coverage"]
    words = [str(tmp_path / "run")] * 2
    given = ["--steps", "60", "--repeats", "2", "--out", str(tmp_path / "both")]
    assert command([*words, *given]) == 0
    said = capsys.readouterr().out
    assert (
        said.count("tabular CEO) the learned options keep") == 6
    )  # two measures, two runs and their mean
    read = read_diagnosis(tmp_path / "run" / "diagnosis.csv")
    for part in PARTS:
        torch.testing.assert_close(read.states[part], diagnosis.states[part])
        torch.testing.assert_close(read.goals[part], diagnosis.goals[part], atol=1e-4, rtol=1e-4)
    assert (tmp_path / "both" / "diagnosis.png").stat().st_size > 5000
    env = make_env("NineRooms", room_size=3, seed=0, visits="counts")
    train(make_agent("ddqn", env), env, total_frames=200, run_dir=tmp_path / "ddqn", **settings)
    assert command([str(tmp_path / "ddqn")]) == 2
    assert "ddqn has no options that follow eigenfunctions" in capsys.readouterr().err
    assert command([str(tmp_path / "run"), "--repeats", "0"]) == 2
    assert "repeats must be at least 1, got 0" in capsys.readouterr().err
