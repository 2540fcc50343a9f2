"""Graph drawing and the generalized Laplacian against slow references, closed forms and exact eigenfunctions."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from walks import grid_graph, path_graph

from torchrl_dceo.objectives.laplacian import GeneralizedLaplacianLoss, GraphDrawingLoss

LOSSES = [GraphDrawingLoss, GeneralizedLaplacianLoss]


# ---------------------------------------------------------------------------------------------------------- helpers
def make_encoder(d, dtype=torch.float64, in_features=4):
    net = nn.Sequential(nn.Linear(in_features, 8), nn.Tanh(), nn.Linear(8, d)).to(dtype)
    return TensorDictModule(net, in_keys=["observation"], out_keys=["f"])


def make_batch(*batch, dtype=torch.float64, in_features=4):
    draw = torch.randn(2, *batch, in_features, dtype=dtype)
    return TensorDict({"observation": draw[0], "next": {"observation": draw[1]}}, batch)


def make_table(num_states, d):
    """f as a table with one row a state."""
    table = nn.Embedding(num_states, d, dtype=torch.float64)
    return TensorDictModule(table, in_keys=["state"], out_keys=["f"])


def state_batch(states, successors):
    return TensorDict({"state": states, "next": {"state": successors}}, [len(states)])


def exact_eigenvectors(graph, d):
    states, successors = graph
    n = int(states.max()) + 1
    P = torch.zeros(n, n, dtype=torch.float64)
    P.index_put_(
        (states, successors), torch.ones(len(states), dtype=torch.float64), accumulate=True
    )
    P /= P.sum(1, keepdim=True)
    eigenvalues, vectors = torch.linalg.eigh(torch.eye(n, dtype=torch.float64) - (P + P.T) / 2)
    return eigenvalues[:d], vectors[:, :d] * math.sqrt(n)


def exact_batch(graph, estimator, copies=50):
    """A batch whose estimate is (nearly) the expectation over independent u and v."""
    states, successors = graph
    if estimator == "split":  # every u in the first half meets every v in the second
        n = len(states)
        return state_batch(
            torch.cat([states.repeat_interleave(n), states.repeat(n)]),
            torch.cat([successors.repeat_interleave(n), successors.repeat(n)]),
        )
    # "pairs" leaves out u = v, so many copies of each transition are close to independent draws.
    return state_batch(states.repeat(copies), successors.repeat(copies))


def minimise(loss, batch, steps=400):
    optimizer = torch.optim.LBFGS(
        loss.parameters(),
        max_iter=steps,
        history_size=50,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
    )

    def closure():
        optimizer.zero_grad()
        value = loss(batch)["loss_laplacian"]
        value.backward()
        return value

    optimizer.step(closure)


def cosines(f, vectors):
    return nn.functional.cosine_similarity(f, vectors, dim=0).abs()


def subspace_alignment(f, vectors):
    """Cosine of the largest principal angle between two spans."""
    bases = torch.linalg.qr(f)[0], torch.linalg.qr(vectors)[0]
    return torch.linalg.svdvals(bases[0].T @ bases[1]).min()


def coefficients_of(loss_class, d):
    return [1.0] * d if loss_class is GraphDrawingLoss else [float(d - i) for i in range(d)]


def reference_pair(fu, fv, c, norm):
    """The term of one pair, prefix by prefix, entry by entry."""
    d, total = len(c), 0.0
    for i in range(1, d + 1):
        weight = c[i - 1] - (c[i] if i < d else 0.0)
        if norm == "squared":
            for j in range(i):
                for k in range(i):
                    delta = 1.0 if j == k else 0.0
                    total = total + weight * (fu[j] * fu[k] - delta) * (fv[j] * fv[k] - delta)
        else:
            dot, u2, v2 = (
                sum(a[j] * b[j] for j in range(i)) for a, b in ((fu, fv), (fu, fu), (fv, fv))
            )
            total = total + weight * (
                dot**2 - torch.log(1 + torch.sqrt(u2)) - torch.log(1 + torch.sqrt(v2))
            )
    return total


def reference_loss(f, g, c, barrier, estimator, norm):
    size, d = f.shape
    smoothness = 0.0
    for u in range(size):
        for i in range(d):
            smoothness = smoothness + 0.5 * c[i] * (f[u, i] - g[u, i]) ** 2 / size
    if estimator == "pairs":
        pairs = [(u, v) for u in range(size) for v in range(size) if u != v]
    else:
        pairs = [(u, u + size // 2) for u in range(size // 2)]
    orthogonality = sum(reference_pair(f[u], f[v], c, norm) for u, v in pairs) / len(pairs)
    return smoothness + barrier * orthogonality, smoothness, orthogonality


# ------------------------------------------------------------------------------------------------ value and gradient
@pytest.mark.parametrize("loss_class", LOSSES)
@pytest.mark.parametrize("norm", ["squared", "log1p"])
@pytest.mark.parametrize("estimator", ["pairs", "split"])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_value_and_gradient_equal_the_double_loop(loss_class, norm, estimator, d):
    encoder, batch = make_encoder(d), make_batch(6)
    loss = loss_class(encoder, barrier=0.7, estimator=estimator, norm=norm)
    out = loss(batch)
    gradient = torch.autograd.grad(out["loss_laplacian"], list(encoder.parameters()))

    f, g = encoder.module(batch["observation"]), encoder.module(batch["next", "observation"])
    value, smoothness, orthogonality = reference_loss(
        f, g, coefficients_of(loss_class, d), 0.7, estimator, norm
    )
    expected = torch.autograd.grad(value, list(encoder.parameters()))
    torch.testing.assert_close(out["loss_laplacian"], value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out["smoothness"], smoothness.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out["orthogonality"], orthogonality.detach(), rtol=1e-9, atol=1e-9)
    for got, want in zip(gradient, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    assert not out["smoothness"].requires_grad and not out["orthogonality"].requires_grad


def test_own_coefficients():
    c = [3.0, 1.5, 1.5]
    encoder, batch = make_encoder(3), make_batch(5)
    out = GraphDrawingLoss(encoder, coefficients=torch.tensor(c), barrier=1.0)(batch)
    f, g = encoder.module(batch["observation"]), encoder.module(batch["next", "observation"])
    value, *_ = reference_loss(f, g, c, 1.0, "pairs", "squared")
    torch.testing.assert_close(out["loss_laplacian"], value, rtol=1e-9, atol=1e-9)


def test_single_precision_agrees_with_double():
    encoder, batch = make_encoder(5), make_batch(32)
    double = GeneralizedLaplacianLoss(encoder)(batch)["loss_laplacian"]
    single = GeneralizedLaplacianLoss(copy.deepcopy(encoder).float())(batch.float())[
        "loss_laplacian"
    ]
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------------------ unbiasedness
@pytest.mark.parametrize("loss_class", LOSSES)
@pytest.mark.parametrize(("estimator", "size"), [("pairs", 3), ("split", 4)])
def test_estimators_are_unbiased(loss_class, estimator, size):
    """The expectation over every possible batch of independent states is the closed form."""
    rho = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    d = 2
    encoder = make_table(3, d)
    loss = loss_class(encoder, estimator=estimator)
    mean = 0.0
    for states in itertools.product(range(3), repeat=size):
        states = torch.tensor(states)
        mean = mean + rho[states].prod() * loss(state_batch(states, states))["orthogonality"]
    f = encoder.module.weight.detach()
    error = (f.T @ (rho[:, None] * f) - torch.eye(d)).square()
    c = [*coefficients_of(loss_class, d), 0.0]
    closed_form = sum((c[i - 1] - c[i]) * error[:i, :i].sum() for i in range(1, d + 1))
    torch.testing.assert_close(mean, closed_form, rtol=1e-10, atol=1e-10)


def test_pairs_varies_far_less_than_split_at_the_optimum():
    """For orthonormal f the variances are 2σ²/(B(B-1)) and 2σ²/B: B - 1 times less."""
    encoder = TensorDictModule(nn.Identity(), in_keys=["observation"], out_keys=["f"])
    estimates = {"pairs": [], "split": []}
    for _ in range(200):
        batch = make_batch(16)  # normal: E f fᵀ = I
        for estimator, values in estimates.items():
            values.append(
                GeneralizedLaplacianLoss(encoder, estimator=estimator)(batch)["orthogonality"]
            )
    pairs, split = (torch.stack(values).var() for values in estimates.values())
    assert pairs < 0.2 * split


# ------------------------------------------------------------------------------------------------------ eigenvectors
GRAPHS = {"path": (path_graph(10), 5), "grid": (grid_graph(3, 7), 5)}


def test_the_test_graphs_have_known_simple_eigenvalues():
    eigenvalues, _ = exact_eigenvectors(GRAPHS["path"][0], 5)
    torch.testing.assert_close(
        eigenvalues, 1 - torch.cos(math.pi * torch.arange(5, dtype=torch.float64) / 10)
    )
    for graph, d in GRAPHS.values():
        assert exact_eigenvectors(graph, d + 1)[0].diff().min() > 0.03


@pytest.mark.parametrize(
    ("name", "estimator"), [("path", "pairs"), ("path", "split"), ("grid", "pairs")]
)
def test_generalized_laplacian_recovers_eigenvectors_in_order_with_the_predicted_shrinkage(
    name, estimator
):
    graph, d = GRAPHS[name]
    eigenvalues, vectors = exact_eigenvectors(graph, d)
    encoder = make_table(len(vectors), d)
    barrier = 2.0
    minimise(
        GeneralizedLaplacianLoss(encoder, barrier=barrier, estimator=estimator),
        exact_batch(graph, estimator),
    )
    f = encoder.module.weight.detach()
    assert cosines(f, vectors).min() > 0.99
    shrunk = 1 - eigenvalues / (2 * barrier)
    torch.testing.assert_close(f.square().mean(0), shrunk, rtol=0, atol=6e-3)
    assert (1 - shrunk).max() > 0.05  # so that no shrinkage would fail


def test_dimension_collapses_when_its_eigenvalue_exceeds_twice_the_barrier():
    graph, d = GRAPHS["path"]
    eigenvalues, _ = exact_eigenvectors(graph, d)  # 0, .05, .19, .41, .69
    barrier = 0.15
    encoder = make_table(10, d)
    minimise(GeneralizedLaplacianLoss(encoder, barrier=barrier), exact_batch(graph, "pairs", 200))
    second_moments = encoder.module.weight.detach().square().mean(0)
    assert second_moments[3:].max() < 1e-3
    torch.testing.assert_close(
        second_moments[:3], 1 - eigenvalues[:3] / (2 * barrier), rtol=0, atol=6e-3
    )


@pytest.mark.parametrize("name", ["path", "grid"])
def test_graph_drawing_recovers_only_the_span(name):
    graph, d = GRAPHS[name]
    _, vectors = exact_eigenvectors(graph, d)
    encoder = make_table(len(vectors), d)
    minimise(GraphDrawingLoss(encoder, barrier=2.0), exact_batch(graph, "pairs"))
    f = encoder.module.weight.detach()
    assert subspace_alignment(f, vectors) > 0.99
    assert cosines(f, vectors).mean() < 0.9


@pytest.mark.parametrize("estimator", ["pairs", "split"])
def test_log1p_recovers_directions_on_a_smaller_scale(estimator):
    graph, d = grid_graph(3, 7), 4
    if estimator == "split":
        graph, d = path_graph(6), 2
    _, vectors = exact_eigenvectors(graph, d)
    encoder = make_table(len(vectors), d)
    # The kink of log1p‖f‖ at 0 holds each state's sign, so start with one sign in f_1, as a network with a bias does.
    nn.init.normal_(encoder.module.weight, std=0.05)
    encoder.module.weight.data[:, 0] += 0.5
    loss = GeneralizedLaplacianLoss(encoder, barrier=0.5, norm="log1p", estimator=estimator)
    minimise(loss, exact_batch(graph, estimator))
    f = encoder.module.weight.detach()
    assert cosines(f, vectors).min() > 0.98
    assert f.square().mean(0).max() < 0.5


@pytest.mark.parametrize("estimator", ["pairs", "split"])
@pytest.mark.parametrize("loss_class", LOSSES)
def test_log1p_has_a_finite_gradient_at_zero(loss_class, estimator):
    encoder = make_table(4, 3)
    encoder.module.weight.data[:2] = (
        0  # two states at the origin, one with a first prefix of norm 0
    )
    encoder.module.weight.data[2, 0] = 0
    states = torch.arange(4)
    out = loss_class(encoder, norm="log1p", estimator=estimator)(
        state_batch(states, states.flip(0))
    )
    out["loss_laplacian"].backward()
    assert out["loss_laplacian"].isfinite()
    assert encoder.module.weight.grad.isfinite().all()
    assert encoder.module.weight.grad[3].abs().sum() > 0


def test_barrier_can_be_scheduled():
    loss, batch = GraphDrawingLoss(make_encoder(3)), make_batch(8)
    loss.barrier = 3.0
    out = loss(batch)
    torch.testing.assert_close(
        out["loss_laplacian"].detach(), out["smoothness"] + 3 * out["orthogonality"]
    )


# --------------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"barrier": 0.0}, "barrier must be positive and finite, got 0.0"),
        ({"barrier": -1.0}, "barrier must be positive and finite, got -1.0"),
        ({"barrier": float("nan")}, "barrier must be positive and finite, got nan"),
        ({"estimator": "all"}, "estimator must be one of 'pairs', 'split', got 'all'"),
        ({"norm": "l1"}, "norm must be one of 'squared', 'log1p', got 'l1'"),
        ({"reduction": "max"}, "reduction must be one of 'mean', 'sum', 'none', got 'max'"),
        ({"coefficients": [1.0, 2.0]}, r"must not increase, got \(1.0, 2.0\)"),
        (
            {"coefficients": [1.0, -1.0]},
            r"must be positive and must not increase, got \(1.0, -1.0\)",
        ),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        GraphDrawingLoss(make_encoder(2), **kwargs)


def test_coefficients_of_the_wrong_length():
    loss = GraphDrawingLoss(make_encoder(3), coefficients=[2.0, 1.0])
    with pytest.raises(ValueError, match="2 entries, but the encoder's output has 3 dimensions"):
        loss(make_batch(8))
