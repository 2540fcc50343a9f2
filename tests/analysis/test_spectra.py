from __future__ import annotations

import builtins
import math

import pytest
import torch

from torchrl_dceo.analysis import cosine_similarity, exact_eigenfunctions
from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
from torchrl_dceo.envs.grid.layouts import parse_layout
from torchrl_dceo.envs.grid.maps import maze, nine_rooms, nine_rooms_topology_switch, rooms


def path_functions(n, d):
    """cos(pi k (x + 1/2) / n), k = 0 .. d-1: the eigenfunctions of a walk on a path that stays at its ends."""
    x = torch.arange(n, dtype=torch.float64) + 0.5
    k = torch.arange(d, dtype=torch.float64)
    return torch.cos(math.pi * k * x.unsqueeze(-1) / n)


def path_values(n, d):
    return 1 - torch.cos(math.pi * torch.arange(d, dtype=torch.float64) / n)


def random_walk(n, seed=0):
    """A dense chain that is not reversible."""
    P = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 4
    return P / P.sum(1, keepdim=True)


@pytest.mark.parametrize("solver", ["dense", "sparse"])
def test_path(solver):
    # Of four moves in a corridor two go nowhere: half the eigenvalues of the walk on a path.
    env = GridWorldEnv("S" + "." * 29)
    values, functions = exact_eigenfunctions(env, 8, solver=solver)
    assert values.allclose(path_values(30, 8) / 2, atol=1e-10)
    assert cosine_similarity(functions, path_functions(30, 8)).cosines.min() > 1 - 1e-9


def test_maze_is_a_folded_path():
    env = GridWorldEnv(maze(), slip=0.15)
    layout = parse_layout(maze())
    values, functions = exact_eigenfunctions(env, 11)
    assert values.allclose(path_values(91, 11) / 2, atol=1e-10)
    along = layout.distances(layout.goals[0])  # the place of a cell along the corridor
    order = torch.tensor([along[cell] for cell in layout.cells])
    assert cosine_similarity(functions, path_functions(91, 11)[order]).cosines.min() > 1 - 1e-9


@pytest.mark.parametrize("solver", ["dense", "sparse"])
def test_cycle(solver):
    n, d = 24, 7
    P = torch.zeros(n, n, dtype=torch.float64)
    for s in range(n):
        P[s, (s + 1) % n] = P[s, (s - 1) % n] = 0.5
    values, functions = exact_eigenfunctions(P, d, solver=solver)
    k = torch.tensor([0, 1, 1, 2, 2, 3, 3])
    assert values.allclose(1 - torch.cos(2 * math.pi * k.double() / n), atol=1e-10)
    angle = 2 * math.pi * torch.arange(n, dtype=torch.float64).unsqueeze(-1) / n
    sines = torch.tensor([False, False, True, False, True, False, True])
    exact = torch.where(sines, torch.sin(k * angle), torch.cos(k * angle))
    result = cosine_similarity(functions, exact, values)
    # All but the first come in pairs: only their planes are determined.
    assert result.groups == ((0, 1), (1, 3), (3, 5), (5, 7))
    assert result.subspace_cosines.min() > 1 - 1e-9


@pytest.mark.parametrize("solver", ["dense", "sparse"])
def test_grid_is_the_product_of_two_paths(solver):
    height, width, d = 5, 8, 12
    text = "\n".join(["S" + "." * (width - 1)] + ["." * width] * (height - 1))
    values, functions = exact_eigenfunctions(GridWorldEnv(text), d, solver=solver)
    by_row, by_column = path_functions(height, height), path_functions(width, width)
    sums = (path_values(height, height)[:, None] + path_values(width, width)) / 2
    order = sums.flatten().argsort()[:d]
    assert values.allclose(sums.flatten()[order], atol=1e-10)
    products = torch.einsum("ri,cj->rcij", by_row, by_column).reshape(height * width, -1)
    result = cosine_similarity(functions, products[:, order], values)
    assert len(result.groups) == d  # 5 and 8 share no eigenvalue: all are simple
    assert result.cosines.min() > 1 - 1e-9


@pytest.mark.parametrize("solver", ["dense", "sparse"])
def test_solves_its_equation_for_any_chain_and_rho(solver):
    n, d = 40, 6
    P = random_walk(n)
    rho = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.05
    values, functions = exact_eigenfunctions(P, d, 7 * rho, solver=solver)  # any scale
    D = torch.diag(rho / rho.sum())
    left = (D - (D @ P + P.T @ D) / 2) @ functions
    assert left.allclose(D @ functions * values, atol=1e-10)
    assert (functions.T @ D @ functions).allclose(torch.eye(d, dtype=torch.float64), atol=1e-10)
    # They are the smallest: all eigenvalues of the same problem, by an unsymmetric solver.
    every = torch.linalg.eigvals(torch.linalg.solve(D, D - (D @ P + P.T @ D) / 2)).real
    assert values.allclose(every.sort().values[:d], atol=1e-9)


