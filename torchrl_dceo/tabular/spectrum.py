"""Eigenvectors of the Laplacian of a graph of states."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["laplacian_eigenvectors"]

# Beyond this many states the sparse solver is faster than the dense one.
_LARGEST_DENSE = 120


def laplacian_eigenvectors(
    edges: Tensor,
    num_states: int,
    d: int,
    *,
    weights: Tensor | None = None,
    solver: Literal["auto", "dense", "sparse"] = "auto",
) -> tuple[Tensor, Tensor]:
    r"""Returns the ``d`` smoothest eigenvectors of a graph after the constant one.

    Of the combinatorial Laplacian :math:`L = D - W`, with :math:`W` the (weighted) adjacency matrix and :math:`D` the
    degrees. Of a world whose actions are all moves along different edges (or stay), these are the eigenfunctions that
    the deep agents learn, with all states alike: :math:`L/A` is then :math:`I - P` of the uniformly random walk.

    Args:
        edges (Tensor): int64 ``[2, E]``, both ways and each once, as from
            :meth:`~torchrl_dceo.tabular.TransitionGraph.edges`.
        num_states (int): S. States without an edge are no part of the graph: the eigenvectors are 0 there.
        d (int): how many. Of a graph with fewer the rest is 0, with an infinite eigenvalue.

    Keyword Args:
        weights (Tensor, optional): of the edges, ``[E]``. Default: 1 each.
        solver (str): ``"dense"``; ``"sparse"``, which needs scipy (the extra ``analysis``); ``"auto"`` (default)
            chooses by the number of states and what is installed.

    Returns:
        ``(eigenvalues, eigenvectors)``, float64 ``[d]`` and ``[S, d]``: ascending, mean square 1 over the states of
        the graph, the entry of largest magnitude positive. In a graph of several parts, eigenvectors with eigenvalue 0
        that are constant on each part are among them; no option can climb those.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.tabular import laplacian_eigenvectors
        >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> values, vectors = laplacian_eigenvectors(path, 4, 2)  # state 3 was never seen
        >>> values.round(decimals=6).tolist(), vectors[:, 1].round(decimals=4).abs().tolist()
        ([1.0, 3.0], [0.7071, 1.4142, 0.7071, 0.0])
    """
    if solver not in ("auto", "dense", "sparse"):
        raise ValueError(f"solver must be 'auto', 'dense' or 'sparse', got {solver!r}")
    values = torch.full((d,), torch.inf, dtype=torch.float64)
    vectors = torch.zeros(num_states, d, dtype=torch.float64)
    # The graph with its states numbered anew, without those that were never seen.
    states, numbered = edges.unique(return_inverse=True)
    size = len(states)
    found = min(d, size - 1)
    if found < 1:
        return values, vectors
    dense = solver == "dense" or size <= 2 * (d + 1)
    if solver == "auto" and not dense:
        dense = size <= _LARGEST_DENSE or not _scipy_is_there()
    solve = _dense if dense else _sparse
    weights = torch.ones(edges.shape[1]) if weights is None else weights
    found_values, found_vectors = solve(numbered, weights.double(), size, found + 1)
    found_vectors = found_vectors[:, 1:] * size**0.5
    largest = found_vectors.abs().argmax(0, keepdim=True)
    found_vectors = found_vectors * found_vectors.gather(0, largest).sign()
    values[:found] = found_values[1:].clamp(min=0)
    vectors[states, :found] = found_vectors
    return values, vectors


def _dense(edges: Tensor, weights: Tensor, size: int, d: int) -> tuple[Tensor, Tensor]:
    laplacian = torch.zeros(size, size, dtype=torch.float64)
    laplacian[edges[0], edges[1]] = -weights
    laplacian.diagonal().copy_(-laplacian.sum(1))
    values, vectors = torch.linalg.eigh(laplacian)
    return values[:d], vectors[:, :d]


def _sparse(edges: Tensor, weights: Tensor, size: int, d: int) -> tuple[Tensor, Tensor]:
    try:
        import numpy as np
        from scipy import sparse
        from scipy.sparse.linalg import eigsh
    except ImportError as error:
        raise ImportError(
            "the sparse eigensolver needs scipy: pip install 'torchrl-dceo[analysis]'"
        ) from error
    start, end = edges.numpy()
    diagonal = np.arange(size)
    degrees = np.bincount(start, weights.numpy(), minlength=size)
    entries = np.concatenate([-weights.numpy(), degrees])
    places = (np.concatenate([start, diagonal]), np.concatenate([end, diagonal]))
    laplacian: Any = sparse.csc_matrix((entries, places), shape=(size, size))
    # Shift-invert just below the spectrum: the smallest eigenvalues become the largest, far apart.
    guess = np.random.default_rng(0).standard_normal(size)
    values, vectors = eigsh(laplacian, k=d, sigma=-1e-3, which="LM", v0=guess)
    order = values.argsort()
    return torch.as_tensor(values[order].copy()), torch.as_tensor(vectors[:, order].copy())


def _scipy_is_there() -> bool:
    try:
        import scipy.sparse.linalg  # noqa: F401
    except ImportError:
        return False
    return True
