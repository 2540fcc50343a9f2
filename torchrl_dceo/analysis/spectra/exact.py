"""Exact eigenfunctions of transitions and of sampled pairs, and how near learned ones are to them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = [
    "HasTransitionMatrix",
    "PairSpectrum",
    "Similarity",
    "cosine_similarity",
    "exact_eigenfunctions",
    "pair_eigenfunctions",
    "span_alignment",
]

# Up to here a dense decomposition is as fast as the sparse one, and needs no scipy.
_LARGEST_DENSE = 1500


class HasTransitionMatrix(Protocol):
    """An environment that knows its dynamics, such as the grid worlds and the cube."""

    def transition_matrix(self) -> Tensor:
        """Returns P(s, s') of the uniformly random walk, dense or sparse, ``[S, S]``."""
        ...


def exact_eigenfunctions(
    env_or_P: HasTransitionMatrix | Tensor,
    d: int,
    rho: Tensor | None = None,
    *,
    solver: Literal["auto", "dense", "sparse"] = "auto",
) -> tuple[Tensor, Tensor]:
    r"""Returns the ``d`` smoothest eigenfunctions of the graph Laplacian of a random walk.

    They minimise the generalized Laplacian objective (the paper's Eq. 2) for pairs of states :math:`s \sim \rho,
    s' \sim P(s, \cdot)`, and solve, with :math:`D = \mathrm{diag}(\rho)`,

    .. math:: \left(D - \tfrac12 (D P + P^\top D)\right) f = \lambda D f.

    Args:
        env_or_P (environment or Tensor): an environment with a ``transition_matrix()`` (slip included), or the
            matrix itself, dense or sparse, of shape ``[S, S]`` with rows that sum to 1.
        d (int): how many.
        rho (Tensor, optional): how often each state is seen, ``[S]``, in any scale. Default: uniform. A state
            with ``rho`` 0 is left out: a move into it counts as staying, and the eigenfunctions are 0 there.

    Keyword Args:
        solver (str): ``"dense"``; ``"sparse"`` for large worlds (needs scipy, the extra ``analysis``);
            ``"auto"`` (default) chooses by the number of states.

    Returns:
        ``(eigenvalues, eigenfunctions)``, float64 of shapes ``[d]`` and ``[S, d]``: ascending, the constant one
        included and first, :math:`E_\rho f_i^2 = 1`, orthogonal under :math:`\rho`. The entry of largest
        magnitude is positive. The eigenvalue 0 appears once for each connected part of the world, and its
        eigenfunctions are then some basis of the functions that are constant on every part. If :math:`\rho` is not
        stationary under P, the first is only nearly constant, and its eigenvalue can be slightly negative.

    Examples:
        >>> from torchrl_dceo.analysis import exact_eigenfunctions
        >>> from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
        >>> values, functions = exact_eigenfunctions(GridWorldEnv("S..G"), d=3)
        >>> functions.shape, functions.square().mean(0).round(decimals=6).tolist()
        (torch.Size([4, 3]), [1.0, 1.0, 1.0])
        >>> round(values[1].item(), 4)  # (1 - cos(pi / 4)) / 2: two of four moves stay where they are
        0.1464
    """
    P = env_or_P if isinstance(env_or_P, Tensor) else env_or_P.transition_matrix()
    P = _checked(P)
    num_states = P.shape[0]
    weight = _checked_rho(rho, num_states).to(P.device)
    kept = weight.nonzero().squeeze(-1)
    if not 1 <= d <= kept.numel():
        raise ValueError(
            f"d must lie in [1, {kept.numel()}], the number of states with rho > 0, got {d}"
        )
    if kept.numel() < num_states:
        P = _restricted(P, kept)
    weight = weight[kept] / weight.sum()
    laplacian = _symmetric_laplacian(P, weight)
    if solver not in ("auto", "dense", "sparse"):
        raise ValueError(f"solver must be 'auto', 'dense' or 'sparse', got {solver!r}")
    # The sparse solver cannot find (nearly) all of them.
    dense = solver == "dense" or (solver == "auto" and kept.numel() <= _LARGEST_DENSE)
    if dense or d > kept.numel() // 2:
        values, vectors = torch.linalg.eigh(laplacian.to_dense())
        values, vectors = values[:d], vectors[:, :d]
    else:
        values, vectors = _sparse_eigh(laplacian, d, below=_lower_bound(P, weight))
    functions = vectors / weight.sqrt().unsqueeze(-1)
    largest = functions.abs().argmax(0, keepdim=True)
    functions = functions * functions.gather(0, largest).sign()
    result = functions.new_zeros(num_states, d)
    result[kept] = functions
    return values, result


def _checked(P: Tensor) -> Tensor:
    if P.ndim != 2 or P.shape[0] != P.shape[1]:
        raise ValueError(f"the transition matrix must be square, got shape {list(P.shape)}")
    P = P.detach().to(torch.float64)
    P = (P if P.layout == torch.sparse_coo else P.to_sparse_coo()).coalesce()
    sums = P.sum(1).to_dense()
    wrong = ((sums - 1).abs() > 1e-6).nonzero().flatten()
    if wrong.numel():
        row = int(wrong[0])
        raise ValueError(
            f"the rows of the transition matrix must sum to 1, row {row} sums to {sums[row]:.6g}"
        )
    if (P.values() < 0).any():
        raise ValueError("the transition matrix has a negative entry: it must hold probabilities")
    return P


def _checked_rho(rho: Tensor | None, num_states: int) -> Tensor:
    if rho is None:
        return torch.ones(num_states, dtype=torch.float64)
    if rho.shape != (num_states,):
        raise ValueError(
            f"rho must have one entry for each of the {num_states} states, got shape {list(rho.shape)}"
        )
    if not (torch.isfinite(rho).all() and (rho >= 0).all() and rho.sum() > 0):
        raise ValueError("rho must be finite, nowhere negative and not all zero")
    return rho.detach().to(torch.float64)


def _restricted(P: Tensor, kept: Tensor) -> Tensor:
    inside = P.index_select(0, kept).index_select(1, kept).coalesce()
    leaves = 1 - inside.sum(1).to_dense()
    diagonal = torch.arange(len(kept), device=P.device).expand(2, -1)
    return (inside + torch.sparse_coo_tensor(diagonal, leaves, inside.shape)).coalesce()


def _symmetric_laplacian(P: Tensor, weight: Tensor) -> Tensor:
    """I - (D^½ P D^-½ + its transpose) / 2, sparse: the problem in g = D^½ f, where it is an ordinary one."""
    size = len(weight)
    rows, columns = P.indices()
    root = weight.sqrt()
    scaled = P.values() * root[rows] / root[columns] / 2
    diagonal = torch.arange(size, device=P.device)
    indices = torch.cat(
        [P.indices(), P.indices().flip(0), torch.stack([diagonal, diagonal])], dim=1
    )
    values = torch.cat([-scaled, -scaled, torch.ones_like(weight)])
    return torch.sparse_coo_tensor(indices, values, (size, size), check_invariants=True).coalesce()


def _lower_bound(P: Tensor, weight: Tensor) -> float:
    """No eigenvalue lies below (Gershgorin's circles of I - (P + D^-1 Pᵀ D) / 2)."""
    arrive = (P.t() @ weight.unsqueeze(-1)).squeeze(-1) / weight
    return float((1 - arrive).min() / 2)


def _sparse_eigh(laplacian: Tensor, d: int, below: float) -> tuple[Tensor, Tensor]:
    try:
        import numpy as np
        from scipy import sparse
        from scipy.sparse.linalg import eigsh
    except ImportError as error:
        raise ImportError(
            "the sparse eigensolver needs scipy: pip install 'torchrl-dceo[analysis]'"
        ) from error
    rows, columns = laplacian.indices().cpu().numpy()
    entries = laplacian.values().cpu().numpy()
    matrix: Any = sparse.csc_matrix((entries, (rows, columns)), shape=tuple(laplacian.shape))
    # Shift-invert just below the spectrum: the smallest eigenvalues become the largest, far apart.
    start = np.random.default_rng(0).standard_normal(laplacian.shape[0])
    values, vectors = eigsh(matrix, k=d, sigma=below - 1e-3, which="LM", v0=start)
    order = values.argsort()
    return (
        torch.as_tensor(values[order], device=laplacian.device),
        torch.as_tensor(vectors[:, order], device=laplacian.device),
    )


class PairSpectrum(NamedTuple):
    """What :func:`pair_eigenfunctions` returns.

    Attributes:
        eigenvalues (Tensor): ascending, ``[d]``.
        eigenfunctions (Tensor): ``[S, d]``, 0 in states that no pair starts from.
        rho (Tensor): the share of the pairs that start in each state, ``[S]``.
    """

    eigenvalues: Tensor
    eigenfunctions: Tensor
    rho: Tensor


def pair_eigenfunctions(
    states: Tensor, successors: Tensor, num_states: int, d: int
) -> PairSpectrum:
    r"""Returns what the Laplacian objectives would find in a table of f, from sampled pairs :math:`(s, s')` alone.

    With W the symmetric matrix of how often two states follow each other in the pairs, and D the diagonal of how often
    each state comes first, they are the solutions of :math:`(\mathrm{diag}(W 1) - W) f = \lambda D f`:
    :math:`\tfrac12 E (f(s) - f(s'))^2` is the quadratic form on the left whether the data are stationary or not. So
    this tells apart what the data do not hold and what a network has not learned: compare it with
    :func:`~torchrl_dceo.analysis.exact_eigenfunctions`, and what was learned with it.

    Args:
        states (Tensor): state ids, of any shape.
        successors (Tensor): state ids of the same shape.
        num_states (int): S.
        d (int): how many.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.spectra.exact import pair_eigenfunctions
        >>> there, back = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
        >>> spectrum = pair_eigenfunctions(there, back, num_states=4, d=2)  # a triangle; nobody was in state 3
        >>> spectrum.eigenvalues.abs().round(decimals=4).tolist(), spectrum.eigenfunctions[3].tolist()
        ([0.0, 1.5], [0.0, 0.0])
    """
    if states.shape != successors.shape:
        raise ValueError(
            f"states and successors must have one shape, got {list(states.shape)} and {list(successors.shape)}"
        )
    flat = (states * num_states + successors).reshape(-1)
    counts = torch.bincount(flat, minlength=num_states**2).double()
    counts = (counts / counts.sum()).view(num_states, num_states)
    rho = counts.sum(1)
    kept = rho.nonzero().squeeze(-1)
    if not 1 <= d <= kept.numel():
        raise ValueError(
            f"d must lie in [1, {kept.numel()}], the number of states that pairs start from, got {d}"
        )
    # A last state that is never a first one has no weight of its own: the pair into it is left out.
    weights = ((counts + counts.T) / 2)[kept][:, kept]
    root = rho[kept].sqrt()
    laplacian = (torch.diag(weights.sum(1)) - weights) / root / root.unsqueeze(-1)
    values, vectors = torch.linalg.eigh(laplacian)
    functions = vectors.new_zeros(num_states, d)
    functions[kept] = vectors[:, :d] / root.unsqueeze(-1)
    return PairSpectrum(values[:d], functions, rho)


class Similarity(NamedTuple):
    """What :func:`cosine_similarity` returns.

    Attributes:
        cosines (Tensor): |cosine| of each learned function with its exact one, ``[d]``.
        mean (Tensor): their mean.
        subspace_cosines (Tensor): the same where the eigenvalue is simple; where it repeats, every function of the
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
    r"""Compares learned with exact eigenfunctions, whatever their signs and scales.

    The inner product is :math:`\langle f, g \rangle = \sum_s \rho(s) f(s) g(s)`. The eigenfunctions of a repeated
    eigenvalue are free to rotate among themselves: a single cosine says nothing there, so their subspaces are
    compared too. A learned function that has collapsed to 0 has cosine 0.

    Args:
        learned (Tensor): one function a column, evaluated on all states, ``[S, d]``.
        exact (Tensor): the eigenfunctions from :func:`~torchrl_dceo.analysis.exact_eigenfunctions`, ``[S, d]``.
        eigenvalues (Tensor, optional): theirs, ascending, ``[d]``; needed to find the repeated ones. Default: all
            are taken to be simple. Choose ``d`` so that it does not cut a group in two: of a cut group only a part
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
    """How much of the span of the exact eigenfunctions is learned, whatever the rotation: mean cosine of the angles.

    Args:
        learned (Tensor): one function a column, ``[S, d]``.
        exact (Tensor): ``[S, d]``.

    Keyword Args:
        rho (Tensor, optional): the weight of each state, ``[S]``. Default: uniform.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.spectra.exact import cosine_similarity, span_alignment
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
    """Mean cosine of the principal angles; a direction that the learned functions lack counts as 0."""
    return (_basis(learned).T @ _basis(exact)).svd().S.sum() / exact.shape[1]


def _basis(columns: Tensor) -> Tensor:
    left, scale, _ = torch.linalg.svd(columns, full_matrices=False)
    return left * (scale > 1e-9)  # a column of zeros for each direction that is missing
