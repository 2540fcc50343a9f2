"""The augmented Lagrangian objective against slow references, closed forms and exact eigenpairs."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from walks import grid_graph, path_graph

from torchrl_dceo.objectives.allo import ALLOLoss


# ---------------------------------------------------------------------------------------------------------- helpers
def make_encoder(d, dtype=torch.float64):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, d)).to(dtype)
    return TensorDictModule(net, in_keys=["observation"], out_keys=["f"])


def make_batch(*batch, dtype=torch.float64):
    draw = torch.randn(2, *batch, 4, dtype=dtype)
    return TensorDict({"observation": draw[0], "next": {"observation": draw[1]}}, batch)


def make_table(num_states, d):
    table = nn.Embedding(num_states, d, dtype=torch.float64)
    nn.init.normal_(table.weight, std=0.5)
    return TensorDictModule(table, in_keys=["state"], out_keys=["f"])


def state_batch(states, successors, copies=1):
    states, successors = states.repeat(copies), successors.repeat(copies)
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


def train(loss, optimizer, batch, steps, final_rate=0.01):
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, final_rate, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(batch)["loss_laplacian"].backward()
        optimizer.step()
        loss.dual_step()
        schedule.step()


def reference_errors(f, estimator):
    """Errors and squared errors, entry by entry and pair by pair, with the gradient stopped in f_k."""
    size, d = f.shape
    g = f.detach()

    def A(u, j, k):
        return f[u, j] * g[u, k] - (1.0 if j == k else 0.0)

    if estimator == "pairs":
        pairs = [(u, v) for u in range(size) for v in range(size) if u != v]
    else:
        half = size // 2
        pairs = [(u, v) for u in range(half) for v in range(half, size)]
    errors, squares = torch.zeros(d, d, dtype=f.dtype), torch.zeros(d, d, dtype=f.dtype)
    for j in range(d):
        for k in range(j + 1):
            errors[j, k] = sum(A(u, j, k) for u in range(size)) / size
            squares[j, k] = sum(A(u, j, k) * A(v, j, k) for u, v in pairs) / len(pairs)
    return errors, squares


# ------------------------------------------------------------------------------------------------ value and gradient
@pytest.mark.parametrize("estimator", ["pairs", "split"])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_value_and_gradient_equal_the_double_loop(estimator, d):
    encoder, batch = make_encoder(d), make_batch(6)
    loss = ALLOLoss(encoder, barrier=2.5, estimator=estimator, dual_step_size=0.3)
    loss(batch)
    loss.duals.copy_(torch.randn(d, d).tril())
    out = loss(batch)
    gradient = torch.autograd.grad(out["loss_laplacian"], list(encoder.parameters()))

    f, g = encoder.module(batch["observation"]), encoder.module(batch["next", "observation"])
    smoothness = 0.5 * sum((f[u] - g[u]).pow(2).sum() for u in range(6)) / 6
    errors, squares = reference_errors(f, estimator)
    value = smoothness + (loss.duals * errors).sum() + 2.5 * squares.sum()
    expected = torch.autograd.grad(value, list(encoder.parameters()), retain_graph=True)
    torch.testing.assert_close(out["loss_laplacian"], value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out["smoothness"], smoothness.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out["orthogonality"], squares.sum().detach(), rtol=1e-9, atol=1e-9)
    for got, want in zip(gradient, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)

    duals = loss.duals.clone()
    loss.dual_step()
    torch.testing.assert_close(loss.duals, duals + 0.3 * errors.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(loss.squared_errors, squares.detach(), rtol=1e-9, atol=1e-9)
    growth = squares.detach().clamp_min(0).mean()
    torch.testing.assert_close(loss.barrier.double(), 2.5 + growth, rtol=1e-6, atol=1e-6)


def test_stopped_gradients_protect_the_earlier_dimensions():
    """Orthogonality of f_2 with f_1 moves f_2 alone."""
    encoder, batch = make_table(4, 2), state_batch(torch.arange(4), torch.arange(4))
    loss = ALLOLoss(encoder)
    loss(batch)
    loss.duals[1, 0] = 1.0
    loss(batch)["loss_laplacian"].backward()
    with_dual, encoder.module.weight.grad = encoder.module.weight.grad, None
    loss.duals[1, 0] = 0.0
    loss(batch)["loss_laplacian"].backward()
    change = (with_dual - encoder.module.weight.grad).abs().sum(0)
    assert change[0] == 0 and change[1] > 0.1


@pytest.mark.parametrize(("estimator", "size"), [("pairs", 3), ("split", 4)])
def test_squared_errors_are_unbiased(estimator, size):
    rho = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    encoder = make_table(3, 2)
    loss = ALLOLoss(encoder, estimator=estimator, squared_error_rate=1.0)
    orthogonality, matrix = 0.0, 0.0
    for states in itertools.product(range(3), repeat=size):
        states = torch.tensor(states)
        probability = rho[states].prod()
        orthogonality = (
            orthogonality + probability * loss(state_batch(states, states))["orthogonality"]
        )
        loss.dual_step()
        matrix = matrix + probability * loss.squared_errors
    f = encoder.module.weight.detach()
    closed_form = (f.T @ (rho[:, None] * f) - torch.eye(2)).tril().square()
    torch.testing.assert_close(matrix, closed_form, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(orthogonality, closed_form.sum(), rtol=1e-10, atol=1e-10)


# -------------------------------------------------------------------------------------------------------- eigenpairs
@pytest.mark.parametrize(
    ("graph", "estimator", "copies"),
    [
        # Two copies put the whole state space into each half: the split is then the exact expectation.
        (path_graph(6), "split", 2),
        (grid_graph(2, 5), "split", 2),
        # Pairs leave out u = v, so many copies of each transition are close to independent draws.
        (path_graph(6), "pairs", 200),
    ],
    ids=["path-split", "grid-split", "path-pairs"],
)
def test_recovers_eigenvectors_and_eigenvalues(graph, estimator, copies):
    d = 4
    eigenvalues, vectors = exact_eigenvectors(graph, d)
    encoder = make_table(len(vectors), d)
    loss = ALLOLoss(
        encoder, barrier=2.0, estimator=estimator, dual_step_size=0.2, barrier_step_size=0.1
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.05)
    train(loss, optimizer, state_batch(*graph, copies), 1000)
    f = encoder.module.weight.detach()
    assert nn.functional.cosine_similarity(f, vectors, dim=0).abs().min() > 0.99
    # No shrinkage, unlike a penalty with a finite barrier.
    torch.testing.assert_close(f.square().mean(0), torch.ones(d, dtype=f.dtype), rtol=0, atol=5e-3)
    assert loss.eigenvalues[0].abs() < 0.02 * eigenvalues[1]
    assert ((loss.eigenvalues - eigenvalues)[1:].abs() / eigenvalues[1:]).max() < 0.02


def test_save_and_load_midway_goes_on_identically(tmp_path):
    graph = path_graph(6)
    batch = state_batch(*graph, 2)

    def build():
        loss = ALLOLoss(make_table(6, 3), barrier=2.0, estimator="split", dual_step_size=0.2)
        return loss, torch.optim.Adam(loss.parameters(), lr=0.05)

    loss, optimizer = build()
    train(loss, optimizer, batch, 50)
    path = tmp_path / "loss.pt"
    torch.save({"loss": loss.state_dict(), "optimizer": optimizer.state_dict()}, path)
    train(loss, optimizer, batch, 50)

    resumed, resumed_optimizer = build()
    saved = torch.load(path, weights_only=True)
    resumed.load_state_dict(saved["loss"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    assert resumed.duals.abs().max() > 0 and resumed.barrier > 2 and resumed.num_dual_steps == 50
    assert resumed.duals.dtype == torch.float64
    train(resumed, resumed_optimizer, batch, 50)
    for key, value in loss.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key


# --------------------------------------------------------------------------------------------------------- dual step
def test_dual_step_needs_a_forward_pass_each_time():
    loss = ALLOLoss(make_encoder(3))
    with pytest.raises(RuntimeError, match="needs a forward pass"):
        loss.dual_step()
    loss(make_batch(8))
    loss.dual_step()
    with pytest.raises(RuntimeError, match="needs a forward pass"):
        loss.dual_step()


def test_evaluation_without_gradients_leaves_the_pending_errors_alone():
    encoder, batch = make_encoder(3), make_batch(8)
    duals = []
    for evaluate in (False, True):
        loss = ALLOLoss(encoder)
        loss(batch)
        if evaluate:
            with torch.no_grad():
                loss(make_batch(8))
        loss.dual_step()
        duals.append(loss.duals)
    assert torch.equal(*duals) and duals[0].abs().max() > 0


def test_duals_stay_lower_triangular_and_clamped():
    loss = ALLOLoss(make_encoder(3), dual_step_size=100.0, max_dual=0.5)
    loss(make_batch(8))
    loss.dual_step()
    assert torch.equal(loss.duals, loss.duals.tril())
    assert loss.duals.abs().max() == 0.5


def test_barrier_grows_up_to_its_maximum_and_can_be_fixed_or_set():
    batch = make_batch(8)
    for step_size, expected in ((0.0, 2.0), (1e6, 7.0)):
        loss = ALLOLoss(make_encoder(3), barrier=2.0, barrier_step_size=step_size, max_barrier=7.0)
        loss(batch)
        loss.dual_step()
        assert loss.barrier == expected
    loss.barrier = 3.0
    assert isinstance(loss.barrier, torch.Tensor) and loss.state_dict()["barrier"] == 3.0


def test_squared_errors_are_a_moving_average():
    encoder = make_encoder(2)
    loss = ALLOLoss(encoder, squared_error_rate=0.25)
    matrices = []
    for _ in range(2):
        batch = make_batch(6)
        loss(batch)
        loss.dual_step()
        matrices.append(reference_errors(encoder.module(batch["observation"]), "pairs")[1].detach())
    torch.testing.assert_close(loss.squared_errors, 0.75 * matrices[0] + 0.25 * matrices[1])


def test_eigenvalues_before_the_first_forward_pass():
    with pytest.raises(RuntimeError, match="after the first forward pass"):
        _ = ALLOLoss(make_encoder(3)).eigenvalues


# ---------------------------------------------------------------------------------------------- TorchRL's conventions
def test_duals_are_buffers_and_the_weights_are_the_encoders():
    encoder = make_encoder(3)
    loss = ALLOLoss(encoder)
    loss(make_batch(8))
    assert {id(p) for p in loss.parameters()} == {id(p) for p in encoder.parameters()}
    assert {"duals", "barrier", "squared_errors", "num_dual_steps"} <= set(loss.state_dict())


@pytest.mark.parametrize("estimator", ["pairs", "split"])
def test_reductions_agree(estimator):
    encoder, batch = make_encoder(3), make_batch(2, 3)
    values, gradients = {}, {}
    for reduction in ("mean", "sum", "none"):
        loss = ALLOLoss(encoder, estimator=estimator, reduction=reduction)
        loss(batch)
        loss.duals.copy_(torch.arange(9.0).reshape(3, 3).tril())
        values[reduction] = loss(batch)["loss_laplacian"]
        gradients[reduction] = torch.autograd.grad(
            values[reduction].mean(), encoder.module[0].weight
        )[0]
    assert values["none"].shape == (2, 3) and values["none"].std() > 0
    torch.testing.assert_close(values["none"].mean(), values["mean"])
    torch.testing.assert_close(values["sum"], 6 * values["mean"])
    torch.testing.assert_close(gradients["none"], gradients["mean"])


def test_dispatch_set_keys_and_written_representation():
    encoder, batch = make_encoder(3), make_batch(8)
    loss = ALLOLoss(encoder)
    expected = loss(batch)["loss_laplacian"]
    torch.testing.assert_close(batch["f"], encoder.module(batch["observation"]).detach())
    torch.testing.assert_close(
        batch["next", "f"], encoder.module(batch["next", "observation"]).detach()
    )
    value, _, _ = loss(batch["observation"], batch["next", "observation"])
    torch.testing.assert_close(value, expected)
    batch.rename_key_("next", "successor")
    loss.set_keys(successor="successor")
    torch.testing.assert_close(loss(batch)["loss_laplacian"], expected)


@pytest.mark.parametrize("estimator", ["pairs", "split"])
def test_nothing_is_made_on_the_wrong_device(estimator):
    """On the meta device any tensor left on the CPU raises."""
    loss = ALLOLoss(make_encoder(3).to("meta"), estimator=estimator).to("meta")
    assert loss(make_batch(8).to("meta"))["loss_laplacian"].device.type == "meta"
    loss.dual_step()
    assert loss.eigenvalues.device.type == "meta"


def test_single_precision():
    loss = ALLOLoss(make_encoder(3, torch.float32))
    assert loss(make_batch(8, dtype=torch.float32))["loss_laplacian"].dtype == torch.float32
    loss.dual_step()
    assert loss.duals.dtype == torch.float32


# --------------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"barrier": 0.0}, "barrier must be positive and finite, got 0.0"),
        ({"dual_step_size": -1.0}, "dual_step_size must be positive and finite, got -1.0"),
        ({"max_dual": 0.0}, "max_dual must be positive and finite, got 0.0"),
        ({"barrier_step_size": -0.1}, "barrier_step_size must not be negative, got -0.1"),
        (
            {"barrier": 3.0, "max_barrier": 2.0},
            "must not be below the initial barrier 3.0, got 2.0",
        ),
        ({"squared_error_rate": 1.5}, r"squared_error_rate must lie in \(0, 1\], got 1.5"),
        ({"estimator": "all"}, "estimator must be one of 'pairs', 'split', got 'all'"),
        ({"reduction": "max"}, "reduction must be one of 'mean', 'sum', 'none', got 'max'"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ALLOLoss(make_encoder(2), **kwargs)


def test_batches_that_do_not_fit():
    with pytest.raises(ValueError, match="an even batch of at least 2 states, got 5"):
        ALLOLoss(make_encoder(3), estimator="split")(make_batch(5))
    with pytest.raises(KeyError, match=r"reads \('successor', 'observation'\)"):
        ALLOLoss(make_encoder(3), successor="successor")(make_batch(4))
    loss = ALLOLoss(make_encoder(3))
    loss.load_state_dict(
        {**loss.state_dict(), "duals": torch.zeros(2, 2), "squared_errors": torch.zeros(2, 2)}
    )
    with pytest.raises(
        ValueError, match="duals are for 2 dimensions, but the encoder's output has 3"
    ):
        loss(make_batch(4))