def test_rho_changes_the_answer_and_the_stationary_one_keeps_the_constant():
    P = random_walk(12)
    stationary = torch.linalg.matrix_power(P, 500)[0]
    values, functions = exact_eigenfunctions(P, 3, stationary)
    assert values[0].abs() < 1e-10
    assert functions[:, 0].allclose(torch.ones(12, dtype=torch.float64))
    _, uniform = exact_eigenfunctions(P, 3)
    assert (functions[:, 1] - uniform[:, 1]).abs().max() > 0.01


def test_sparse_equals_dense_on_a_large_map():
    env = GridWorldEnv(rooms(5, 6, 5), observation="xy")
    dense_values, dense = exact_eigenfunctions(env, 9, solver="dense")
    sparse_values, sparse = exact_eigenfunctions(env, 9, solver="sparse")
    assert sparse_values.allclose(dense_values, atol=1e-10)
    result = cosine_similarity(sparse, dense, dense_values)
    assert result.subspace_cosines.min() > 1 - 1e-8
    automatic, _ = exact_eigenfunctions(GridWorldEnv(rooms(8, 8, 5), observation="xy"), 4)
    assert automatic.shape == (4,) and automatic[0].abs() < 1e-9  # 1712 states: the sparse solver


def test_normalised_ascending_and_of_a_fixed_sign():
    values, functions = exact_eigenfunctions(GridWorldEnv(nine_rooms()), 11)
    assert functions.shape == (237, 11) and functions.dtype == torch.float64
    assert functions.square().mean(0).allclose(torch.ones(11, dtype=torch.float64))
    assert (values.diff() > -1e-12).all() and values[0].abs() < 1e-12
    assert functions[:, 0].allclose(torch.ones(237, dtype=torch.float64))
    largest = functions.gather(0, functions.abs().argmax(0, keepdim=True))
    assert (largest > 0).all()


def test_states_without_weight_are_left_out():
    env = GridWorldEnv(nine_rooms_topology_switch(3)[1])
    layout = env.layout
    reached = layout.distances(layout.starts[0])
    rho = torch.tensor([float(cell in reached) for cell in layout.cells])
    values, functions = exact_eigenfunctions(env, 5, rho)
    assert not functions[rho == 0].any()
    assert values[0].abs() < 1e-12 and values[1] > 1e-4  # what is left is connected
    # The same as a map where all that cannot be reached is wall.
    rows = [
        "".join("." if (r, c) in reached else "#" for c in range(layout.width))
        for r in range(layout.height)
    ]
    r, c = layout.starts[0]
    rows[r] = rows[r][:c] + "S" + rows[r][c + 1 :]
    alone_values, alone = exact_eigenfunctions(GridWorldEnv("\n".join(rows)), 5)
    assert values.allclose(alone_values, atol=1e-12)
    assert cosine_similarity(functions[rho > 0], alone).cosines.min() > 1 - 1e-9


def test_each_connected_part_has_its_eigenvalue_zero():
    values, functions = exact_eigenfunctions(GridWorldEnv("S..#...."), 3)
    assert values[:2].abs().max() < 1e-12 and values[2] > 0.01
    for part in (functions[:3, :2], functions[3:, :2]):
        assert (part - part[0]).abs().max() < 1e-9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.eye(3), 4), r"d must lie in \[1, 3\].*got 4"),
        ((torch.eye(3), 0), r"d must lie in \[1, 3\].*got 0"),
        ((torch.eye(3), 3, torch.tensor([1.0, 0.0, 1.0])), r"d must lie in \[1, 2\].*got 3"),
        ((torch.ones(2, 3), 1), r"must be square, got shape \[2, 3\]"),
        ((torch.ones(2, 2), 1), "row 0 sums to 2"),
        ((torch.tensor([[1.5, -0.5], [0.0, 1.0]]), 1), "negative entry"),
        ((torch.eye(3), 1, torch.ones(2)), r"each of the 3 states, got shape \[2\]"),
        ((torch.eye(3), 1, torch.tensor([1.0, -1.0, 1.0])), "nowhere negative"),
        ((torch.eye(3), 1, torch.zeros(3)), "not all zero"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        exact_eigenfunctions(*arguments)


def test_unknown_solver():
    with pytest.raises(ValueError, match="solver must be 'auto', 'dense' or 'sparse', got 'qr'"):
        exact_eigenfunctions(torch.eye(3), 1, solver="qr")


def test_without_scipy_the_message_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without_scipy(name, *args, **kwargs):
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_scipy)
    env = GridWorldEnv(nine_rooms(3))
    exact_eigenfunctions(env, 3)  # the dense solver does without
    with pytest.raises(ImportError, match=r"torchrl-dceo\[analysis\]"):
        exact_eigenfunctions(env, 3, solver="sparse")
