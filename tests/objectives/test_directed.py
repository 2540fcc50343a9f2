"""Walks that cannot be walked back: which operator every objective finds, against its exact form."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from torchrl_dceo.analysis import exact_eigenfunctions
from torchrl_dceo.analysis.spectra.exact import pair_eigenfunctions
from torchrl_dceo.objectives import ALLOLoss, GeneralizedLaplacianLoss, GraphDrawingLoss, OMMLoss

STATES, D = 7, 4
OBJECTIVES = {
    "graph_drawing": GraphDrawingLoss,
    "generalized": GeneralizedLaplacianLoss,
    "allo": lambda encoder: ALLOLoss(encoder, dual_step_size=0.05),
    "omm": OMMLoss,
    "omm_joint": lambda encoder: OMMLoss(encoder, nesting="joint"),
}


def windy_pairs():
    """A ring with wind and a one-way door, as counts of pairs, from which the visits follow: they are stationary."""
    counts = torch.zeros(STATES, STATES, dtype=torch.int64)
    for s in range(STATES):
        counts[s, s] += 1 + 15 * (s % 3)
        counts[s, (s + 1) % STATES] += 6  # with the wind
        counts[s, (s - 1) % STATES] += 1  # against it
    # A closed round through the door, so that as many come into a state as leave it.
    for s, t in ((0, 3), (3, 1), (1, 0)):
        counts[s, t] += 4
    return counts


def leaky_pairs():
    """The same without the way back: more leave state 0 than come into it."""
    counts = windy_pairs()
    counts[0, 3] += 9
    return counts


def as_pairs(counts):
    states, successors = counts.nonzero().T
    times = counts[states, successors]
    return states.repeat_interleave(times), successors.repeat_interleave(times)


def learn(objective, states, successors):
    torch.manual_seed(1)
    table = nn.Embedding(STATES, D, dtype=torch.float64)
    nn.init.normal_(table.weight, std=0.5)
    encoder = TensorDictModule(table, in_keys=["state"], out_keys=["f"])
    loss = OBJECTIVES[objective](encoder)
    # Copies of every pair: "pairs" leaves out u = v.
    states, successors = states.repeat(20), successors.repeat(20)
    batch = TensorDict({"state": states, "next": {"state": successors}}, [len(states)])
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, 2000)
    for _ in range(2000):
        loss(batch)["loss_laplacian"].backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if isinstance(loss, ALLOLoss):
            loss.dual_step()
    return table.weight.detach()


def cosines(f, exact, rho):
    root = rho.sqrt().unsqueeze(-1)
    return nn.functional.cosine_similarity(f * root, exact * root, dim=0).abs()


def span(f, exact, rho):
    root = rho.sqrt().unsqueeze(-1)
    product = torch.linalg.qr(f * root)[0].T @ torch.linalg.qr(exact * root)[0]
    return torch.linalg.svdvals(product).min()


def test_the_walk_is_stationary_and_not_reversible():
    counts = windy_pairs()
    assert torch.equal(counts.sum(0), counts.sum(1)) and not torch.equal(counts, counts.T)
    assert not torch.equal(leaky_pairs().sum(0), leaky_pairs().sum(1))


def test_the_two_exact_forms_agree_where_visits_are_stationary():
    counts = windy_pairs().double()
    rho = counts.sum(1)
    values, functions = exact_eigenfunctions(counts / rho[:, None], D, rho=rho)
    spectrum = pair_eigenfunctions(*as_pairs(windy_pairs()), STATES, D)
    torch.testing.assert_close(values, spectrum.eigenvalues, rtol=0, atol=1e-12)
    assert cosines(functions, spectrum.eigenfunctions, rho).min() > 1 - 1e-9
    # Where they are not, the pairs' own form differs: ½(D + D') takes the place of D on the left.
    counts = leaky_pairs().double()
    rho = counts.sum(1)
    values, _ = exact_eigenfunctions(counts / rho[:, None], D, rho=rho)
    spectrum = pair_eigenfunctions(*as_pairs(leaky_pairs()), STATES, D)
    assert (values - spectrum.eigenvalues).abs().max() > 1e-2
    D_out, D_in = counts.sum(1) / counts.sum(), counts.sum(0) / counts.sum()
    W = (counts + counts.T) / 2 / counts.sum()
    left = torch.diag((D_out + D_in) / 2) - W
    residual = left @ spectrum.eigenfunctions - D_out[:, None] * (
        spectrum.eigenfunctions * spectrum.eigenvalues
    )
    assert residual.abs().max() < 1e-12


@pytest.mark.parametrize("data", [windy_pairs, leaky_pairs])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_finds_the_symmetrised_operator_of_its_pairs(objective, data):
    """(½(D + D') - (DP + PᵀD)/2) f = λ D f; D' = D where visits are stationary."""
    pairs = as_pairs(data())
    f = learn(objective, *pairs)
    spectrum = pair_eigenfunctions(*pairs, STATES, D)
    assert span(f, spectrum.eigenfunctions, spectrum.rho) > 0.995
    if objective != "graph_drawing":
        assert cosines(f, spectrum.eigenfunctions, spectrum.rho).min() > 0.99
    # It is not the operator of the walk alone, (I - P) f = λ f, nor that of uniform weights.
    counts = data().double()
    P = counts / counts.sum(1, keepdim=True)
    _, uniform = exact_eigenfunctions(P, D)
    assert span(f, uniform, torch.ones(STATES).double()) < 0.98
