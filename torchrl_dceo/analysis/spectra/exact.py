"""Exact eigenfunctions of a transition table, and of sampled pairs of states."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = [
    "HasTransitionMatrix",
    "PairSpectrum",
    "exact_eigenfunctions",
    "pair_eigenfunctions",
    "pair_shares",
]

# Up to this size a dense decomposition is as fast as the sparse one, and needs no scipy.
_LARGEST_DENSE = 1500


class HasTransitionMatrix(Protocol):
    """An environment with known dynamics, such as the grid environments and the cube."""

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
        d (int): the number of eigenfunctions.
        rho (Tensor, optional): the weight of each state, ``[S]``, in any scale. Default: uniform. A state
            with ``rho`` 0 is removed: a move into it counts as staying, and the eigenfunctions are 0 there.

    Keyword Args:
        solver (str): ``"dense"``; ``"sparse"`` for large environments (needs scipy, the extra ``analysis``);
            ``"auto"`` (default) chooses by the number of states.

    Returns:
        ``(eigenvalues, eigenfunctions)``, float64 of shapes ``[d]`` and ``[S, d]``: ascending, the constant one
        included and first, :math:`E_\rho f_i^2 = 1`, orthogonal under :math:`\rho`. The entry of largest
        magnitude is positive. The eigenvalue 0 appears once for each connected component, and its
        eigenfunctions are then some basis of the functions that are constant on each component. If :math:`\rho` is not
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
    stays = torch.sparse_coo_tensor(diagonal, leaves, inside.shape, check_invariants=True)
    return (inside + stays).coalesce()


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
    """The result of :func:`pair_eigenfunctions`.

    Attributes:
        eigenvalues (Tensor): ascending, ``[d]``.
        eigenfunctions (Tensor): ``[S, d]``, 0 in states that no pair starts from.
        rho (Tensor): the share of the pairs that start in each state, ``[S]``.
    """

    eigenvalues: Tensor
    eigenfunctions: Tensor
    rho: Tensor


def pair_shares(
    states: Tensor,
    successors: Tensor,
    num_states: int,
    *,
    measure: Literal["visits", "distinct"] = "visits",
) -> Tensor:
    """Returns the weight of each pair of states among sampled pairs, ``[S, S]``, with sum 1.

    Args:
        states (Tensor): state ids, of any shape.
        successors (Tensor): state ids of the same shape.
        num_states (int): S.

    Keyword Args:
        measure (str): ``"visits"`` (default): uniform over pairs; ``"distinct"``: uniform over first states, for any
            number of pairs.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.spectra.exact import pair_shares
        >>> first, second = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 0])
        >>> pair_shares(first, second, 2, measure="distinct").sum(1).tolist()
        [0.5, 0.5]
    """
    flat = (states * num_states + successors).reshape(-1)
    counts = torch.bincount(flat, minlength=num_states**2).double().view(num_states, num_states)
    if measure == "distinct":
        counts = counts / counts.sum(1, keepdim=True).clamp(min=1)
    return counts / counts.sum()


def pair_eigenfunctions(
    states: Tensor,
    successors: Tensor,
    num_states: int,
    d: int,
    *,
    measure: Literal["visits", "distinct"] = "visits",
) -> PairSpectrum:
    r"""Returns the optimum of the Laplacian objectives for a tabular f on sampled pairs :math:`(s, s')`.

    With W the symmetrised frequencies of the pairs, and D the diagonal matrix of the frequencies of their first
    states, it solves :math:`(\mathrm{diag}(W 1) - W) f = \lambda D f`:
    :math:`\tfrac12 E (f(s) - f(s'))^2` is the quadratic form on the left, also for non-stationary data. So
    it separates limits of the data from errors of the network: compare it with
    :func:`~torchrl_dceo.analysis.exact_eigenfunctions`, and a learned f with it.

    Args:
        states (Tensor): state ids, of any shape.
        successors (Tensor): state ids of the same shape.
        num_states (int): S.
        d (int): the number of eigenfunctions.

    Keyword Args:
        measure (str): of the first states, see :func:`pair_shares`. Default: ``"visits"``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.spectra.exact import pair_eigenfunctions
        >>> there, back = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
        >>> spectrum = pair_eigenfunctions(there, back, num_states=4, d=2)  # a triangle; state 3 was never visited
        >>> spectrum.eigenvalues.abs().round(decimals=4).tolist(), spectrum.eigenfunctions[3].tolist()
        ([0.0, 1.5], [0.0, 0.0])
    """
    if states.shape != successors.shape:
        raise ValueError(
            f"states and successors must have one shape, got {list(states.shape)} and {list(successors.shape)}"
        )
    counts = pair_shares(states, successors, num_states, measure=measure)
    rho = counts.sum(1)
    kept = rho.nonzero().squeeze(-1)
    if not 1 <= d <= kept.numel():
        raise ValueError(
            f"d must lie in [1, {kept.numel()}], the number of states that pairs start from, got {d}"
        )
    # A second state that is never a first one has no weight: pairs into it are removed.
    weights = ((counts + counts.T) / 2)[kept][:, kept]
    root = rho[kept].sqrt()
    laplacian = (torch.diag(weights.sum(1)) - weights) / root / root.unsqueeze(-1)
    values, vectors = torch.linalg.eigh(laplacian)
    functions = vectors.new_zeros(num_states, d)
    functions[kept] = vectors[:, :d] / root.unsqueeze(-1)
    return PairSpectrum(values[:d], functions, rho)
