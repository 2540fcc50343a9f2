"""Orbital minimization: eigenfunctions of the Laplacian without a constraint, a barrier or duals."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from tensordict import NestedKey
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_dceo.objectives._representation import (
    Reduction,
    RepresentationLoss,
    check_choice,
)
from torchrl_dceo.objectives.laplacian import Coefficients, pairs_orthogonality

__all__ = ["OMMLoss"]

Nesting = Literal["sequential", "joint", "none"]


class OMMLoss(RepresentationLoss):
    r"""The orbital minimization objective for the Laplacian representation f: S -> R^d.

    Presented in Ryu, Zhou & Wornell, "Revisiting Orbital Minimization Method for Neural Operator Decomposition"
    (NeurIPS 2025, https://arxiv.org/abs/2510.21952), for a positive semidefinite operator K:

    .. math::
        -\operatorname{tr}\big((2I - M) F\big), \qquad
        M_{jk} = \mathbb E[f_j f_k], \quad F_{jk} = \langle f_j, K f_k \rangle.

    Its minimum, :math:`-\sum_{i \le d} \kappa_i` over the largest eigenvalues of K, is attained by the orthonormal
    bases of their eigenfunctions, without constraint, weight or shrinkage. The smoothest eigenfunctions of the
    Laplacian L are the leading ones of

    .. math:: K = I - L/2, \qquad F = M - \tfrac14 \mathbb E\big[(f(s) - f(s'))(f(s) - f(s'))^\top\big],

    which is positive semidefinite because the eigenvalues of L lie in [0, 2] (the authors use the operator of
    discounted pairs, which is positive semidefinite for their data). The eigenvalues of K are
    :math:`1 - \lambda_i / 2`.

    By itself the objective finds the span of the eigenfunctions. Nesting orders them: with ``"sequential"`` f_j
    minimises the objective of the prefix 1..j without changing the earlier functions; with ``"joint"`` the objectives
    of all prefixes are summed, as in :class:`GeneralizedLaplacianLoss`.

    The product of two expectations is estimated without bias by a U-statistic over all ordered pairs of different
    states of the batch, which must be drawn uniformly.

    Args:
        encoder (TensorDictModule): f, any module with one ``out_key``. After the loss is built, the
            module shares its parameters with ``encoder_network_params``.

    Keyword Args:
        nesting (str): ``"sequential"`` (default), ``"joint"`` or ``"none"``, see above.
        successor (NestedKey): where s' is read, with the keys of the encoder under it. Defaults to
            ``"next"``; with n-step transitions pass the key of the state after one step.
        reduction (str): ``"mean"`` (default), ``"sum"`` (B times the mean) or ``"none"``: one value
            per state, whose mean is the loss.

    The returned TensorDict holds ``loss_laplacian`` and, detached, ``smoothness`` (½ E Σ (f_i(s) - f_i(s'))²) and
    ``orthogonality`` (Σ (E[f_j f_k] - δ_jk)²), for comparison with the other objectives; they are not terms of this
    loss. f(s) and f(s') are written into the input as by :class:`GraphDrawingLoss`.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.objectives import OMMLoss
        >>> encoder = TensorDictModule(
        ...     torch.nn.Linear(4, 3), in_keys=["observation"], out_keys=["representation"]
        ... )
        >>> loss = OMMLoss(encoder)
        >>> batch = TensorDict(
        ...     {"observation": torch.randn(32, 4), "next": {"observation": torch.randn(32, 4)}}, [32]
        ... )
        >>> loss(batch)["loss_laplacian"].backward()
    """

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        *,
        nesting: Nesting = "sequential",
        successor: NestedKey = "next",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(encoder, estimator="pairs", successor=successor, reduction=reduction)
        check_choice("nesting", nesting, get_args(Nesting))
        self.nesting = nesting

    def _terms(self, f: Tensor, f_successor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dimensions = f.shape[1]
        change = f - f_successor
        ones = Coefficients.build(f.new_ones(dimensions))
        smoothness = 0.5 * change.detach().square().sum(-1)
        with torch.no_grad():
            orthogonality = pairs_orthogonality(f, ones, "squared")
        if self.nesting == "sequential":
            return self._sequential(f, change), smoothness, orthogonality
        table = ones
        if self.nesting == "joint":
            table = Coefficients.build(torch.arange(dimensions, 0, -1).to(f))
        return self._joint(f, change, table), smoothness, orthogonality

    @staticmethod
    def _joint(f: Tensor, change: Tensor, table: Coefficients) -> Tensor:
        """Σ_i (c_i - c_{i+1}) times the objective of the prefix 1..i, of every state."""
        others = f.shape[0] - 1
        moments = f.mT @ f
        operator = moments - change.mT @ change / 4
        of_moments, of_operator = table.pair_weights * moments, table.pair_weights * operator
        # Every pair of states u, v contributes m(u)∘k(v) and k(u)∘m(v), half each: Σ_jk w_jk m_jk M_jk = fᵀ (w∘M) f.
        products = 0.5 * (
            ((f @ (of_operator + of_moments)) * f).sum(-1)
            - ((change @ of_moments) * change).sum(-1) / 4
        )
        squares, crossed = f.square().cumsum(-1), (f * change).cumsum(-1)
        own = (squares.square() - crossed.square() / 4) @ table.prefix_weights
        linear = (f.square() - change.square() / 4) @ table.c
        return (products - own) / others - 2 * linear

    @staticmethod
    def _sequential(f: Tensor, change: Tensor) -> Tensor:
        """The objective of all d functions for every state; the gradient of f_j is that of the prefix 1..j."""
        others = f.shape[0] - 1
        g, still = f.detach(), change.detach()
        # M_jk and F_jk for k ≤ j, with the gradient stopped in f_k. The pairs (j, k) and (k, j) share the gradient, and
        # on the diagonal half of it is stopped: doubling every term gives the right gradient, and a value that counts
        # the diagonal once too often.
        moments = (f.mT @ g).tril()
        operator = moments - (change.mT @ still).tril() / 4
        products = 0.5 * (
            ((f @ (operator + moments)) * g).sum(-1) - ((change @ moments) * still).sum(-1) / 4
        )
        # Σ_{k≤j} f_j ⟦f_k⟧ (f_j ⟦f_k⟧ - Δ_j ⟦Δ_k⟧ / 4) of the state with itself, by cumulative sums over k.
        own = (f.square() * g.square().cumsum(-1)).sum(-1) - (
            f * change * (g * still).cumsum(-1)
        ).sum(-1) / 4
        pairs = 2 * (products - own) / others
        with torch.no_grad():
            total_m = g.square().sum(0)
            total_k = total_m - still.square().sum(0) / 4
            m, k = g.square(), g.square() - still.square() / 4
            diagonal = (0.5 * (m * total_k + k * total_m) - m * k).sum(-1) / others
        linear = (f.square() - change.square() / 4).sum(-1)
        return pairs - diagonal - 2 * linear
