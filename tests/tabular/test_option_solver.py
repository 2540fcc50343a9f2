from __future__ import annotations

import pytest
import torch

from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.envs.grid.maps import four_rooms
from torchrl_dceo.tabular import RODCycle, TransitionGraph, solve_options


def wander(env, graph, num_steps):
    step = env.reset()
    for _ in range(num_steps):
        now, step = env.step_and_maybe_reset(step.set("action", env.action_spec.rand()))
        graph.update(now)


def know(env, graph):
    """Shows the graph what every action does in every state, slip aside."""
    for s in range(env.num_states):
        for a in range(env.num_actions):
            step = env.reset().set("action", torch.tensor([a])).set("state_id", torch.tensor([s]))
            step.set("next", {"state_id": env.next_state[s, a].view(1)})
            graph.update(step)


def exact_values(counts, f, gamma):
    """Value iteration over dictionaries: {(s, a): {s': count}}, with stopping worth 0."""
    states = range(len(f))
    value = [0.0] * len(f)
    for _ in range(5000):
        q = {
            (s, a): sum(n * (f[t] - f[s] + gamma * value[t]) for t, n in seen.items())
            / sum(seen.values())
            for (s, a), seen in counts.items()
        }
        new = [max([0.0, *(v for (t, _), v in q.items() if t == s)]) for s in states]
        if max(abs(x - y) for x, y in zip(new, value, strict=True)) < 1e-13:
            break
        value = new
    return q


def test_equals_value_iteration_over_dictionaries():
    torch.manual_seed(0)
    env = GridWorldEnv("S..#\n....\n#...", batch_size=[2], seed=0, slip=0.4, coverage=True)
    graph = TransitionGraph(2, env.num_states, env.num_actions)
    wander(env, graph, 60)  # not everything was tried
    f = torch.randn(2, env.num_states, 3, dtype=torch.float64)
    solved = solve_options(*graph.model(torch.arange(2)), f, gamma=0.9)
    untried = 0
    for seed in range(2):
        counts: dict = {}
        for s, a, k in graph.counts[seed].nonzero().tolist():
            following = int(graph.successors[seed, s, k])
            counts.setdefault((s, a), {})[following] = int(graph.counts[seed, s, a, k])
        for i in range(3):
            q = exact_values(counts, f[seed, :, i].tolist(), 0.9)
            for s in range(env.num_states):
                for a in range(env.num_actions):
                    untried += (s, a) not in q
                    assert abs(float(solved[seed, i, s, a]) - q.get((s, a), 0.0)) < 2e-7
    assert untried


def first_option(env):
    """The first option of an environment that is fully known, and the eigenvector that it climbs."""
    cycle = RODCycle(
        1, env.num_states, env.num_actions, 1, signs="+", weights="edges", gamma=0.99, prior=0.0
    )
    know(env, cycle.graph)
    cycle.discover(torch.tensor([0]))
    return cycle.options.table[0, :, 0], cycle.eigenvectors[0, :, 0]


def test_first_option_of_a_path_goes_to_one_end_and_stops_there():
    env = GridWorldEnv("S........", batch_size=[1], slip=0.0)
    q, f = first_option(env)
    # The eigenvector is a half cosine over the path: it climbs from one end to the other.
    end, towards = (8, 1) if f[8] > f[0] else (0, 3)  # actions 1 and 3 are right and left
    stops = (q.amax(-1) <= 0).nonzero().flatten().tolist()
    assert stops == [end]
    others = [s for s in range(9) if s != end]
    assert q.argmax(-1)[others].tolist() == [towards] * 8


def test_first_option_of_four_rooms_crosses_to_a_corner_and_stops_there():
    """The first eigenvector of Four Rooms separates top right from bottom left and peaks in one of these corners."""
    env = GridWorldEnv(four_rooms(), batch_size=[1], slip=0.0)
    q, f = first_option(env)
    cells = [tuple(cell) for cell in env.cells.tolist()]
    stops = [cells[s] for s in (q.amax(-1) <= 0).nonzero().flatten().tolist()]
    top = cells[int(f.argmax())]
    # The eigenvector's largest entry is the corner farthest from the bottlenecks; no other state is a maximum.
    assert stops == [top] and top in {(1, 11), (11, 1)}
    # From everywhere the option takes a shortest way through the doors: what it gains is the same on each, and
    # discounting is for haste.
    distance = env.layout.distances(top)
    for s, cell in enumerate(cells):
        if cell != top:
            following = cells[int(env.next_state[s, q[s].argmax()])]
            assert distance[following] == distance[cell] - 1


def test_values_within_the_tolerance_count_as_none():
    moves = torch.eye(2, dtype=torch.float64).expand(1, 3, 2, 2)
    neighbours = torch.tensor([[[0, 1], [0, 2], [1, 2]]])
    flat = torch.tensor([0.0, 1e-9, 2e-9]).double().view(1, 3, 1)
    assert (solve_options(moves, neighbours, flat) == 0).all()


def test_says_what_is_wrong():
    moves = torch.eye(2, dtype=torch.float64).expand(1, 3, 2, 2)
    neighbours = torch.tensor([[[0, 1], [0, 2], [1, 2]]])
    climb = torch.arange(3.0).double().view(1, 3, 1)
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\), got 1.0"):
        solve_options(moves, neighbours, climb, gamma=1.0)
    with pytest.raises(RuntimeError, match="did not converge in 1 sweeps"):
        solve_options(moves, neighbours, climb, max_sweeps=1)
