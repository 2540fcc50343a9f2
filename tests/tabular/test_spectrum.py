from __future__ import annotations

import math

import pytest
import torch

from torchrl_dceo.analysis import exact_eigenfunctions
from torchrl_dceo.envs import GridWorldEnv, RubiksCubeEnv
from torchrl_dceo.envs.grid.maps import four_rooms
from torchrl_dceo.tabular import laplacian_eigenvectors


def all_edges(env):
    states = torch.arange(env.num_states).unsqueeze(-1).expand_as(env.next_state)
    moves = states != env.next_state
    pairs = torch.stack([states[moves], env.next_state[moves]])
    return torch.cat([pairs, pairs.flip(0)], 1).unique(dim=1)


def path(n):
    steps = torch.arange(n - 1)
    return torch.stack([torch.cat([steps, steps + 1]), torch.cat([steps + 1, steps])])


@pytest.mark.parametrize("solver", ["dense", "sparse"])
def test_path_has_cosines(solver):
    """The Laplacian of a path of n states has the eigenvectors cos(πk(s+½)/n), eigenvalues 2 - 2cos(πk/n)."""
    n, d = 150, 4
    values, vectors = laplacian_eigenvectors(path(n), n, d, solver=solver)
    for k in range(1, d + 1):
        expected = math.sqrt(2) * torch.cos(math.pi * k * (torch.arange(n).double() + 0.5) / n)
        cosine = (vectors[:, k - 1] * expected).mean()
        assert abs(cosine.abs() - 1) < 1e-9
        assert abs(values[k - 1] - (2 - 2 * math.cos(math.pi * k / n))) < 1e-9


@pytest.mark.parametrize(
    "env", [GridWorldEnv(four_rooms()), RubiksCubeEnv(max_depth=3)], ids=["rooms", "cube"]
)
def test_known_environment_has_the_exact_eigenfunctions(env):
    """With all edges seen they are the eigenfunctions of the random walk that the deep agents learn."""
    values, vectors = laplacian_eigenvectors(all_edges(env), env.num_states, 3)
    exact_values, exact = exact_eigenfunctions(env, 4)
    torch.testing.assert_close(values / env.num_actions, exact_values[1:], atol=1e-9, rtol=0)
    overlap = exact[:, 1:].T @ vectors / env.num_states
    if env.num_actions == 4:  # simple eigenvalues: the same functions, up to sign
        torch.testing.assert_close(overlap.abs(), torch.eye(3).double(), atol=1e-7, rtol=0)
    else:  # the first eigenvalue is double: the same plane
        torch.testing.assert_close(
            torch.linalg.svdvals(overlap[:2, :2]), torch.ones(2).double(), atol=1e-7, rtol=0
        )


def test_solvers_agree_and_unseen_states_are_zero():
    edges = path(130) + 7  # states 0 to 6 and 137 on were never seen
    dense = laplacian_eigenvectors(edges, 140, 5, solver="dense")
    sparse = laplacian_eigenvectors(edges, 140, 5, solver="sparse")
    torch.testing.assert_close(dense[0], sparse[0], atol=1e-9, rtol=0)
    torch.testing.assert_close(dense[1].abs(), sparse[1].abs(), atol=1e-6, rtol=0)
    assert dense[1][:7].abs().sum() == dense[1][137:].abs().sum() == 0
    torch.testing.assert_close(dense[1].square().sum(0), torch.full((5,), 130.0).double())


@pytest.mark.parametrize("solver", ["dense", "sparse"])
def test_weights_are_those_of_the_edges(solver):
    """A path whose middle edge is walked a hundredth as often: the first eigenvector is a step there."""
    edges = path(20)
    weights = torch.where(edges.sum(0) == 19, 0.01, 1.0)
    values, vectors = laplacian_eigenvectors(edges, 20, 2, weights=weights, solver=solver)
    laplacian = torch.zeros(20, 20, dtype=torch.float64)
    laplacian[edges[0], edges[1]] = -weights.double()
    laplacian -= torch.diag(laplacian.sum(1))
    torch.testing.assert_close(laplacian @ vectors, vectors * values, atol=1e-8, rtol=0)
    step = vectors[:, 0].abs()
    assert vectors[9, 0] * vectors[10, 0] < 0 and step.min() > 0.9


def test_small_graphs_have_fewer():
    values, vectors = laplacian_eigenvectors(path(3), 5, 4)
    assert values.isinf().tolist() == [False, False, True, True]
    assert vectors[:, 2:].abs().sum() == 0
    values, vectors = laplacian_eigenvectors(torch.empty(2, 0, dtype=torch.int64), 5, 2)
    assert values.isinf().all() and vectors.abs().sum() == 0


def test_refuses_an_unknown_solver():
    with pytest.raises(ValueError, match="solver must be 'auto', 'dense' or 'sparse', got 'fast'"):
        laplacian_eigenvectors(path(3), 3, 1, solver="fast")
