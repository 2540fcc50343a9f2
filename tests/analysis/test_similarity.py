from __future__ import annotations

import math

import pytest
import torch

from torchrl_dceo.analysis import cosine_similarity
from torchrl_dceo.analysis.spectra import cluster_similarity


def orthonormal(n, d, rho=None):
    """Columns that are orthonormal under rho."""
    weight = torch.full((n,), 1 / n, dtype=torch.float64) if rho is None else rho / rho.sum()
    q, _ = torch.linalg.qr(torch.randn(n, d, dtype=torch.float64))
    return q / weight.sqrt().unsqueeze(-1)


def test_equals_the_definition_weighted_by_rho():
    learned, exact = torch.randn(9, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    rho = torch.rand(9, dtype=torch.float64)
    result = cosine_similarity(learned, exact, rho=rho)
    for i in range(4):
        product = norm_learned = norm_exact = 0.0
        for s in range(9):
            product += rho[s] * learned[s, i] * exact[s, i]
            norm_learned += rho[s] * learned[s, i] ** 2
            norm_exact += rho[s] * exact[s, i] ** 2
        expected = abs(product) / math.sqrt(norm_learned * norm_exact)
        assert result.cosines[i].item() == pytest.approx(float(expected), abs=1e-12)
    assert result.mean.item() == pytest.approx(result.cosines.mean().item())
    assert not result.cosines.allclose(cosine_similarity(learned, exact).cosines)
    # Without eigenvalues every one is taken to be simple.
    assert result.subspace_cosines.equal(result.cosines)
    assert result.groups == ((0, 1), (1, 2), (2, 3), (3, 4))


def test_sign_and_scale_do_not_matter():
    exact = orthonormal(20, 5)
    scale = torch.tensor([1.0, -1.0, 3.0, -0.001, 1e6], dtype=torch.float64)
    result = cosine_similarity((exact * scale).float(), exact)
    assert result.cosines.min() > 1 - 1e-6


def test_a_rotated_pair_is_aligned_as_a_plane():
    rho = torch.rand(20, dtype=torch.float64) + 0.1
    exact = orthonormal(20, 4, rho)
    turn = torch.eye(4, dtype=torch.float64)
    angle = torch.tensor(0.7)
    turn[1:3, 1:3] = torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]])
    values = torch.tensor([0.0, 0.1, 0.1 + 1e-9, 0.2])
    result = cosine_similarity(exact @ turn, exact, values, rho=rho)
    expected = torch.tensor([1.0, math.cos(0.7), math.cos(0.7), 1.0], dtype=torch.float64)
    assert result.cosines.allclose(expected, atol=1e-6)
    assert result.subspace_cosines.allclose(torch.ones(4, dtype=torch.float64), atol=1e-9)
    assert result.subspace_mean.item() == pytest.approx(1.0)
    assert result.groups == ((0, 1), (1, 3), (3, 4))


def test_principal_angles_of_a_plane_that_is_half_wrong():
    exact = orthonormal(20, 3)
    angle = 0.4
    # One direction of the learned plane is right, the other leans out of it by the angle.
    leaning = math.cos(angle) * exact[:, 1] + math.sin(angle) * exact[:, 2]
    learned = torch.stack([exact[:, 0], leaning], dim=1)
    result = cosine_similarity(learned, exact[:, :2], torch.tensor([0.5, 0.5]))
    expected = (1 + math.cos(angle)) / 2
    assert result.subspace_cosines.tolist() == pytest.approx([expected] * 2)


def test_collapsed_functions_count_as_wrong():
    exact = orthonormal(20, 3)
    values = torch.tensor([0.0, 0.1, 0.1])
    twice = torch.stack([torch.zeros(20), exact[:, 1], exact[:, 1]], dim=1)
    result = cosine_similarity(twice, exact, values)
    assert result.cosines.tolist() == pytest.approx([0.0, 1.0, 0.0])
    # The two learned ones span a line of the plane only.
    assert result.subspace_cosines.tolist() == pytest.approx([0.0, 0.5, 0.5])


def test_tolerance_decides_what_is_one_group():
    exact = orthonormal(20, 3)
    values = torch.tensor([0.1, 0.101, 0.102])
    assert len(cosine_similarity(exact, exact, values).groups) == 3
    assert cosine_similarity(exact, exact, values, tolerance=0.0015).groups == ((0, 3),)


def test_no_gradient_is_kept():
    learned = torch.randn(6, 2, requires_grad=True)
    assert not cosine_similarity(learned, torch.randn(6, 2)).mean.requires_grad


