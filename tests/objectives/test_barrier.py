"""The automatic barrier: its estimate against the exact spectrum, collapse and recovery, and what is saved."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from torchrl_dceo.objectives import ALLOLoss, GeneralizedLaplacianLoss, GraphDrawingLoss
from torchrl_dceo.objectives._representation import AutomaticBarrier


def corridor(n):
    """A walk on a path that stays put at its ends."""
    s = torch.arange(n)
    return s.repeat(2), torch.cat([(s - 1).clamp_min(0), (s + 1).clamp_max(n - 1)])


def cycle(n):
    s = torch.arange(n)
    return s.repeat(2), torch.cat([(s - 1) % n, (s + 1) % n])


def rooms(count, side):
    """Square rooms in a row, with one-cell doors: as many small eigenvalues as rooms, then a wide gap."""
    height, width = side, count * (side + 1) - 1
    cells = [
        (r, c)
        for r in range(height)
        for c in range(width)
        if (c + 1) % (side + 1) or r == side // 2
    ]
    index = {cell: i for i, cell in enumerate(cells)}
    pairs = [
        (i, index.get((r + dr, c + dc), i))
        for (r, c), i in index.items()
        for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0))
    ]
    states, successors = torch.tensor(pairs).T
    return states, successors


def spectrum(graph, d):
    states, successors = graph
    n = int(states.max()) + 1
    P = torch.zeros(n, n, dtype=torch.float64)
    P.index_put_((states, successors), torch.ones(len(states)).double(), accumulate=True)
    P /= P.sum(1, keepdim=True)
    values, vectors = torch.linalg.eigh(torch.eye(n).double() - (P + P.T) / 2)
    return values[:d], vectors[:, :d] * math.sqrt(n)


def make_table(num_states, d, std=0.3):
    table = nn.Embedding(num_states, d, dtype=torch.float64)
    nn.init.normal_(table.weight, std=std)
    # One sign in f_1: the kink of the log norms holds the signs of single states.
    table.weight.data[:, 0] += 0.7
    return TensorDictModule(table, in_keys=["state"], out_keys=["f"])


def make_batch(graph, copies=1):
    states, successors = (entry.repeat(copies) for entry in graph)
    return TensorDict({"state": states, "next": {"state": successors}}, [len(states)])


def train(loss, batch, steps, lr=0.03):
    optimizer = torch.optim.Adam(loss.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.03, steps)
    for _ in range(steps):
        out = loss(batch)
        out["loss_laplacian"].backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if isinstance(loss, ALLOLoss):
            loss.dual_step()
    return out


def span(f, vectors):
    """Cosine of the largest principal angle."""
    bases = torch.linalg.qr(f)[0], torch.linalg.qr(vectors)[0]
    return torch.linalg.svdvals(bases[0].T @ bases[1]).min()


OBJECTIVES = {
    "graph_drawing": GraphDrawingLoss,
    "generalized": GeneralizedLaplacianLoss,
    "log1p": lambda encoder: GeneralizedLaplacianLoss(encoder, norm="log1p"),
    "allo": lambda encoder: ALLOLoss(encoder, dual_step_size=0.05),
}
# The one-step λ_d of each: from 0.005 to 1.5.
TABLES = {
    "long corridor": (corridor(31), 2),  # 0.005
    "corridor": (corridor(20), 4),  # 0.11
    "rooms and one more": (rooms(3, 3), 4),  # 0.2
    "cycle": (cycle(12), 5),  # 0.5
    "small cycle": (cycle(6), 5),  # 1.5
}


def test_the_tables_span_the_range():
    last = [float(spectrum(*table)[0][-1]) for table in TABLES.values()]
    assert last[0] < 0.006 and last[-1] == pytest.approx(1.5) and last == sorted(last)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_dimension_collapses_whatever_the_spectrum(objective, table):
    torch.manual_seed(0)
    graph, d = TABLES[table]
    values, vectors = spectrum(graph, d)
    encoder = make_table(len(vectors), d)
    loss = OBJECTIVES[objective](encoder)
    out = train(loss, make_batch(graph, 20), 1500)
    f = encoder.module.weight.detach()
    moments = torch.linalg.eigvalsh(f.T @ f / len(f))
    assert not loss.automatic_barrier.collapsed.any() and out["collapsed"] == 0
    assert moments[0] > 0.02 * moments[-1]
    assert span(f, vectors) > 0.95
    # The estimate is that of the last eigenvalue: neither a fallback nor far from it.
    estimate = loss.automatic_barrier.value / loss.automatic_barrier.factor
    assert 0.8 * values[-1] < estimate < 1.3 * values[-1] + 1e-3


def test_a_number_that_is_too_small_does_collapse_there():
    """What the automatic barrier is for: the same run with the barrier that suits another table."""
    torch.manual_seed(0)
    graph, d = TABLES["cycle"]
    encoder = make_table(12, d)
    train(GeneralizedLaplacianLoss(encoder, barrier=0.1), make_batch(graph, 20), 1500)
    f = encoder.module.weight.detach()
    assert torch.linalg.eigvalsh(f.T @ f / len(f))[0] < 1e-3


def test_the_estimate_is_the_largest_rayleigh_quotient_in_any_rotation():
    graph, d = TABLES["rooms and one more"]
    values, vectors = spectrum(graph, d)
    rotation = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0]
    mixed = vectors @ rotation * torch.tensor([1.0, 0.8, 1.2, 0.7])
    barrier = AutomaticBarrier(3.0)
    for _ in range(5):
        barrier.update(mixed[graph[0]], mixed[graph[1]])
    torch.testing.assert_close(barrier.value.double(), 3 * values[-1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_collapsed_dimension_is_counted_named_and_recovers(objective, caplog):
    torch.manual_seed(0)
    graph, d = TABLES["rooms and one more"]
    _, vectors = spectrum(graph, d)
    encoder = make_table(len(vectors), d)
    batch = make_batch(graph, 20)
    loss = OBJECTIVES[objective](encoder)
    # A rate at which only the present counts, and steps of size 0: nothing moves yet.
    loss.automatic_barrier.rate = 1.0
    encoder.module.weight.data[:, 3] = 1e-4 * torch.randn(len(vectors))
    with caplog.at_level(logging.INFO, logger="torchrl_dceo"):
        with torch.enable_grad():
            for _ in range(500):
                out = loss(batch)
        assert out["collapsed"] == 1 and loss.automatic_barrier.collapsed.tolist() == [0, 0, 0, 1]
        assert out["barrier"] == 2 * loss.automatic_barrier.factor
        assert "dimensions [4] of the Laplacian representation have collapsed" in caplog.text
        train(loss, batch, 1000)
        assert "have recovered" in caplog.text
    assert span(encoder.module.weight.detach(), vectors) > 0.95


def test_duplicates_count_as_collapsed():
    f = torch.randn(64, 3)
    barrier = AutomaticBarrier(1.0)
    barrier.update(torch.cat([f, f[:, :1] - 2 * f[:, 1:2]], 1), torch.randn(64, 4))
    assert barrier.collapsed.tolist() == [False, False, False, True]


@pytest.mark.parametrize("f", [torch.zeros(8, 3), torch.full((8, 3), float("nan"))])
def test_degenerate_outputs_leave_a_finite_barrier(f):
    barrier = AutomaticBarrier(1.0)
    barrier.update(f, f)
    assert barrier.value == 2.0 and barrier.collapsed.all()


def test_evaluation_does_not_move_it():
    graph, d = TABLES["corridor"]
    loss = GeneralizedLaplacianLoss(make_table(20, d))
    with torch.no_grad():
        loss(make_batch(graph))
    assert loss.automatic_barrier.weight == 0
    loss(make_batch(graph))
    assert loss.automatic_barrier.weight > 0


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_save_and_load_midway_goes_on_identically(objective):
    graph, d = TABLES["corridor"]
    batch = make_batch(graph, 2)
    first = OBJECTIVES[objective](make_table(20, d))
    train(first, batch, 20)
    second = OBJECTIVES[objective](make_table(20, d))
    second.load_state_dict(first.state_dict())
    assert second.automatic_barrier.moments.shape == (d, d)
    for _ in range(5):
        a, b = first(batch), second(batch)
        assert torch.equal(a["loss_laplacian"], b["loss_laplacian"])
        assert torch.equal(a["barrier"], b["barrier"])


@pytest.mark.parametrize("objective", ["generalized", "allo"])
def test_a_number_takes_its_place(objective):
    graph, d = TABLES["corridor"]
    loss = OBJECTIVES[objective](make_table(20, d))
    loss(make_batch(graph))
    loss.barrier = 3.0
    out = loss(make_batch(graph))
    assert loss.automatic_barrier is None and float(loss.barrier) == 3.0
    assert "barrier" not in out.keys() and "collapsed" not in out.keys()


@pytest.mark.parametrize("kind", [GraphDrawingLoss, GeneralizedLaplacianLoss, ALLOLoss])
def test_another_word_is_refused(kind):
    with pytest.raises(ValueError, match="barrier must be 'auto' or a positive number, got 'safe'"):
        kind(make_table(4, 2), barrier="safe")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_under_compile(objective):
    torch._dynamo.reset()  # what other tests compiled guards the same code
    graph, d = TABLES["corridor"]
    encoder, batch = make_table(20, d), make_batch(graph)
    plain, compiled = OBJECTIVES[objective](encoder), OBJECTIVES[objective](encoder)
    step = torch.compile(lambda td: compiled(td)["loss_laplacian"], backend="eager")
    for _ in range(3):
        torch.testing.assert_close(step(batch.copy()), plain(batch.copy())["loss_laplacian"])
    torch.testing.assert_close(compiled.automatic_barrier.value, plain.automatic_barrier.value)
