"""Climbing, against a walk in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from torchrl_dceo.analysis import (
    exact_eigenfunctions,
    greedy_path,
    option_climb,
    solved_option_values,
)
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.envs.grid.maps import nine_rooms


def reachable(next_state: list[list[int]], start: int) -> set[int]:
    seen, todo = {start}, [start]
    while todo:
        for state in next_state[todo.pop()]:
            if state not in seen:
                seen.add(state)
                todo.append(state)
    return seen


def slow_climb(values, heights, next_state, min_range):
    """Each state and option on its own: walk until a state comes again, look at the circle."""
    num_states, num_options, _ = values.shape
    table = next_state.tolist()
    score = torch.full((num_states, num_options), math.nan, dtype=torch.float64)
    best_score, gain = score.clone(), score.clone()
    for i in range(num_options):
        f = heights[:, i].tolist()
        policy = values[:, i].argmax(-1).tolist()
        for start in range(num_states):
            path = [start]
            while (following := table[path[-1]][policy[path[-1]]]) not in path:
                path.append(following)
            circle = path[path.index(following) :]
            end = sum(f[s] for s in circle) / len(circle)
            gain[start, i] = end - f[start]
            top = max(f[s] for s in reachable(table, start))
            left = top - f[start]
            if left > min_range * (max(f) - min(f)):
                score[start, i] = max(-1.0, (end - f[start]) / left)
                best_score[start, i] = (max(f[s] for s in path) - f[start]) / left
    return score, best_score, gain


@pytest.mark.parametrize("num_states", [1, 2, 3, 16, 17, 60])
def test_climb_equals_a_walk_in_plain_python(num_states):
    """Random tables: long circles, parts that cannot be left or reached, ties in none."""
    generator = torch.Generator().manual_seed(num_states)
    for _ in range(5):
        next_state = torch.randint(num_states, (num_states, 3), generator=generator)
        values = torch.randn(num_states, 4, 3, generator=generator)
        heights = torch.randn(num_states, 4, generator=generator, dtype=torch.float64)
        climb = option_climb(values, heights, next_state, min_range=0.1)
        expected = slow_climb(values, heights, next_state, 0.1)
        for got, wanted in zip(climb, expected, strict=True):
            torch.testing.assert_close(got, wanted, equal_nan=True)


def test_a_long_circle_is_walked_to_its_end():
    """One circle through all states: from anywhere the end is the mean, the best the maximum."""
    size = 37
    next_state = ((torch.arange(size) + 1) % size).unsqueeze(-1)
    heights = torch.arange(size, dtype=torch.float64).unsqueeze(-1)
    climb = option_climb(torch.zeros(size, 1, 1), heights, next_state)
    mean = (size - 1) / 2
    torch.testing.assert_close(climb.gain, mean - heights)
    assert climb.best_score[~climb.best_score.isnan()].eq(1).all()
    assert climb.score[0, 0] == 0.5


def test_perfect_options_climb_to_the_top_and_contrary_ones_fall():
    """Distances to the maximum as values, on the real map: score 1; to the minimum: not above 0."""
    env = GridWorldEnv(nine_rooms(3))
    f = exact_eigenfunctions(env, 4)[1][:, 1:]
    values, contrary = [], []
    for i in range(3):
        for target, column in ((f[:, i].argmax(), values), (f[:, i].argmin(), contrary)):
            near = env.layout.distances(env.layout.cells[int(target)])
            distance = torch.tensor([float(near[cell]) for cell in env.layout.cells])
            column.append(-distance[env.next_state])
    up = option_climb(torch.stack(values, 1), f, env.next_state)
    down = option_climb(torch.stack(contrary, 1), f, env.next_state)
    torch.testing.assert_close(up.mean(), torch.ones(3, dtype=torch.float64))
    assert (down.mean() < 0).all() and (down.score[~down.score.isnan()] >= -1).all()


def test_nothing_to_climb_is_left_out_of_the_means():
    corridor = torch.tensor([[0, 1], [0, 2], [1, 2]])
    heights = torch.tensor([[0.0, 7.0], [1.0, 7.0], [2.0, 7.0]])  # the second function is constant
    values = torch.tensor([0.0, 1.0]).expand(3, 2, 2)
    climb = option_climb(values, heights, corridor)
    assert climb.score[2, 0].isnan() and climb.score[:, 1].isnan().all()
    assert climb.mean()[0] == 1 and climb.mean()[1].isnan()
    assert climb.at(torch.tensor([0]))[0] == 1 and climb.at(torch.tensor([2]))[0].isnan()
    # Between 1 and 2 lies half of the range: left out if more than half must be left.
    assert option_climb(values, heights, corridor, min_range=0.6).score[1, 0].isnan()


def test_an_option_that_stays_scores_0_and_one_that_passes_the_top_shows():
    corridor = torch.tensor([[0, 1], [0, 2], [1, 2]])
    heights = torch.tensor([[0.0], [2.0], [1.0]])
    stays = option_climb(torch.tensor([1.0, 0.0]).expand(3, 1, 2), heights, corridor)
    passes = option_climb(torch.tensor([0.0, 1.0]).expand(3, 1, 2), heights, corridor)
    assert stays.score[0, 0] == 0
    assert passes.score[0, 0] == 0.5 and passes.best_score[0, 0] == 1


def test_the_top_is_one_that_can_be_reached():
    """Two parts without a way between them: each has a top of its own."""
    parts = torch.tensor([[0, 1], [0, 1], [2, 3], [2, 3]])
    heights = torch.tensor([[0.0], [1.0], [0.0], [5.0]])
    climb = option_climb(torch.tensor([0.0, 1.0]).expand(4, 1, 2), heights, parts)
    assert climb.score[0, 0] == 1 and climb.score[2, 0] == 1


def test_functions_that_are_not_finite_do_not_hang():
    corridor = torch.tensor([[0, 1], [0, 2], [1, 2]])
    climb = option_climb(torch.zeros(3, 1, 2), torch.full((3, 1), math.nan), corridor)
    assert climb.score.isnan().all()


def test_greedy_path_ends_before_it_repeats():
    circle = torch.tensor([[1], [2], [3], [1]])
    assert greedy_path(torch.zeros(4, 1), circle, 0) == [0, 1, 2, 3]
    assert greedy_path(torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.int64), 0) == [0]


@pytest.mark.parametrize(
    ("values", "heights", "table", "message"),
    [
        ((3, 2), (3, 2), (3, 2), r"option_values must be \[S, N, A\]"),
        ((3, 1, 2), (3, 2), (3, 2), r"one column for each option, \[3, 1\], got \[3, 2\]"),
        ((3, 1, 2), (3, 1), (3, 4), r"next_state must be \[3, 2\], got \[3, 4\]"),
    ],
)
def test_shapes_that_do_not_fit_are_named(values, heights, table, message):
    with pytest.raises(ValueError, match=message):
        option_climb(
            torch.zeros(values), torch.zeros(heights), torch.zeros(table, dtype=torch.int64)
        )


def test_solved_options_are_those_of_value_iteration_by_hand():
    """A corridor of three with slips: every value as one backup in plain Python of the others."""
    corridor, f, slip, gamma = [[0, 1], [0, 2], [1, 2]], [0.0, -1.0, 2.0], 0.3, 0.8
    values = solved_option_values(
        torch.tensor(f).unsqueeze(1), torch.tensor(corridor), gamma=gamma, slip=slip
    )
    best = values[:, 0].max(-1).values.tolist()
    for state, moves in enumerate(corridor):
        paid = [f[s] - f[state] + gamma * best[s] for s in moves]
        for action in range(2):
            expected = (1 - slip) * paid[action] + slip * sum(paid) / 2
            assert float(values[state, 0, action]) == pytest.approx(expected, abs=1e-8)


def test_a_small_discount_leaves_options_on_the_hill_where_they_are():
    """From the lower hill to the top it is down by h and up again, k steps: it pays for large γ alone."""
    corridor = torch.tensor([[max(s - 1, 0), min(s + 1, 10)] for s in range(11)])
    heights = torch.cat([torch.linspace(0.5, 0, 5), torch.linspace(0.1, 1, 6)]).unsqueeze(1)
    climbed = [
        float(
            option_climb(
                solved_option_values(heights, corridor, gamma=gamma), heights, corridor
            ).score[0]
        )
        for gamma in (0.8, 0.99)
    ]
    assert climbed == [0.0, 1.0]
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\), got 1"):
        solved_option_values(heights, corridor, gamma=1)