def test_bad_input():
    exact = orthonormal(6, 3)
    with pytest.raises(ValueError, match=r"got \[6, 2\] and \[6, 3\]: compute as many exact ones"):
        cosine_similarity(exact[:, :2], exact)
    with pytest.raises(ValueError, match=r"got \[6, 3\] and \[6, 2\]"):
        cosine_similarity(exact, exact[:, :2])
    with pytest.raises(ValueError, match="rho must hold 6 weights"):
        cosine_similarity(exact, exact, rho=torch.ones(5))
    with pytest.raises(ValueError, match="rho must hold 6 weights, none negative"):
        cosine_similarity(exact, exact, rho=-torch.ones(6))
    with pytest.raises(ValueError, match=r"eigenvalues must have shape \[3\], got \[2\]"):
        cosine_similarity(exact, exact, torch.zeros(2))
    with pytest.raises(ValueError, match="eigenvalues must be ascending"):
        cosine_similarity(exact, exact, torch.tensor([0.0, 2.0, 1.0]))


# ------------------------------------------------------------------------------------------------------------ clusters
def basis(states=30, count=8, seed=0):
    draw = torch.randn(states, count, generator=torch.Generator().manual_seed(seed)).double()
    return torch.linalg.qr(draw)[0]


def rotated(columns, seed=1):
    size = columns.shape[1]
    draw = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double()
    return columns @ torch.linalg.qr(draw)[0]


VALUES = torch.tensor([0.0, 0.1, 0.20, 0.21, 0.5, 0.52, 0.54, 0.60], dtype=torch.float64)


def test_close_eigenvalues_are_compared_as_one_subspace():
    exact = basis()
    learned = exact[:, :4].clone()
    learned[:, 2:] = rotated(learned[:, 2:])
    result = cluster_similarity(learned, exact, VALUES)
    assert result.clusters == ((0, 1), (1, 2), (2, 4))
    assert result.scores.min() > 1 - 1e-9
    # The same rotation of functions that are far apart counts.
    learned = torch.cat([exact[:, :1], rotated(exact[:, 1:3], seed=2), exact[:, 3:4]], 1)
    assert cluster_similarity(learned, exact, VALUES).scores[1] < 0.9


def test_the_cut_may_go_through_a_cluster():
    """Any one function of the span of 0.5, 0.52 and 0.54 is as good a fifth as another; 0.6 is none of them."""
    exact = basis()
    fifth = rotated(exact[:, 4:7])[:, :1]
    result = cluster_similarity(torch.cat([exact[:, :4], fifth], 1), exact, VALUES)
    assert result.clusters[-1] == (4, 7) and result.scores[4] == pytest.approx(1)
    wrong = torch.cat([exact[:, :4], (exact[:, 4:5] + exact[:, 7:8]) / 2**0.5], 1)
    assert cluster_similarity(wrong, exact, VALUES).scores[4] == pytest.approx(0.5**0.5)


def test_a_cluster_beyond_the_cut_does_not_go_on_for_ever():
    """Within a tenth of the last one learned, not of each other: or a dense spectrum would be one subspace."""
    values = torch.cat([torch.zeros(1), 0.5 * 1.05 ** torch.arange(7)]).double()
    assert cluster_similarity(basis()[:, :2], basis(), values).clusters == ((0, 1), (1, 4))


def test_collapsed_and_repeated_functions_count_as_missing():
    exact = basis()
    learned = exact[:, :4].clone()
    learned[:, 3] = learned[:, 2]
    assert cluster_similarity(learned, exact, VALUES).scores[2:].tolist() == pytest.approx(
        [0.5] * 2
    )
    learned[:, 1] = 0
    assert cluster_similarity(learned, exact, VALUES).scores[1] == 0


def test_weights_of_the_states():
    exact, rho = basis(), torch.rand(30).double()
    weighted = exact / rho.sqrt().unsqueeze(-1)  # orthonormal under rho
    result = cluster_similarity(weighted[:, :4] * 3, weighted, VALUES, rho=rho)
    assert result.scores.min() > 1 - 1e-9


def test_fewer_exact_than_learned_are_refused():
    with pytest.raises(
        ValueError, match="at least as many exact functions and eigenvalues as the 8"
    ):
        cluster_similarity(basis(), basis()[:, :3], VALUES[:3])


def test_the_zeros_of_parts_that_no_path_joins_are_one_subspace():
    """Any mixture of the parts' constants is an eigenfunction of 0; rounding must not tell them apart."""
    exact = torch.eye(6, dtype=torch.float64)[:, :4]
    values = torch.tensor([-1e-17, 3e-17, 0.1, 0.3], dtype=torch.float64)
    turned = exact[:, :3].clone()
    turned[:2, :2] = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    result = cluster_similarity(turned, exact, values)
    assert result.clusters == ((0, 2), (2, 3))
    assert float(result.mean) == pytest.approx(1.0)
    # The cut at d may go through them.
    cut = cluster_similarity(turned[:, 1:2], exact, values)
    assert cut.clusters == ((0, 2),) and float(cut.mean) == pytest.approx(1.0)
