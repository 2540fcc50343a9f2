"""The graph of the transitions seen, and its eigenfunctions."""

from __future__ import annotations

from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

__all__ = [
    "TransitionGraph",
    "laplacian_eigenvectors",
]

_NONE = -1


class TransitionGraph:
    r"""Counts transitions for a batch of seeds: the graph of the visited states, and the empirical model.

    Every state has a list of its distinct successors, and the count of each successor for
    each action. So the memory is proportional to the edges and not to the square of the states; the lists
    grow when they are full.

    Args:
        num_seeds (int): B, independent graphs that are updated together.
        num_states (int): S.
        num_actions (int): A.

    Attributes:
        successors (Tensor): int64 ``[B, S, K]``, -1 where a list ends.
        counts (Tensor): int64 ``[B, S, A, K]``: transitions per action and successor.
        seen (Tensor): bool ``[B, S]``.
        num_edges (Tensor): int64 ``[B]``: undirected edges between different states that were seen.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> from torchrl_dceo.tabular import TransitionGraph
        >>> env = GridWorldEnv("S..", batch_size=[2], slip=0.0)  # action 1 moves right
        >>> graph = TransitionGraph(2, env.num_states, env.num_actions)
        >>> step = env.reset()
        >>> for _ in range(2):
        ...     now, step = env.step_and_maybe_reset(step.set("action", torch.tensor([1, 0])))
        ...     graph.update(now)
        >>> graph.adjacency(0).int().tolist(), graph.num_edges.tolist()
        ([[0, 1, 0], [1, 0, 1], [0, 1, 0]], [2, 0])
    """

    def __init__(self, num_seeds: int, num_states: int, num_actions: int) -> None:
        for name, value in (
            ("num_seeds", num_seeds),
            ("num_states", num_states),
            ("num_actions", num_actions),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.num_seeds, self.num_states, self.num_actions = num_seeds, num_states, num_actions
        slots = num_actions  # enough for an environment whose only noise is a random action
        self.successors = torch.full((num_seeds, num_states, slots), _NONE)
        self.counts = torch.zeros(num_seeds, num_states, num_actions, slots, dtype=torch.int64)
        self.seen = torch.zeros(num_seeds, num_states, dtype=torch.bool)
        self.num_edges = torch.zeros(num_seeds, dtype=torch.int64)
        self._each = torch.arange(num_seeds)

    def update(self, tensordict: TensorDictBase) -> None:
        """Adds one step of every seed: reads ``state_id``, ``action`` and ``("next", "state_id")``, each ``[B]``."""
        state, action = tensordict.get("state_id"), tensordict.get("action")
        following = tensordict.get(("next", "state_id"))
        each = self._each
        row = self.successors[each, state]
        hits = row == following.unsqueeze(-1)
        new = ~hits.any(-1)
        if new.any():
            row = self._append(state, following, new)
            hits = row == following.unsqueeze(-1)
        self.counts[each, state, action, hits.int().argmax(-1)] += 1

    def _append(self, state: Tensor, following: Tensor, new: Tensor) -> Tensor:
        """Appends new successors to their lists; returns the lists of these states."""
        each = self._each
        self.seen[each, state] = True
        self.seen[each, following] = True
        # The edge may be known in the opposite direction.
        known = (self.successors[each, following] == state.unsqueeze(-1)).any(-1)
        self.num_edges += new & ~known & (state != following)
        length = (self.successors[each, state] != _NONE).sum(-1)
        if (length[new] == self.successors.shape[-1]).any():
            self._grow()
        self.successors[each[new], state[new], length[new]] = following[new]
        return self.successors[each, state]

    def _grow(self) -> None:
        more = self.successors.shape[-1]
        pad = torch.nn.functional.pad
        self.successors = pad(self.successors, (0, more), value=_NONE)
        self.counts = pad(self.counts, (0, more))

    def edges(self, seed: int) -> Tensor:
        """Returns the undirected edges of one seed's graph, each in both directions: int64 ``[2, E]``."""
        lists = self.successors[seed]
        start = torch.arange(self.num_states).unsqueeze(-1).expand_as(lists)
        used = (lists != _NONE) & (lists != start)
        pairs = torch.stack([start[used], lists[used]])
        codes = torch.cat([pairs, pairs.flip(0)], 1)
        unique = (codes[0] * self.num_states + codes[1]).unique()
        return torch.stack([unique // self.num_states, unique % self.num_states])

    def edge_visits(self, seed: int) -> Tensor:
        """Returns the traversals of each of :meth:`edges`, in either direction: float64 ``[E]``."""
        lists = self.successors[seed]
        start = torch.arange(self.num_states).unsqueeze(-1).expand_as(lists)
        used = (lists != _NONE) & (lists != start)
        times = self.counts[seed].sum(1)[used].double()
        pairs = torch.stack([start[used], lists[used]])
        codes = torch.cat([pairs, pairs.flip(0)], 1)
        unique, place = (codes[0] * self.num_states + codes[1]).unique(return_inverse=True)
        return times.new_zeros(len(unique)).index_add_(0, place, times.repeat(2))

    def adjacency(self, seed: int) -> Tensor:
        """Returns one seed's graph as a dense bool ``[S, S]``, symmetric, without loops."""
        matrix = torch.zeros(self.num_states, self.num_states, dtype=torch.bool)
        start, end = self.edges(seed)
        matrix[start, end] = True
        return matrix

    def model(self, seeds: Tensor, prior: float = 0.0) -> tuple[Tensor, Tensor]:
        """Returns the empirical model of the given seeds ``[b]``.

        Args:
            seeds (Tensor): which.
            prior (float): pseudo-counts added to every action, distributed over the
                successors of the state in proportion to their counts over all actions. With 0 (default) the
                probabilities are relative frequencies.

        Returns:
            ``(probabilities, successors)``: float64 ``[b, S, A, K]`` and int64 ``[b, S, K]``. Without a prior the
            probabilities of an action that was never taken are all 0; unused entries are the state itself, with
            probability 0.
        """
        probabilities = _shares(self.counts[seeds], prior)
        lists = self.successors[seeds]
        own = torch.arange(self.num_states).unsqueeze(-1).expand_as(lists)
        return probabilities, torch.where(lists == _NONE, own, lists)

    def outcomes(self, state: Tensor, action: Tensor, prior: float = 0.0) -> tuple[Tensor, Tensor]:
        """Returns the model of one state and action of every seed, each ``[B]``.

        Returns:
            ``(probabilities, successors)``, both ``[B, K]``, as in :meth:`model`.
        """
        each = self._each
        probabilities = _shares(self.counts[each, state], prior)[each, action]
        lists = self.successors[each, state]
        return probabilities, torch.where(lists == _NONE, state.unsqueeze(-1), lists)


def _shares(counts: Tensor, prior: float) -> Tensor:
    """Probabilities ``[*, A, K]`` from counts."""
    counts = counts.double()
    total = counts.sum(-1, keepdim=True)
    if prior:
        of_any = counts.sum(-2, keepdim=True)
        counts = counts + prior * of_any / of_any.sum(-1, keepdim=True).clamp(min=1)
        total = total + prior
    return counts / total.clamp(min=1)


# Above this number of states the sparse solver is faster than the dense one.
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
    degrees. In an environment whose actions are all moves along different edges (or stay), these are the eigenfunctions
    that the deep agents learn, with uniform state weights: :math:`L/A` is :math:`I - P` of the uniformly random walk.

    Args:
        edges (Tensor): int64 ``[2, E]``, each in both directions, as from
            :meth:`~torchrl_dceo.tabular.TransitionGraph.edges`.
        num_states (int): S. States without an edge are not part of the graph: the eigenvectors are 0 there.
        d (int): the number of eigenvectors. If the graph has fewer, the rest is 0, with an infinite eigenvalue.

    Keyword Args:
        weights (Tensor, optional): weights of the edges, ``[E]``. Default: 1 each.
        solver (str): ``"dense"``; ``"sparse"``, which needs scipy (the extra ``analysis``); ``"auto"`` (default)
            chooses by the number of states and the installed packages.

    Returns:
        ``(eigenvalues, eigenvectors)``, float64 ``[d]`` and ``[S, d]``: ascending, mean square 1 over the states of
        the graph, the entry of largest magnitude positive. In a disconnected graph, eigenvectors with eigenvalue 0
        that are constant on each component are included; no option can follow those.

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
    # The graph of the visited states, renumbered.
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
