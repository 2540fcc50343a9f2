"""Orbital minimization against slow references, closed forms and exact eigenfunctions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from walks import grid_graph, path_graph

from torchrl_dceo.objectives import OMMLoss

NESTINGS = ("sequential", "joint", "none")


def make_encoder(d, dtype=torch.float64):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, d)).to(dtype)
    return TensorDictModule(net, in_keys=["observation"], out_keys=["f"])


def make_observations(*batch, dtype=torch.float64):
    draw = torch.randn(2, *batch, 4, dtype=dtype)
    return TensorDict({"observation": draw[0], "next": {"observation": draw[1]}}, batch)


def make_table(num_states, d):
    table = nn.Embedding(num_states, d, dtype=torch.float64)
    nn.init.normal_(table.weight, std=0.3)
    return TensorDictModule(table, in_keys=["state"], out_keys=["f"])


def state_batch(states, successors):
    return TensorDict({"state": states, "next": {"state": successors}}, [len(states)])


def laplacian(graph):
    states, successors = graph
    n = int(states.max()) + 1
    P = torch.zeros(n, n, dtype=torch.float64)
    P.index_put_((states, successors), torch.ones(len(states)).double(), accumulate=True)
    P /= P.sum(1, keepdim=True)
    return torch.eye(n).double() - (P + P.T) / 2


def objective(f, L):
    """The closed form -tr((2I - M) F), all states alike."""
    n, d = f.shape
    M = f.T @ f / n
    F = f.T @ (torch.eye(n).double() - L / 2) @ f / n
    return -torch.trace((2 * torch.eye(d).double() - M) @ F)


def expected_gradient(f, L, nesting):
    """Of the closed form: one prefix, all prefixes, or for f_j the prefix 1..j alone."""
    d = f.shape[1]
    gradient = torch.zeros_like(f)
    for i in range(1, d + 1):
        leaf = f[:, :i].clone().requires_grad_()
        (one,) = torch.autograd.grad(objective(leaf, L), leaf)
        if nesting == "joint" or (nesting == "none" and i == d):
            gradient[:, :i] += one
        elif nesting == "sequential":
            gradient[:, i - 1] = one[:, -1]
    return gradient


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("d", [1, 2, 4])
def test_value_equals_the_double_loop(nesting, d):
    encoder, batch = make_encoder(d), make_observations(5)
    value = OMMLoss(encoder, nesting=nesting)(batch)["loss_laplacian"]
    f, g = encoder.module(batch["observation"]), encoder.module(batch["next", "observation"])

    def m(u, j, k):
        return f[u, j] * f[u, k]

    def operator(u, j, k):
        return f[u, j] * f[u, k] - (f[u, j] - g[u, j]) * (f[u, k] - g[u, k]) / 4

    prefixes = range(1, d + 1) if nesting == "joint" else [d]
    total = 0.0
    for i in prefixes:
        total -= 2 * sum(operator(u, j, j) for u in range(5) for j in range(i)) / 5
        for u, v in itertools.permutations(range(5), 2):
            total += sum(m(u, j, k) * operator(v, j, k) for j in range(i) for k in range(i)) / 20
    torch.testing.assert_close(value, total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("nesting", NESTINGS)
def test_unbiased_in_value_and_gradient(nesting):
    """The expectation over every batch of three independent transitions is the closed form."""
    graph, d = path_graph(3), 2
    L = laplacian(graph)
    encoder = make_table(3, d)
    loss = OMMLoss(encoder, nesting=nesting)
    mean = 0.0
    for drawn in itertools.product(range(6), repeat=3):
        drawn = torch.tensor(drawn)
        mean = mean + loss(state_batch(graph[0][drawn], graph[1][drawn]))["loss_laplacian"] / 6**3
    f = encoder.module.weight
    (gradient,) = torch.autograd.grad(mean, f)
    f = f.detach()
    closed_form = sum(objective(f[:, :i], L) for i in ((1, 2) if nesting == "joint" else (2,)))
    torch.testing.assert_close(mean.detach(), closed_form, rtol=1e-10, atol=1e-10)
    expected = expected_gradient(f, L, nesting)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)


def test_sequential_does_not_move_the_earlier_dimensions():
    """f_1 has the same gradient whatever comes after it."""
    graph = path_graph(5)
    gradients = []
    weight = torch.randn(5, 3, dtype=torch.float64)
    for d in (1, 3):
        encoder = make_table(5, d)
        encoder.module.weight.data = weight[:, :d].clone()
        OMMLoss(encoder)(state_batch(*graph))["loss_laplacian"].backward()
        gradients.append(encoder.module.weight.grad[:, 0])
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nesting", NESTINGS)
def test_eigenfunctions_are_stationary_with_the_predicted_value(nesting):
    L = laplacian(grid_graph(3, 5))
    values, vectors = torch.linalg.eigh(L)
    f = vectors[:, :4] * math.sqrt(15)
    assert expected_gradient(f, L, nesting).abs().max() < 1e-12
    torch.testing.assert_close(objective(f, L), -(1 - values[:4] / 2).sum())


@pytest.mark.parametrize(
    ("graph", "d"), [(path_graph(8), 4), (grid_graph(3, 7), 5)], ids=["path", "grid"]
)
@pytest.mark.parametrize("nesting", NESTINGS)
def test_recovers_the_eigenfunctions_unshrunk(nesting, graph, d):
    torch.manual_seed(0)
    _, vectors = torch.linalg.eigh(laplacian(graph))
    n = len(vectors)
    encoder = make_table(n, d)
    loss = OMMLoss(encoder, nesting=nesting)
    batch = state_batch(graph[0].repeat(50), graph[1].repeat(50))
    # The way out of a wrong rotation is as flat as two eigenvalues are close.
    steps = 5000 if nesting == "joint" else 1500
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, steps)
    for _ in range(steps):
        loss(batch)["loss_laplacian"].backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    f = encoder.module.weight.detach()
    cosines = nn.functional.cosine_similarity(f, vectors[:, :d], dim=0).abs()
    bases = torch.linalg.qr(f)[0].T @ vectors[:, :d]
    assert torch.linalg.svdvals(bases).min() > 0.999
    # "pairs" leaves out u = v, which shifts the optimum by one part in the number of transitions.
    identity = torch.eye(d, dtype=f.dtype)
    torch.testing.assert_close(f.T @ f / n, identity, rtol=0, atol=1e-2)
    if nesting == "none":
        assert cosines.min() < 0.95
    else:
        assert cosines.min() > 0.99


@pytest.mark.parametrize("nesting", NESTINGS)
def test_reductions_agree(nesting):
    encoder, batch = make_encoder(3), make_observations(2, 3)
    values = {
        reduction: OMMLoss(encoder, nesting=nesting, reduction=reduction)(batch)["loss_laplacian"]
        for reduction in ("mean", "sum", "none")
    }
    assert values["none"].shape == (2, 3) and values["none"].std() > 0
    torch.testing.assert_close(values["none"].mean(), values["mean"])
    torch.testing.assert_close(values["sum"], 6 * values["mean"])


def test_keys_outputs_and_written_representation():
    encoder, batch = make_encoder(3), make_observations(8)
    loss = OMMLoss(encoder)
    out = loss(batch)
    assert set(out.keys()) == {"loss_laplacian", "smoothness", "orthogonality"}
    assert not out["smoothness"].requires_grad and not out["orthogonality"].requires_grad
    f, g = encoder.module(batch["observation"]), encoder.module(batch["next", "observation"])
    torch.testing.assert_close(out["smoothness"], (f - g).square().sum(-1).mean().detach() / 2)
    torch.testing.assert_close(batch["next", "f"], g.detach())
    batch.rename_key_("next", "successor")
    loss.set_keys(successor="successor")
    torch.testing.assert_close(loss(batch)["loss_laplacian"], out["loss_laplacian"])


def test_another_nesting_is_refused():
    with pytest.raises(ValueError, match="nesting must be one of 'sequential', 'joint', 'none'"):
        OMMLoss(make_encoder(2), nesting="all")
