"""Rayleigh-Ritz: exactness, equal eigenvalues, identity over many solutions, uncertainty, folding, state, compile."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from walks import grid_graph

from torchrl_dceo.modules import RayleighRitz, RayleighRitzStep
from torchrl_dceo.modules.rayleigh_ritz import ritz


def exact(graph, d, rho=None):
    """Eigenpairs of the pairs of a graph under the weights of the states, all alike by default."""
    states, successors = graph
    n = int(states.max()) + 1
    rho = torch.ones(n).double() if rho is None else rho
    W = torch.zeros(n, n, dtype=torch.float64)
    W.index_put_((states, successors), rho[states] / 4, accumulate=True)
    W = (W + W.T) / 2 / rho.sum()
    root = (rho / rho.sum()).sqrt()
    L = (torch.diag(W.sum(1)) - W) / root / root[:, None]
    values, vectors = torch.linalg.eigh(L)
    return values[:d], vectors[:, :d] / root[:, None]


def matrices(f, graph, weight=None):
    f, g = f[graph[0]], f[graph[1]]
    weight = torch.ones(len(f)).double() if weight is None else weight
    weight = (weight / weight.sum())[:, None]
    return (f - g).T @ ((f - g) * weight) / 2, f.T @ (f * weight)


def cosines(a, b):
    return nn.functional.cosine_similarity(a, b, dim=0).abs()


@pytest.mark.parametrize("weighted", [False, True])
def test_exact_on_a_table(weighted):
    """Any invertible mixture of the eigenfunctions, given exact A and M, comes apart to 1e-8."""
    graph, d = grid_graph(4, 7), 6
    rho = torch.rand(28).double() + 0.2 if weighted else None
    values, functions = exact(graph, d, rho)
    mixed = functions @ torch.randn(d, d, dtype=torch.float64)
    A, M = matrices(mixed, graph, None if rho is None else rho[graph[0]])
    module = RayleighRitz(d).double()
    module.set_matrices(A, M)
    out = module(mixed)
    assert (module.eigenvalues - values).abs().max() < 1e-8
    sign = (out * functions).sum(0).sign()
    assert (out * sign - functions).abs().max() < 1e-8


def test_the_same_from_batches():
    graph, d = grid_graph(4, 7), 6
    values, functions = exact(graph, d)
    mixed = functions @ torch.randn(d, d, dtype=torch.float64)
    for rate in (None, 0.1):
        module = RayleighRitz(d, rate=rate).double()
        order = torch.randperm(len(graph[0]))
        if rate is None:  # batches of different sizes: every pair counts alike
            for part in (order[:10], order[10:70], order[70:]):
                module.update(mixed[graph[0][part]], mixed[graph[1][part]])
        else:
            for _ in range(3):
                module.update(mixed[graph[0]], mixed[graph[1]])
        module.solve()
        torch.testing.assert_close(module.eigenvalues, values, rtol=0, atol=1e-8)
        assert cosines(module(mixed), functions).min() > 1 - 1e-9


def test_running_averages_forget():
    module = RayleighRitz(1, rate=0.5)
    for value in (1.0, 3.0):
        f = torch.full((4, 1), value)
        module.update(f, -f)
    # Weights ¼ and ½ of A = 2 and 18, M = 1 and 9.
    torch.testing.assert_close(module.moments / module.weight, torch.tensor([[19 / 3]]).double())
    torch.testing.assert_close(module.smoothness / module.weight, torch.tensor([[38 / 3]]).double())
    module.reset()
    with pytest.raises(RuntimeError, match="needs pairs"):
        module.solve()


def test_equal_eigenvalues_are_kept_as_they_were():
    """A square: x and y share every eigenvalue. The first solution picks a basis, all others keep it."""
    graph, d = grid_graph(5, 5), 6
    values, functions = exact(graph, d)
    assert values[2] - values[1] < 1e-9
    module = RayleighRitz(d).double()
    first = None
    for _ in range(50):
        mixed = functions @ torch.randn(d, d, dtype=torch.float64)
        # The encoder changed altogether, but for the functions that are followed.
        if first is not None:
            module.rotation = torch.linalg.lstsq(mixed, first).solution
        module.set_matrices(*matrices(mixed, graph))
        out = module(mixed)
        moments = out.T @ out / 25
        torch.testing.assert_close(moments, torch.eye(d).double(), rtol=0, atol=1e-8)
        first = out if first is None else first
        torch.testing.assert_close(out, first, rtol=0, atol=1e-6)
    torch.testing.assert_close(module.eigenvalues, values, rtol=0, atol=1e-8)


@pytest.mark.parametrize("coupling", [0.0, 1e-3])
def test_functions_keep_their_places_when_eigenvalues_cross(coupling):
    """Two modes whose eigenvalues cross: places follow the modes, not the order of the eigenvalues."""
    module = RayleighRitz(3).double()
    before = torch.eye(3).double()
    for t in torch.linspace(0, 1, 201):
        A = torch.diag(torch.tensor([0.05, 0.1 + 0.1 * t, 0.2 - 0.1 * t], dtype=torch.float64))
        A[1, 2] = A[2, 1] = coupling
        module.set_matrices(A, torch.eye(3).double())
        now = module.rotation
        # Not by half a turn, and never by more than that into another's place.
        assert ((now * before).sum(0) > 0.75).all() or t == 0
        before = now
    assert (module.rotation.diagonal().abs() > 0.99).all()
    assert module.eigenvalues[1] > module.eigenvalues[2]
    module.set_matrices(A, torch.eye(3).double(), restart=True)
    assert (module.eigenvalues.diff() > 0).all()


def test_identity_over_a_thousand_solutions_on_a_drifting_encoder():
    """A rectangle whose sides stretch and shrink in turn: eigenvalues cross again and again, from noisy batches.

    With modes (kx, ky) of a torus-like product the true functions never change; the encoder is a drifting invertible
    mixture of them. Every place must follow its own mode to the end.
    """
    generator = torch.Generator().manual_seed(0)
    modes, samples = 5, 256
    names = torch.tensor([[0, 0], [1, 0], [0, 1], [2, 0], [0, 2]])
    module = RayleighRitz(modes, rate=0.2)
    mixture = torch.linalg.qr(torch.randn(modes, modes, generator=generator))[0]
    initial, crossings, previous = None, 0, None
    for t in range(-20, 1000):
        phase = math.cos(2 * math.pi * t / 250)
        stay = torch.tensor([0.9 + 0.03 * phase, 0.9 - 0.03 * phase])  # of a step in x and in y
        angles = 2 * math.pi * torch.rand(samples, 2, generator=generator)
        steps = torch.randn(samples, 2, generator=generator) * (2 * (1 - stay)).sqrt()

        def functions(x):
            return torch.stack([math.sqrt(2) * torch.cos((n * x).sum(-1)) for n in names[1:]], -1)

        one = torch.ones(samples, 1)
        f = torch.cat([one, functions(angles)], 1) @ mixture
        g = torch.cat([one, functions(angles + steps)], 1) @ mixture
        module.update(f, g)
        if t < 0:  # a first solution that means something
            continue
        module.solve()
        places = (mixture.double() @ module.rotation.double()).abs()  # [mode, place]
        order = places.argmax(0).tolist()
        initial = order if initial is None else initial
        assert order == initial and places.max(0).values.min() > 0.6, t
        rising = bool(module.eigenvalues[order.index(1)] > module.eigenvalues[order.index(2)])
        crossings += previous is not None and rising != previous
        previous = rising
        drift = 0.01 * torch.randn(modes, modes, generator=generator)
        mixture = mixture @ torch.matrix_exp(drift - drift.T)
    assert crossings >= 4  # or there was nothing to withstand


def test_the_constant_comes_first_wherever_an_early_solution_put_it():
    """An encoder that learns: at first its smoothest function is not the constant one, later it is."""
    module = RayleighRitz(3).double()
    identity = torch.eye(3).double()
    module.set_matrices(torch.diag(torch.tensor([0.3, 0.1, 0.2]).double()), identity)
    assert module.rotation.abs().argmax(0).tolist() == [1, 2, 0]
    # 0.15 has fallen below 0.2, but not to a third of it: it stays behind; 0 goes first.
    module.set_matrices(torch.diag(torch.tensor([0.0, 0.2, 0.15]).double()), identity)
    assert module.rotation.abs().argmax(0).tolist() == [0, 1, 2]
    torch.testing.assert_close(module.eigenvalues, torch.tensor([0.0, 0.2, 0.15]).double())
    module.set_matrices(torch.diag(torch.tensor([0.0, 0.2, 0.06]).double()), identity)
    assert module.rotation.abs().argmax(0).tolist() == [0, 2, 1]
    stubborn = RayleighRitz(2, reorder=math.inf).double()
    for values in ([0.1, 0.2], [0.1, 0.001]):
        stubborn.set_matrices(torch.diag(torch.tensor(values).double()), identity[:2, :2])
    assert stubborn.rotation.abs().argmax(0).tolist() == [0, 1]


def test_what_is_within_the_errors_of_sampling_does_not_change_places():
    module = RayleighRitz(2, rate=None).double()
    module.set_matrices(torch.diag(torch.tensor([0.1, 0.2]).double()), torch.eye(2).double())
    f = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double() * math.sqrt(2)
    g = f + torch.tensor([[0.5, 0.0], [0.0, 0.05]]).double()
    module.update(f, g)  # two pairs: λ 0.125 and 0.00125, with errors larger than either
    assert 4 * module.standard_errors.sum() > 0.125
    module.solve()
    assert module.eigenvalues[0] > 3 * module.eigenvalues[1]
    assert module.rotation.abs().argmax(0).tolist() == [0, 1]


def test_sorting_by_eigenvalue_would_have_swapped_them():
    """What the test above guards against: a fresh solution at the end of a crossing exchanges two functions."""
    crossed = torch.diag(torch.tensor([0.2, 0.1], dtype=torch.float64))
    _, rotation = ritz(crossed, torch.eye(2).double())
    assert rotation.abs().argmax(0).tolist() == [1, 0]


def test_the_standard_error_is_the_spread_of_the_eigenvalues():
    """Over many independent data sets, each with its own solution."""
    graph, d = grid_graph(3, 4), 4
    _, functions = exact(graph, d)
    found, stated = [], []
    for seed in range(150):
        generator = torch.Generator().manual_seed(seed)
        module = RayleighRitz(d, rate=None).double()
        for half in range(2):
            drawn = torch.randint(len(graph[0]), (400,), generator=generator)
            module.update(functions[graph[0][drawn]], functions[graph[1][drawn]])
            if half == 0:
                module.solve()
        module.solve()
        found.append(module.eigenvalues.clone())
        stated.append(module.standard_errors)
    spread, stated = torch.stack(found).std(0)[1:], torch.stack(stated).mean(0)[1:]
    assert ((stated / spread) > 0.8).all() and ((stated / spread) < 1.25).all()


def test_a_missing_direction_comes_last():
    graph, d = grid_graph(3, 4), 3
    values, functions = exact(graph, d)
    module = RayleighRitz(4).double()
    f = torch.cat([functions, functions[:, :1] - functions[:, 1:2]], 1)
    for _ in range(3):
        module.set_matrices(*matrices(f, graph))
        torch.testing.assert_close(module.eigenvalues[:3], values, rtol=0, atol=1e-7)
        assert module.eigenvalues[3] == torch.inf and module(f)[:, 3].abs().max() == 0
        assert cosines(module(f)[:, :3], functions).min() > 1 - 1e-7


def test_folding_leaves_the_functions_as_they_are():
    graph, d = grid_graph(3, 5), 4
    net = nn.Sequential(nn.Linear(15, 16), nn.Tanh(), nn.Linear(16, d)).double()
    observations = torch.eye(15).double()
    module = RayleighRitz(d).double()
    f = net(observations).detach()
    module.update(f[graph[0]], f[graph[1]])
    module.solve()
    rotated = module(f)
    module.fold_(net[-1])
    torch.testing.assert_close(module(net(observations)), rotated)
    torch.testing.assert_close(net(observations), rotated)
    eigenvalues = module.eigenvalues.clone()
    module.solve()  # of what was counted before, in the new coordinates
    torch.testing.assert_close(module.rotation, torch.eye(d).double(), rtol=0, atol=1e-8)
    torch.testing.assert_close(module.eigenvalues, eigenvalues)
    with pytest.raises(ValueError, match="16 outputs, the representation 4 dimensions"):
        module.fold_(net[0])


def test_saved_and_restored():
    module, other = RayleighRitz(3), RayleighRitz(3)
    for _ in range(3):
        module.update(torch.randn(16, 3), torch.randn(16, 3))
        module.solve()
    other.load_state_dict(module.state_dict())
    f, g = torch.randn(2, 16, 3)
    for one in (module, other):
        one.update(f, g)
        one.solve()
    for key, value in module.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


def test_under_compile():
    module, plain = RayleighRitz(3), RayleighRitz(3)

    @torch.compile(backend="eager")
    def step(f, g):
        module.update(f, g)
        return module(f)

    for _ in range(3):
        f, g = torch.randn(2, 16, 3)
        plain.update(f, g)
        torch.testing.assert_close(step(f, g), plain(f))
        module.solve()
        plain.solve()
    torch.testing.assert_close(module.rotation, plain.rotation)
    assert (module.rotation - torch.eye(3)).abs().max() > 0.1


def test_step_counts_solves_and_writes():
    module = RayleighRitz(3)
    step = RayleighRitzStep(module, period=2, successor="successor")
    batch = TensorDict({"span": torch.randn(16, 3), "successor": {"span": torch.randn(16, 3)}}, 16)
    torch.testing.assert_close(step(batch)["representation"], batch["span"])
    assert module.solved == 0
    step(batch)
    assert module.solved == 1
    expected = module(batch["successor", "span"])
    torch.testing.assert_close(batch["successor", "representation"], expected)
    assert step.in_keys == ["span", ("successor", "span")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dimensions": 0}, "dimensions must be at least 1, got 0"),
        ({"dimensions": 2, "rate": 0.0}, r"rate must lie in \(0, 1\], or be None"),
        ({"dimensions": 2, "tolerance": 1.0}, r"tolerance must lie in \[0, 1\), got 1.0"),
        ({"dimensions": 2, "reorder": 1.0}, "reorder must be above 1, got 1.0"),
    ],
)
def test_bad_arguments(settings, message):
    with pytest.raises(ValueError, match=message):
        RayleighRitz(**settings)
    with pytest.raises(ValueError, match="period must be at least 1, got 0"):
        RayleighRitzStep(RayleighRitz(2), period=0)
