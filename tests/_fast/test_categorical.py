"""The projection of C51, on distributions made by hand and against a loop."""

from __future__ import annotations

import pytest
import torch

from torchrl_dceo._fast.losses import cross_entropy, project, taken_distribution

SUPPORT = torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64)


def point(*mass: float) -> torch.Tensor:
    return torch.tensor(mass, dtype=torch.float64)


@pytest.mark.parametrize(
    ("probabilities", "returns", "expected"),
    [
        # Nothing moves: the identity, atoms on atoms.
        ((0.1, 0.2, 0.3, 0.4), (-1, 0, 1, 2), (0.1, 0.2, 0.3, 0.4)),
        # All mass on one return: on an atom, between two, at both ends, beyond both.
        ((0.1, 0.2, 0.3, 0.4), (1, 1, 1, 1), (0, 0, 1, 0)),
        ((0.1, 0.2, 0.3, 0.4), (0.25, 0.25, 0.25, 0.25), (0, 0.75, 0.25, 0)),
        ((1, 0, 0, 0), (-1, 9, 9, 9), (1, 0, 0, 0)),
        ((0, 0, 0, 1), (9, 9, 9, 2), (0, 0, 0, 1)),
        ((0.5, 0, 0, 0.5), (-7, 0, 0, 7), (0.5, 0, 0, 0.5)),
        # r = 0.5, γ = 0.5 over a uniform distribution: atoms at 0, 0.5, 1, 1.5.
        ((0.25,) * 4, (0, 0.5, 1, 1.5), (0, 0.375, 0.5, 0.125)),
    ],
)
def test_projection_of_distributions_made_by_hand(probabilities, returns, expected):
    projected = project(point(*probabilities), point(*returns), SUPPORT)
    torch.testing.assert_close(projected, point(*expected))


def slow_projection(probabilities, returns, support):
    """Bellemare et al. (2017), Eq. 7, as it is written: a sum over all pairs of atoms."""
    spacing = support[1] - support[0]
    out = torch.zeros_like(probabilities)
    for i, atom in enumerate(support):
        for j in range(len(support)):
            moved = min(max(float(returns[j]), float(support[0])), float(support[-1]))
            out[i] += max(0.0, 1 - abs(moved - float(atom)) / float(spacing)) * probabilities[j]
    return out


def test_projection_equals_the_published_sum_for_any_batch_shape():
    torch.manual_seed(0)
    support = torch.linspace(-10, 10, 51, dtype=torch.float64)
    probabilities = torch.rand(2, 3, 51, dtype=torch.float64)
    probabilities /= probabilities.sum(-1, keepdim=True)
    returns = torch.randn(2, 3, 1, dtype=torch.float64) * 6 + 0.97 * support
    projected = project(probabilities, returns, support)
    for i in range(2):
        for j in range(3):
            expected = slow_projection(probabilities[i, j], returns[i, j], support)
            torch.testing.assert_close(projected[i, j], expected)
    torch.testing.assert_close(projected.sum(-1), torch.ones(2, 3, dtype=torch.float64))


def test_projection_keeps_mass_and_mean_within_the_support_in_single_precision():
    torch.manual_seed(1)
    support = torch.linspace(-10, 10, 51)
    probabilities = torch.rand(200, 51).softmax(-1)
    returns = torch.rand(200, 1) * 8 - 4 + 0.5 * support
    projected = project(probabilities, returns, support)
    assert (projected >= 0).all()
    torch.testing.assert_close(projected.sum(-1), torch.ones(200))
    mean = (probabilities * returns).sum(-1)
    torch.testing.assert_close(projected @ support, mean, atol=2e-5, rtol=0)


def test_cross_entropy_is_smallest_at_the_target():
    target = torch.tensor([0.2, 0.5, 0.3])
    best = cross_entropy(target, target.log())
    assert best == pytest.approx(float(torch.distributions.Categorical(target).entropy()))
    for other in ([0.3, 0.4, 0.3], [0.2, 0.2, 0.6]):
        assert cross_entropy(target, torch.tensor(other).log()) > best


def test_taken_distribution_picks_the_action_of_each_row():
    distributions = torch.rand(
        4, 3, 5, 2
    )  # four transitions, three options, five atoms, two actions
    action = torch.tensor([0, 1, 1, 0])
    taken = taken_distribution(distributions, action.unsqueeze(-1).expand(4, 3))
    for row in range(4):
        assert torch.equal(taken[row], distributions[row, :, :, action[row]])
