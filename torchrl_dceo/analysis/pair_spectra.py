"""The best that an objective can do on the data at hand: the eigenfunctions of the pairs themselves."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["PairSpectrum", "pair_eigenfunctions"]


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
        >>> from torchrl_dceo.analysis.pair_spectra import pair_eigenfunctions
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
