"""Unbiased estimates of Σ_i (c_i - c_{i+1}) Σ_{j,k≤i} (E[f_j f_k] - δ_jk)², a sum over prefixes.

The square of an expectation is unbiased only with two independent states u and v. For one pair, the
prefix 1..i gives

    (f_{≤i}(u)·f_{≤i}(v))² - ‖f_{≤i}(u)‖² - ‖f_{≤i}(v)‖² + i.

Summing by parts over the prefixes turns their weights back into the coefficients: the pair (j, k)
belongs to every prefix i ≥ max(j, k), and the weights of those add up to c_max(j,k). So no loop
over prefixes is needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from tensordict import NestedKey
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_dceo.objectives._representation import (
    AutomaticBarrier,
    Barrier,
    Estimator,
    Reduction,
    RepresentationLoss,
    check_barrier,
    check_choice,
)

__all__ = [
    "Coefficients",
    "GeneralizedLaplacianLoss",
    "GraphDrawingLoss",
    "Norm",
    "pairs_orthogonality",
    "split_orthogonality",
]

Norm = Literal["squared", "log1p"]


class Coefficients(NamedTuple):
    """The coefficients c_1 ≥ … ≥ c_d in the shapes that the estimates need."""

    c: Tensor  # [d]
    prefix_weights: Tensor  # [d], c_i - c_{i+1} with c_{d+1} = 0
    pair_weights: Tensor  # [d, d], c_max(j,k)
    later: Tensor  # [d, d], 1 where i ≥ j

    @classmethod
    def build(cls, c: Tensor) -> Coefficients:
        """Computes the fields from the vector of coefficients."""
        index = torch.arange(c.numel(), device=c.device)
        prefix_weights = c - torch.cat([c[1:], c.new_zeros(1)])
        later = torch.ones(c.numel(), c.numel(), dtype=c.dtype, device=c.device).tril()
        return cls(c, prefix_weights, c[torch.maximum(index[:, None], index)], later)


def _norm_terms(f: Tensor, coefficients: Coefficients, norm: Norm) -> Tensor:
    """The norm term of one state of the pair, summed over the prefixes: ``[B, d] -> [B]``."""
    if norm == "squared":
        # Half of the constant Σ_i (c_i - c_{i+1}) i = Σ_j c_j belongs to each of the two states.
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
    # Σ_v (f(u)·f(v))² = f(u)ᵀ G f(u) with G = FᵀF: d x d instead of B x B. The term v = u is
    # subtracted again.
    gram = f.mT @ f
    all_pairs = ((f @ (coefficients.pair_weights * gram)) * f).sum(-1)
    squares = f.square().cumsum(-1)
    if norm == "squared":
        self_pairs = squares.square() @ coefficients.prefix_weights
        return (all_pairs - self_pairs) / others - 2 * _norm_terms(f, coefficients, norm)
    # One product subtracts the pairs v = u and both norms: a sixth less time, forward and backward, than with
    # separate operations.
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


# The automatic barrier in units of the estimated λ_d. With squared norms a dimension collapses at λ = 2β, with log
# norms at about 0.7β.
_FACTORS = {"squared": 1.0, "log1p": 3.0}


class GraphDrawingLoss(RepresentationLoss):
    r"""The graph drawing objective for the Laplacian representation f: S -> R^d.

    Presented in Wu, Tucker & Nachum, "The Laplacian in RL: Learning Representations with Efficient
    Approximations" (ICLR 2019, https://arxiv.org/abs/1810.04586), and with general coefficients in
    Wang et al., "Towards Better Laplacian Representation in Reinforcement Learning with Generalized
    Graph Drawing" (ICML 2021, https://arxiv.org/abs/2107.05545):

    .. math::
        \tfrac12 \mathbb E\Big[\sum_i c_i (f_i(s) - f_i(s'))^2\Big]
        + \beta \sum_i (c_i - c_{i+1}) \sum_{j,k \le i} \big(\mathbb E[f_j f_k] - \delta_{jk}\big)^2,
        \qquad c_{d+1} = 0,

    for consecutive states s, s'. With all coefficients equal (the default) only the full prefix
    counts and the optimum is the span of the first d eigenfunctions of the graph Laplacian, in any
    rotation. With :class:`GeneralizedLaplacianLoss` it is the eigenfunctions themselves.

    With a finite barrier β the optimum is shrunk,
    :math:`\mathbb E f_i^2 = 1 - \lambda_i / (2\beta)`, and a dimension with
    :math:`\lambda_i \ge 2\beta` collapses to 0. Eigenvalues lie in [0, 2], so β > 1 is always safe, but if β is far
    above the wanted eigenvalues, noise hides their differences. By default β follows an estimate of λ_d.

    The batch must be drawn uniformly: prioritized sampling changes the measure under which f is
    orthonormal.

    Args:
        encoder (TensorDictModule): f, any module with one ``out_key``. After the loss is built, the
            module shares its parameters with ``encoder_network_params``.

    Keyword Args:
        coefficients (sequence of float, optional): c_1 ≥ … ≥ c_d > 0, one per dimension. Defaults
            to all ones.
        barrier (float or str): β, the weight of the orthogonality: a number or ``"auto"`` (default). With ``"auto"``,
            running averages, saved with the loss, estimate λ_d, the largest Rayleigh quotient in the span of f, and
            β is set to λ_d, twice the minimum (3 λ_d with log norms). If a dimension collapses nevertheless, it is
            counted in ``collapsed``, a warning is logged, and β is raised until it recovers. The attribute may be
            reassigned during training.
        estimator (str): how E[·]² is estimated without bias from the states s of the batch.
            ``"pairs"`` (default): a U-statistic over all ordered pairs of different states.
            ``"split"``: the two halves of the batch, paired one to one, as with the two independent
            batches of the original implementations; needs an even batch.
        norm (str): ``"squared"`` (default) is the objective above. With ``"log1p"`` the norms
            ‖f(u)‖² in the orthogonality become log(1 + ‖f(u)‖), as in the released code of DCEO.
            Its gradient is bounded, which is more stable, but it does not estimate orthonormality:
            f has a smaller scale and dimensions collapse earlier.
        successor (NestedKey): where s' is read, with the keys of the encoder under it. Defaults to
            ``"next"``; with n-step transitions pass the key of the state after one step.
        reduction (str): ``"mean"`` (default), ``"sum"`` (B times the mean) or ``"none"``: one value
            per state, its own smoothness and its part of the orthogonality (the average over its
            pairs), whose mean is the loss.

    The returned TensorDict holds ``loss_laplacian`` and, detached, its parts ``smoothness`` (½ E Σ
    c_i (f_i(s) - f_i(s'))²) and ``orthogonality`` (before the multiplication with β; an unbiased
    estimate of a square, which may be negative). The representations f(s) and f(s') are written into
    the input, detached, under the encoder's ``out_key`` and ``(successor, out_key)``, so that the
    option rewards can reuse them.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.objectives.laplacian import GraphDrawingLoss
        >>> encoder = TensorDictModule(
        ...     torch.nn.Linear(4, 3), in_keys=["observation"], out_keys=["representation"]
        ... )
        >>> loss = GraphDrawingLoss(encoder, barrier=2.0)
        >>> batch = TensorDict(
        ...     {"observation": torch.randn(32, 4), "next": {"observation": torch.randn(32, 4)}}, [32]
        ... )
        >>> out = loss(batch)
        >>> out["loss_laplacian"].backward()
        >>> sorted(out.keys())
        ['loss_laplacian', 'orthogonality', 'smoothness']
        >>> batch["next", "representation"].shape
        torch.Size([32, 3])

        The loss also takes plain tensors, one per key:

        >>> value, smoothness, orthogonality = loss(
        ...     observation=torch.randn(32, 4), next_observation=torch.randn(32, 4)
        ... )
    """

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        *,
        coefficients: Sequence[float] | Tensor | None = None,
        barrier: Barrier = "auto",
        estimator: Estimator = "pairs",
        norm: Norm = "squared",
        successor: NestedKey = "next",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(encoder, estimator=estimator, successor=successor, reduction=reduction)
        check_choice("norm", norm, get_args(Norm))
        self.norm = norm
        self.barrier = barrier
        self.coefficients = None if coefficients is None else tuple(map(float, coefficients))
        if self.coefficients is not None:
            positive = all(c > 0 and math.isfinite(c) for c in self.coefficients)
            if not positive or any(a < b for a, b in itertools.pairwise(self.coefficients)):
                # Otherwise some prefix would have a negative weight and the loss would have no minimum.
                raise ValueError(
                    f"coefficients must be positive and must not increase, got {self.coefficients}."
                )
        self._table: Coefficients | None = None

    @property
    def barrier(self) -> float | Tensor:
        """β: the given number, or the current value of the automatic barrier."""
        automatic = self.automatic_barrier
        return self._barrier if automatic is None else automatic.value

    @barrier.setter
    def barrier(self, value: Barrier) -> None:
        check_barrier(value)
        if value == "auto":
            self.automatic_barrier = AutomaticBarrier(_FACTORS[self.norm])
        else:
            self.automatic_barrier = None
            self._barrier = value

    def _coefficients(self, dimensions: int) -> Sequence[float]:
        """c_1, …, c_d for the encoder's number of dimensions, known at the first forward pass."""
        if self.coefficients is None:
            return [1.0] * dimensions
        if len(self.coefficients) != dimensions:
            raise ValueError(
                f"coefficients has {len(self.coefficients)} entries, but the encoder's output has {dimensions} "
                "dimensions: give one coefficient per dimension."
            )
        return self.coefficients

    def _coefficient_table(self, f: Tensor) -> Coefficients:
        table = self._table
        if (
            table is None
            or table.c.shape[0] != f.shape[-1]
            or table.c.dtype != f.dtype
            or table.c.device != f.device
        ):
            c = torch.tensor(self._coefficients(f.shape[-1]), dtype=f.dtype, device=f.device)
            table = self._table = Coefficients.build(c)
        return table

    def _terms(self, f: Tensor, f_successor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        table = self._coefficient_table(f)
        smoothness = 0.5 * (f - f_successor).square() @ table.c
        estimate = pairs_orthogonality if self.estimator == "pairs" else split_orthogonality
        orthogonality = estimate(f, table, self.norm)
        barrier = self.barrier
        if isinstance(barrier, Tensor):
            barrier = barrier.to(f.dtype)
        return smoothness + barrier * orthogonality, smoothness, orthogonality

    def _gradients(
        self, f: Tensor, f_successor: Tensor
    ) -> tuple[list[Tensor], tuple[Tensor, Tensor, Tensor]]:
        """Closed form for ``estimator="pairs"`` with squared norms, without autograd."""
        closed = (type(self)._terms is GraphDrawingLoss._terms) and (
            self.estimator == "pairs" and self.norm == "squared"
        )
        if not closed:
            return super()._gradients(f, f_successor)
        table, barrier = self._coefficient_table(f), self.barrier
        size, others = f.shape[0], f.shape[0] - 1
        change = f - f_successor
        weighted_change = change * table.c
        smoothness = (change * weighted_change).sum().mul_(0.5 / size)
        squares = f.square()
        all_pairs = f @ (table.pair_weights * (f.mT @ f))
        prefixes = squares.cumsum(-1)
        weighted = prefixes * table.prefix_weights
        # Of Σ_i w_i ‖f_{≤i}‖⁴ with respect to f_j: 4 f_j Σ_{i≥j} w_i ‖f_{≤i}‖².
        later = weighted @ table.later
        pairs = (all_pairs * f).sum() - (weighted * prefixes).sum()
        norms = squares.sum(0) @ table.c
        orthogonality = pairs / (size * others) - 2 / size * norms + table.c.sum()
        slope = torch.sub(all_pairs, f * later).div_(others).sub_(f * table.c)
        slope.mul_(4 * barrier / size)
        weighted_change.div_(size)
        gradients = [slope.add_(weighted_change), weighted_change.neg_()]
        return gradients, (smoothness + barrier * orthogonality, smoothness, orthogonality)


class GeneralizedLaplacianLoss(GraphDrawingLoss):
    r"""The generalized Laplacian objective (the DCEO paper's Eq. 2): graph drawing, c_i = d - i + 1.

    Presented in Wang et al., "Towards Better Laplacian Representation in Reinforcement Learning
    with Generalized Graph Drawing" (ICML 2021, https://arxiv.org/abs/2107.05545) and used by
    Klissarov & Machado, "Deep Laplacian-based Options for Temporally-Extended Exploration" (ICML
    2023, https://arxiv.org/abs/2301.11181):

    .. math::
        \tfrac12 \mathbb E\Big[\sum_{i=1}^d \sum_{k \le i} (f_k(s) - f_k(s'))^2\Big]
        + \beta \sum_{i=1}^d \sum_{j,k \le i} \big(\mathbb E[f_j f_k] - \delta_{jk}\big)^2.

    Strictly decreasing coefficients break the symmetry under rotation: the optimum is the first d
    eigenfunctions of the graph Laplacian themselves, in order, up to their signs (and to rotations
    among equal eigenvalues). f_1 is the constant one.

    Arguments, keys and outputs are those of :class:`GraphDrawingLoss`, without ``coefficients``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.objectives.laplacian import GeneralizedLaplacianLoss
        >>> encoder = TensorDictModule(
        ...     torch.nn.Linear(4, 3), in_keys=["observation"], out_keys=["representation"]
        ... )
        >>> loss = GeneralizedLaplacianLoss(encoder, norm="log1p", successor="successor")
        >>> loss.in_keys
        ['observation', ('successor', 'observation')]
        >>> batch = TensorDict(
        ...     {"observation": torch.randn(32, 4), "successor": {"observation": torch.randn(32, 4)}}, [32]
        ... )
        >>> loss(batch)["loss_laplacian"].shape
        torch.Size([])
    """

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        *,
        barrier: Barrier = "auto",
        estimator: Estimator = "pairs",
        norm: Norm = "squared",
        successor: NestedKey = "next",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(
            encoder,
            barrier=barrier,
            estimator=estimator,
            norm=norm,
            successor=successor,
            reduction=reduction,
        )

    def _coefficients(self, dimensions: int) -> Sequence[float]:
        return [float(dimensions - i) for i in range(dimensions)]
