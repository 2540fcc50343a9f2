"""The augmented Lagrangian objective (ALLO): eigenfunctions and eigenvalues without shrinkage."""

from __future__ import annotations

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
    check_positive,
)

__all__ = ["ALLOLoss"]


class ALLOLoss(RepresentationLoss):
    r"""The augmented Lagrangian objective: eigenfunctions of the Laplacian and their eigenvalues.

    Presented in Gomez, Bowling & Machado, "Proper Laplacian Representation Learning" (ICLR 2024,
    https://arxiv.org/abs/2310.10833):

    .. math::
        \max_\beta \min_f \; \sum_i \tfrac12 \mathbb E\big[(f_i(s) - f_i(s'))^2\big]
        + \sum_{k \le j} \beta_{jk} \big(\mathbb E[f_j ⟦f_k⟧] - \delta_{jk}\big)
        + b \sum_{k \le j} \big(\mathbb E[f_j ⟦f_k⟧] - \delta_{jk}\big)^2,

    where ⟦·⟧ stops the gradient: f_j is kept orthogonal to the earlier f_k and does not affect
    them, so the order is fixed without coefficients. At the equilibrium, for any barrier b, the
    constraints hold exactly, the off-diagonal duals are 0, and the gradient with respect to f_i,
    :math:`2 L f_i + \beta_{ii} f_i`, is zero. Hence :math:`\lambda_i = -\beta_{ii} / 2`
    (:attr:`eigenvalues`).

    The duals and the barrier are buffers: they are saved in the ``state_dict`` and are not
    ``parameters()``. Call :meth:`dual_step` once after every step of the optimizer to update them::

        out = loss(batch)
        out["loss_laplacian"].backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.dual_step()

    The batch must be drawn uniformly: prioritized sampling changes the measure under which f is
    orthonormal.

    Args:
        encoder (TensorDictModule): f, any module with one ``out_key``. After the loss is built, the
            module shares its parameters with ``encoder_network_params``.

    Keyword Args:
        barrier (float or str): b. ``"auto"`` (default) keeps it at twice an estimate of λ_d, saved with the loss, as
            in :class:`GraphDrawingLoss`; it does not grow, and the next three arguments about its growth are ignored.
            A number is the initial barrier, which then grows; the authors prove that the equilibrium is stable for
            b > 2.
        dual_step_size (float): step size of the duals. With the automatic barrier it is multiplied by b/2, so that
            it is the same at b = 2. Defaults to ``1e-4`` (the authors' code), suited to about 10⁵ updates; short runs
            need more.
        barrier_step_size (float): step size of the barrier; 0 keeps it constant. Defaults to ``1.0`` (the
            authors' code).
        max_barrier (float): upper bound of the barrier. Defaults to ``1e4`` (the authors' code).
        max_dual (float): the duals are clamped to [-max_dual, max_dual]. Defaults to ``100.0`` (the
            authors' code).
        squared_error_rate (float): rate of the moving average of the squared errors that drive the
            barrier. Defaults to ``0.1`` (the authors' code).
        estimator (str): how the squared expectation is estimated without bias. ``"pairs"``
            (default): a U-statistic over all pairs of different states of the batch. ``"split"``:
            the product of the errors of the two halves of the batch, like the authors' product of
            the errors of two independent batches; needs an even batch.
        successor (NestedKey): where s' is read, with the keys of the encoder under it. Defaults to
            ``"next"``; with n-step transitions pass the key of the state after one step.
        reduction (str): ``"mean"`` (default), ``"sum"`` (B times the mean) or ``"none"``: one value
            per state, whose mean is the loss.

    The returned TensorDict holds ``loss_laplacian`` and, detached, ``smoothness`` (½ E Σ (f_i(s) -
    f_i(s'))²) and ``orthogonality`` (the sum of the squared errors, before the multiplication with
    b). Neither includes the term of the duals. f(s) and f(s') are written into the input as by
    :class:`GraphDrawingLoss`.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.objectives.allo import ALLOLoss
        >>> encoder = TensorDictModule(
        ...     torch.nn.Linear(4, 3), in_keys=["observation"], out_keys=["representation"]
        ... )
        >>> loss = ALLOLoss(encoder)
        >>> batch = TensorDict(
        ...     {"observation": torch.randn(32, 4), "next": {"observation": torch.randn(32, 4)}}, [32]
        ... )
        >>> loss(batch)["loss_laplacian"].backward()
        >>> loss.dual_step()
        >>> loss.eigenvalues.shape
        torch.Size([3])
    """

    # `loss.barrier = 5.0` writes into the buffer.
    _schedulable_buffers = frozenset({"barrier"})

    barrier: Tensor
    duals: Tensor
    squared_errors: Tensor
    num_dual_steps: Tensor

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        *,
        barrier: Barrier = "auto",
        dual_step_size: float = 1e-4,
        barrier_step_size: float = 1.0,
        max_barrier: float = 1e4,
        max_dual: float = 100.0,
        squared_error_rate: float = 0.1,
        estimator: Estimator = "pairs",
        successor: NestedKey = "next",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(encoder, estimator=estimator, successor=successor, reduction=reduction)
        check_barrier(barrier)
        check_positive("dual_step_size", dual_step_size)
        check_positive("max_dual", max_dual)
        if barrier_step_size < 0:
            raise ValueError(f"barrier_step_size must not be negative, got {barrier_step_size}.")
        initial = 2.0 if isinstance(barrier, str) else float(barrier)
        if max_barrier < initial:
            raise ValueError(
                f"max_barrier must not be below the initial barrier {initial}, got {max_barrier}."
            )
        if not 0 < squared_error_rate <= 1:
            raise ValueError(f"squared_error_rate must lie in (0, 1], got {squared_error_rate}.")
        self.dual_step_size = dual_step_size
        self.barrier_step_size = barrier_step_size
        self.max_barrier = max_barrier
        self.max_dual = max_dual
        self.squared_error_rate = squared_error_rate
        self.register_buffer("barrier", torch.tensor(initial))
        if barrier == "auto":
            # The stopped gradients halve the gradient of the barrier: a dimension collapses at λ = b, not at 2b.
            self.automatic_barrier = AutomaticBarrier(2.0)
        # [d, d], lower triangular; d is known at the first forward pass or when a state_dict is
        # loaded.
        self.register_buffer("duals", torch.zeros(0, 0))
        self.register_buffer("squared_errors", torch.zeros(0, 0))
        self.register_buffer("num_dual_steps", torch.zeros((), dtype=torch.int64))
        self._pending: tuple[Tensor, Tensor] | None = None

    def __setattr__(self, name: str, value: object) -> None:
        # A number replaces the automatic barrier; LossModule copies it into the buffer.
        if name == "barrier" and isinstance(value, int | float):
            self.automatic_barrier = None
        super().__setattr__(name, value)

    @property
    def eigenvalues(self) -> Tensor:
        """The estimates λ_i = -β_ii / 2 of the first d eigenvalues, ``[d]``."""
        if not self.duals.numel():
            raise RuntimeError("eigenvalues are known after the first forward pass, not before.")
        return self.duals.diagonal() / -2

    @torch.no_grad()
    def dual_step(self) -> None:
        """Updates duals and barrier with the errors of the last forward pass that had gradients enabled.

        The duals ascend along the errors; the barrier, unless it is automatic, grows with the moving average of the
        squared errors. A second call without a forward pass in between raises an error, so that no batch is counted
        twice.
        """
        if self._pending is None:
            raise RuntimeError(
                "dual_step() needs a forward pass with gradients enabled since its last call."
            )
        errors, squared_errors = self._pending
        self._pending = None
        if self.automatic_barrier is None:
            self.duals.add_(errors, alpha=self.dual_step_size)
        else:
            # Duals are in units of the eigenvalues and damped by the barrier: their step size is proportional to it.
            # They are not updated while a dimension is collapsed. As they are -2λ_i, none exceeds the barrier, 2λ_d.
            barrier = self.barrier.to(errors.dtype)
            unfolded = ~self.automatic_barrier.collapsed.any()
            self.duals.addcmul_(errors, barrier * unfolded, value=self.dual_step_size / 2)
            self.duals.copy_(self.duals.clamp(-2 * barrier, 2 * barrier))
        self.duals.clamp_(-self.max_dual, self.max_dual)
        rate = torch.where(self.num_dual_steps == 0, 1.0, self.squared_error_rate)
        self.squared_errors.lerp_(squared_errors, rate.to(squared_errors.dtype))
        if self.automatic_barrier is None:
            # A single estimate of a square may be negative; the barrier never decreases.
            growth = self.squared_errors.clamp_min(0).mean()
            self.barrier.add_(self.barrier_step_size * growth).clamp_(max=self.max_barrier)
        self.num_dual_steps.add_(1)

    def _terms(self, f: Tensor, f_successor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dimensions = f.shape[-1]
        if not self.duals.numel():
            self._set_dimensions(dimensions, f)
        elif self.duals.shape[0] != dimensions:
            raise ValueError(
                f"the duals are for {self.duals.shape[0]} dimensions, but the encoder's output has {dimensions}."
            )
        if self.automatic_barrier is not None:
            self.barrier.copy_(self.automatic_barrier.value)
        duals, barrier = self.duals.to(f.dtype), self.barrier.to(f.dtype)
        smoothness = 0.5 * (f - f_successor).square().sum(-1)
        estimate = self._pairs if self.estimator == "pairs" else self._split
        orthogonality, errors, squared_errors = estimate(f, f.detach())
        if torch.is_grad_enabled():
            self._pending = (
                errors.detach().to(self.duals.dtype),
                squared_errors.detach().to(self.duals.dtype),
            )
        # Σ_{k≤j} β_jk (f_j ⟦f_k⟧ - δ_jk) of every state.
        dual_term = _bilinear(f, duals) - duals.diagonal().sum()
        return smoothness + dual_term + barrier * orthogonality, smoothness, orthogonality

    @staticmethod
    def _pairs(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """U-statistic: the average of A(u)∘A(v) over pairs u ≠ v, A(u) = tril(f(u) ⟦f(u)⟧ᵀ - I)."""
        size, dimensions = f.shape
        identity = torch.eye(dimensions, dtype=f.dtype, device=f.device)
        total = (f.mT @ g - size * identity).tril()  # Σ_u A(u)
        # Σ_jk A(u)∘A(u), with f² ⟦f²⟧ summed over k ≤ j by a cumulative sum.
        own = (f.square() * g.square().cumsum(-1)).sum(-1) - 2 * (f * g).sum(-1) + dimensions
        all_pairs = _bilinear(f, total) - total.diagonal().sum()
        with torch.no_grad():
            own_matrix = (g.square().mT @ g.square()).tril() - identity * (2 * total + size)
            squared_errors = (total.square() - own_matrix) / (size * (size - 1))
        return (all_pairs - own) / (size - 1), total / size, squared_errors

    @staticmethod
    def _split(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The product, elementwise, of the mean errors of the two halves of the batch."""
        half, dimensions = f.shape[0] // 2, f.shape[1]
        identity = torch.eye(dimensions, dtype=f.dtype, device=f.device)
        u, v = f[:half], f[half:]
        first = (u.mT @ g[:half] / half - identity).tril()
        second = (v.mT @ g[half:] / half - identity).tril()
        of_u = _bilinear(u, second) - second.diagonal().sum()
        of_v = _bilinear(v, first) - first.diagonal().sum()
        return torch.cat([of_u, of_v]), (first + second) / 2, first * second

    def _set_dimensions(self, dimensions: int, like: Tensor) -> None:
        """Allocates the duals, in at least single precision."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.duals = torch.zeros(dimensions, dimensions, dtype=dtype, device=like.device)
        self.squared_errors = torch.zeros_like(self.duals)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: object) -> None:
        # A new loss takes the saved size, so that no forward pass is needed before loading.
        saved = state_dict.get(f"{prefix}duals")
        if saved is not None and saved.numel() and not self.duals.numel():
            like = torch.empty(0, dtype=saved.dtype, device=self.duals.device)
            self._set_dimensions(saved.shape[0], like)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _bilinear(f: Tensor, matrix: Tensor) -> Tensor:
    """f(u)ᵀ M ⟦f(u)⟧ of every row, M lower triangular: ``[B, d] -> [B]``."""
    return (f * (f.detach() @ matrix.mT)).sum(-1)
