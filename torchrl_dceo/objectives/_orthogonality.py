"""Unbiased estimates of Σ_i (c_i - c_{i+1}) Σ_{j,k≤i} (E[f_j f_k] - δ_jk)², a sum over prefixes.

The square of an expectation is unbiased only with two independent states u and v. For one pair, the
prefix 1..i gives

    (f_{≤i}(u)·f_{≤i}(v))² - ‖f_{≤i}(u)‖² - ‖f_{≤i}(v)‖² + i.

Summing by parts over the prefixes turns their weights back into the coefficients: the pair (j, k)
belongs to every prefix i ≥ max(j, k), and the weights of those add up to c_max(j,k). So no loop
over prefixes is needed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = ["Coefficients", "Norm", "pairs_orthogonality", "split_orthogonality"]

Norm = Literal["squared", "log1p"]


class Coefficients(NamedTuple):
    """The coefficients c_1 ≥ … ≥ c_d in the three shapes that the estimates need."""

    c: Tensor  # [d]
    prefix_weights: Tensor  # [d], c_i - c_{i+1} with c_{d+1} = 0
    pair_weights: Tensor  # [d, d], c_max(j,k)

    @classmethod
    def build(cls, c: Tensor) -> Coefficients:
        """All three from the vector of coefficients."""
        index = torch.arange(c.numel(), device=c.device)
        prefix_weights = c - torch.cat([c[1:], c.new_zeros(1)])
        return cls(c, prefix_weights, c[torch.maximum(index[:, None], index)])


def _norm_terms(f: Tensor, coefficients: Coefficients, norm: Norm) -> Tensor:
    """The norm term of one state of the pair, summed over the prefixes: ``[B, d] -> [B]``."""
    if norm == "squared":
        # Each of the two states carries half of the constant Σ_i (c_i - c_{i+1}) i = Σ_j c_j.
        return (f.square() - 0.5) @ coefficients.c
    return _log_norms(f.square().cumsum(-1)) @ coefficients.prefix_weights


def _log_norms(squares: Tensor) -> Tensor:
    """log(1 + ‖·‖) from ‖·‖², with gradient 0 at 0."""
    # sqrt has an infinite slope at 0, and 0 · inf is NaN. The clamp's own gradient is 0 below its bound, whose square
    # root is far below a rounding error of log(1 + ·).
    return squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt().log1p()


def pairs_orthogonality(f: Tensor, coefficients: Coefficients, norm: Norm) -> Tensor:
    """U-statistic over all ordered pairs u ≠ v of the B states of the batch.

    Returns:
        Tensor: ``[B]``, the average over v ≠ u for every state u; the mean of the vector is the
        U-statistic.
    """
    others = f.shape[0] - 1
    # Σ_v (f(u)·f(v))² = f(u)ᵀ G f(u) with G = FᵀF: d x d instead of B x B. It includes v = u, which
    # is taken off again.
    gram = f.mT @ f
    all_pairs = ((f @ (coefficients.pair_weights * gram)) * f).sum(-1)
    squares = f.square().cumsum(-1)
    if norm == "squared":
        self_pairs = squares.square() @ coefficients.prefix_weights
        return (all_pairs - self_pairs) / others - 2 * _norm_terms(f, coefficients, norm)
    # One product takes off the pairs v = u and both norms; with an operation less for each, the Laplacian's own
    # arithmetic, forward and backward, takes a sixth less time.
    taken_off = torch.addcmul(_log_norms(squares), squares, squares, value=0.5 / others)
    return all_pairs / others - 2 * (taken_off @ coefficients.prefix_weights)


def split_orthogonality(f: Tensor, coefficients: Coefficients, norm: Norm) -> Tensor:
    """The first half of the batch as u, the second as v, paired one to one.

    Returns:
        Tensor: ``[B]``, the value of the pair at both of its states.
    """
    u, v = f.chunk(2)
    dots = (u * v).cumsum(-1).square() @ coefficients.prefix_weights
    value = dots - _norm_terms(u, coefficients, norm) - _norm_terms(v, coefficients, norm)
    return value.repeat(2)
