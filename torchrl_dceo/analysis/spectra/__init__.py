"""Similarity of learned and exact eigenfunctions."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "ClusterSimilarity",
    "Similarity",
    "cluster_similarity",
    "cosine_similarity",
    "span_alignment",
]


_ZERO = 1e-9  # eigenvalues below it are 0 up to rounding


class Similarity(NamedTuple):
    """The result of :func:`cosine_similarity`.

    Attributes:
        cosines (Tensor): |cosine| of each learned function with its exact one, ``[d]``.
        mean (Tensor): their mean.
        subspace_cosines (Tensor): the same for simple eigenvalues; if an eigenvalue repeats, every function of its
            group gets the mean cosine of the principal angles between the learned and the exact subspace, ``[d]``.
        subspace_mean (Tensor): their mean.
        groups (tuple): the groups of equal eigenvalues, as ``(first, last + 1)``.
    """

    cosines: Tensor
    mean: Tensor
    subspace_cosines: Tensor
    subspace_mean: Tensor
    groups: tuple[tuple[int, int], ...]


def cosine_similarity(
    learned: Tensor,
    exact: Tensor,
    eigenvalues: Tensor | None = None,
    *,
    rho: Tensor | None = None,
    tolerance: float = 1e-6,
) -> Similarity:
    r"""Compares learned with exact eigenfunctions, independent of their signs and scales.

    The inner product is :math:`\langle f, g \rangle = \sum_s \rho(s) f(s) g(s)`. The eigenfunctions of a repeated
    eigenvalue are only determined up to rotation: a single cosine is meaningless there, so their subspaces are
    compared too. A learned function that has collapsed to 0 has cosine 0.

    Args:
        learned (Tensor): one function per column, evaluated on all states, ``[S, d]``.
        exact (Tensor): the eigenfunctions from :func:`~torchrl_dceo.analysis.exact_eigenfunctions`, ``[S, d]``.
        eigenvalues (Tensor, optional): theirs, ascending, ``[d]``; needed to find the repeated ones. Default: all
            are assumed to be simple. Choose ``d`` so that it does not split a group: of a split group only a part
            is compared.

    Keyword Args:
        rho (Tensor, optional): the weight of each state, ``[S]``. Default: uniform.
        tolerance (float): neighbouring eigenvalues that differ by no more belong to one group. Default: 1e-6.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis import cosine_similarity, exact_eigenfunctions
        >>> from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
        >>> square = GridWorldEnv("S....\n.....\n.....\n.....\n.....")
        >>> values, exact = exact_eigenfunctions(square, d=3)  # the second repeats: x and y are alike
        >>> turned = torch.stack([exact[:, 1] + exact[:, 2], exact[:, 1] - exact[:, 2]], dim=1)
        >>> result = cosine_similarity(torch.cat([exact[:, :1], turned], dim=1), exact, values)
        >>> result.groups
        ((0, 1), (1, 3))
        >>> [[round(c, 2) for c in cosines.tolist()] for cosines in (result.cosines, result.subspace_cosines)]
        [[1.0, 0.71, 0.71], [1.0, 1.0, 1.0]]
    """
    if learned.ndim != 2 or learned.shape != exact.shape:
        raise ValueError(
            "learned and exact must both have shape [S, d], one function a column, got "
            f"{list(learned.shape)} and {list(exact.shape)}: compute as many exact ones as are learned"
        )
    num_states, d = exact.shape
    weight = exact.new_ones(num_states) if rho is None else rho.to(exact)
    if weight.shape != (num_states,) or not (weight >= 0).all() or weight.sum() <= 0:
        raise ValueError(
            f"rho must hold {num_states} weights, none negative and not all zero, got shape {list(weight.shape)}"
        )
    # With this factor the weighted inner product is the ordinary one.
    root = (weight / weight.sum()).sqrt().unsqueeze(-1).double()
    learned, exact = _unit(learned.detach().to(root) * root), _unit(exact.to(root) * root)
    cosines = (learned * exact).sum(0).abs()
    groups = _groups(d, eigenvalues, tolerance)
    subspaces = cosines.clone()
    for first, end in groups:
        if end - first > 1:
            subspaces[first:end] = _alignment(learned[:, first:end], exact[:, first:end])
    return Similarity(cosines, cosines.mean(), subspaces, subspaces.mean(), groups)


def span_alignment(learned: Tensor, exact: Tensor, *, rho: Tensor | None = None) -> float:
    """The mean cosine of the principal angles between the learned and the exact span, independent of rotation.

    Args:
        learned (Tensor): one function a column, ``[S, d]``.
        exact (Tensor): ``[S, d]``.

    Keyword Args:
        rho (Tensor, optional): the weight of each state, ``[S]``. Default: uniform.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.spectra import cosine_similarity, span_alignment
        >>> exact = torch.eye(4)[:, :2]
        >>> turned = exact @ torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> round(float(cosine_similarity(turned, exact).mean), 2), round(span_alignment(turned, exact), 2)
        (0.71, 1.0)
    """
    weight = exact.new_ones(exact.shape[0]) if rho is None else rho
    root = (weight / weight.sum()).sqrt().unsqueeze(-1).double()
    return float(_alignment(_unit(learned.detach().double() * root), _unit(exact.double() * root)))


def _unit(columns: Tensor) -> Tensor:
    norm = columns.norm(dim=0)
    return columns / norm.where(norm > 0, 1.0)


def _groups(d: int, eigenvalues: Tensor | None, tolerance: float) -> tuple[tuple[int, int], ...]:
    if eigenvalues is None:
        return tuple((i, i + 1) for i in range(d))
    if eigenvalues.shape != (d,):
        raise ValueError(f"eigenvalues must have shape [{d}], got {list(eigenvalues.shape)}")
    gaps = eigenvalues.diff()
    if (gaps < -tolerance).any():
        raise ValueError("eigenvalues must be ascending, as exact_eigenfunctions returns them")
    bounds = [0, *(i + 1 for i, gap in enumerate(gaps.tolist()) if gap > tolerance), d]
    return tuple(pairwise(bounds))


def _alignment(learned: Tensor, exact: Tensor) -> Tensor:
    """Mean cosine of the principal angles; a missing direction of the learned functions counts as 0."""
    return (_basis(learned).T @ _basis(exact)).svd().S.sum() / exact.shape[1]


def _basis(columns: Tensor) -> Tensor:
    left, scale, _ = torch.linalg.svd(columns, full_matrices=False)
    return left * (scale > 1e-9)  # a column of zeros for each direction that is missing


class ClusterSimilarity(NamedTuple):
    """The result of :func:`cluster_similarity`.

    Attributes:
        scores (Tensor): the score of each learned function's cluster, ``[d]``.
        mean (Tensor): their mean.
        clusters (tuple): the clusters of eigenvalues, as ``(first, last + 1)``; the last may go beyond d.
    """

    scores: Tensor
    mean: Tensor
    clusters: tuple[tuple[int, int], ...]


def cluster_similarity(
    learned: Tensor,
    exact: Tensor,
    eigenvalues: Tensor,
    *,
    rho: Tensor | None = None,
    relative: float = 0.1,
) -> ClusterSimilarity:
    r"""Compares learned with exact eigenfunctions, by subspaces if eigenvalues are close.

    Eigenfunctions with similar eigenvalues are hard to separate: with slightly different data, or another seed,
    they are rotated. So neighbours within ``relative`` of each other are one cluster, whose score is
    the mean cosine of the principal angles between the learned and the exact functions in it. The cut at d may go
    through a cluster: it then includes all exact functions up to ``relative`` above the last learned eigenvalue,
    and the score is how much of the learned functions lies in their span.

    Args:
        learned (Tensor): one function a column, in order, ``[S, d]``.
        exact (Tensor): the exact ones, with some beyond d, ``[S, D]``.
        eigenvalues (Tensor): theirs, ascending, ``[D]``.

    Keyword Args:
        rho (Tensor, optional): the weight of each state, ``[S]``. Default: uniform.
        relative (float): the largest difference of neighbours, relative to the larger eigenvalue. Default: 0.1.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.spectra import cluster_similarity
        >>> exact, values = torch.eye(5)[:, :4], torch.tensor([0.0, 0.10, 0.20, 0.21])
        >>> learned = exact[:, :3] + 0.0
        >>> learned[3, 2] = 1.0  # a mixture of the third and the fourth, which are all but equal
        >>> result = cluster_similarity(learned, exact, values)
        >>> result.clusters, round(float(result.mean), 4)
        (((0, 1), (1, 2), (2, 4)), 1.0)
    """
    d, known = learned.shape[1], exact.shape[1]
    if known < d or eigenvalues.shape != (known,):
        raise ValueError(
            f"there must be at least as many exact functions and eigenvalues as the {d} learned, got {known} and "
            f"{eigenvalues.numel()}"
        )
    weight = exact.new_ones(exact.shape[0]) if rho is None else rho.to(exact)
    root = (weight / weight.sum()).sqrt().unsqueeze(-1).double()
    learned, exact = _unit(learned.detach().to(root) * root), _unit(exact.to(root) * root)
    values = eigenvalues.double().clamp_min(0).tolist()
    bounds = [0]
    for i in range(1, d):
        # Each connected component has an eigenvalue 0; only rounding separates them.
        if values[i] - values[i - 1] > max(relative * values[i], _ZERO):
            bounds.append(i)
    beyond = d
    while beyond < known and values[beyond] - values[d - 1] <= max(
        relative * values[beyond], _ZERO
    ):
        beyond += 1
    clusters = tuple(pairwise([*bounds, beyond]))
    scores = learned.new_zeros(d)
    for first, end in clusters:
        last = min(end, d)
        inside = _basis(learned[:, first:last]).T @ _basis(exact[:, first:end])
        # As many angles as learned functions; a missing one counts as 0.
        scores[first:last] = inside.svd().S.sum() / (last - first)
    return ClusterSimilarity(scores, scores.mean(), clusters)
