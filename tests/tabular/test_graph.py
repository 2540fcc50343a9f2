from __future__ import annotations

from collections import Counter

import pytest
import torch
from tensordict import TensorDict

from torchrl_dceo.envs import GridWorldEnv, RubiksCubeEnv
from torchrl_dceo.envs.grid.maps import four_rooms
from torchrl_dceo.tabular import TransitionGraph


def walk(env, num_steps):
    """Random steps of every seed, as plain numbers: state, action, next state."""
    step, steps = env.reset(), []
    for _ in range(num_steps):
        now, step = env.step_and_maybe_reset(step.set("action", env.action_spec.rand()))
        steps.append(now)
    return steps


@pytest.mark.parametrize(
    "make",
    [
        lambda: GridWorldEnv(four_rooms(), batch_size=[3], seed=1, slip=0.3),
        lambda: RubiksCubeEnv(max_depth=2, batch_size=[3], seed=1),
    ],
)
def test_equals_a_dictionary_of_counts(make):
    torch.manual_seed(0)
    env = make()
    graph = TransitionGraph(3, env.num_states, env.num_actions)
    expected = [Counter() for _ in range(3)]
    for now in walk(env, 400):
        graph.update(now)
        columns = [now[key].tolist() for key in ("state_id", "action", ("next", "state_id"))]
        for counter, *transition in zip(expected, *columns, strict=True):
            counter[tuple(transition)] += 1
    for seed, counter in enumerate(expected):
        lists, counts = graph.successors[seed], graph.counts[seed]
        found = {
            (s, a, int(lists[s, k])): int(counts[s, a, k]) for s, a, k in counts.nonzero().tolist()
        }
        assert found == dict(counter)
        pairs = {(s, t) for s, _, t in counter if s != t}
        pairs |= {(t, s) for s, t in pairs}
        assert set(zip(*graph.edges(seed).tolist(), strict=True)) == pairs
        assert graph.edges(seed).shape[1] == len(pairs) == 2 * graph.num_edges[seed]
        assert set(graph.seen[seed].nonzero().flatten().tolist()) == {
            state for s, _, t in counter for state in (s, t)
        }
        walked = {}
        for (s, _, t), times in counter.items():
            walked[s, t] = walked.get((s, t), 0) + times
        for s, t, times in zip(
            *graph.edges(seed).tolist(), graph.edge_visits(seed).tolist(), strict=True
        ):
            assert times == walked.get((s, t), 0) + walked.get((t, s), 0)
        adjacency = graph.adjacency(seed)
        assert {tuple(pair) for pair in adjacency.nonzero().tolist()} == pairs


def test_model_is_the_share_of_each_successor():
    graph = TransitionGraph(2, num_states=3, num_actions=2)
    for action, following in ((0, 1), (0, 1), (0, 2), (1, 0)):
        step = {"state_id": [0, 0], "action": [action] * 2, "next": {"state_id": [following] * 2}}
        graph.update(TensorDict(step, [2]))
    probabilities, successors = graph.model(torch.tensor([1]))
    assert probabilities.shape == (1, 3, 2, 4)  # three successors: the lists of two have grown
    dense = torch.zeros(3, 2, 3, dtype=torch.float64)
    for s in range(3):
        for a in range(2):
            dense[s, a].index_add_(0, successors[0, s], probabilities[0, s, a])
    assert dense[0].tolist() == [[0, 2 / 3, 1 / 3], [1, 0, 0]]
    assert dense[1:].sum() == 0  # never left


def test_a_prior_is_shared_out_as_any_action_led():
    graph = TransitionGraph(1, num_states=3, num_actions=2)
    for action, following in ((0, 1), (0, 1), (0, 2)):
        step = {"state_id": [0], "action": [action], "next": {"state_id": [following]}}
        graph.update(TensorDict(step, [1]))
    probabilities, successors = graph.model(torch.tensor([0]), prior=1.0)
    assert successors[0, 0, :2].tolist() == [1, 2]
    # Tried three times: (2 + 2/3) / 4 and (1 + 1/3) / 4; never tried: as the other action.
    expected = torch.tensor([[2 / 3, 1 / 3], [2 / 3, 1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(probabilities[0, 0, :, :2], expected)
    graph.update(TensorDict({"state_id": [0], "action": [1], "next": {"state_id": [2]}}, [1]))
    probabilities, _ = graph.model(torch.tensor([0]), prior=2.0)
    torch.testing.assert_close(  # (0 + 2 · 2/4) / 3 and (1 + 2 · 2/4) / 3
        probabilities[0, 0, 1, :2], torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    )
    for state in (0, 1):  # one state and action alone: the same
        for action in (0, 1):
            one, lists = graph.outcomes(torch.tensor([state]), torch.tensor([action]), 2.0)
            assert torch.equal(one[0], probabilities[0, state, action])
            assert torch.equal(lists, graph.model(torch.tensor([0]))[1][:, state])


def test_refuses_nothing_to_count():
    with pytest.raises(ValueError, match="num_seeds must be at least 1, got 0"):
        TransitionGraph(0, 3, 2)
