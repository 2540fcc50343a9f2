"""The barrier of a Laplacian objective chosen from the data: above half of the largest eigenvalue wanted."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

__all__ = ["AutomaticBarrier"]

_LOGGER = logging.getLogger("torchrl_dceo")
_LARGEST_EIGENVALUE = 2.0  # of any Laplacian of a stationary walk
_FLOOR = 5e-3  # of the eigenvalue: where it is 0, as in parts that are not connected, a barrier is needed still
_RIDGE = 1e-7  # of the mean second moment, so that a factorisation exists
_CHECK_PERIOD = 500  # forward passes between two looks at what has collapsed


class AutomaticBarrier(nn.Module):
    r"""Keeps a barrier safely above :math:`\lambda_d / 2`, whatever the environment.

    With a barrier :math:`\beta` the optimum of the penalty objectives is shrunk to
    :math:`\mathbb E f_i^2 = 1 - \lambda_i / (2\beta)`: below :math:`\lambda_d / 2` dimensions collapse, far above it
    the differences between eigenvalues drown in the noise of the orthogonality. Neither can be known before the
    spectrum is. So running averages of :math:`A = \tfrac12 E (f(s) - f(s'))(f(s) - f(s'))^\top` and
    :math:`M = E f f^\top` are kept, and the barrier is ``factor`` times the largest :math:`\lambda` of
    :math:`A r = \lambda M r`: the Rayleigh quotient of the roughest direction that f has now, in whatever rotation. It
    begins high, where a fresh network is rough, and falls as f becomes smooth.

    A dimension that adds (next to) nothing to those before it, by the Cholesky factor of M, has collapsed or has not
    unfolded yet. While there is one, the barrier is that of the largest eigenvalue there can be, 2, beneath which no
    dimension stays collapsed; :attr:`collapsed` tells which, and a warning names those that stay.

    Args:
        factor (float): the barrier in units of the estimated :math:`\lambda_d`. At 1, twice what is needed, the last
            dimension ends at :math:`E f_d^2 = 1/2`.

    Keyword Args:
        rate (float): of the running averages, for each batch. Default: ``0.02``.
        threshold (float): a dimension whose own second moment is below this share of the mean has collapsed.
            Default: ``0.05``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.objectives._barrier import AutomaticBarrier
        >>> barrier = AutomaticBarrier(1.0)
        >>> f = torch.tensor([[1.0, 1.0], [1.0, -1.0]])  # the eigenfunctions of two states ...
        >>> barrier.update(f, f.flip(0))  # ... that always follow each other: λ is 0 and 2
        >>> round(float(barrier.value), 3), barrier.collapsed.tolist()
        (2.0, [False, False])
    """

    smoothness: Tensor
    moments: Tensor
    weight: Tensor
    value: Tensor
    collapsed: Tensor

    def __init__(self, factor: float, *, rate: float = 0.02, threshold: float = 0.05) -> None:
        super().__init__()
        self.factor = factor
        self.rate = rate
        self.threshold = threshold
        # [d, d]; d is known at the first batch or when a state_dict is loaded.
        self.register_buffer("smoothness", torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("moments", torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))
        self.register_buffer("value", torch.tensor(factor * _LARGEST_EIGENVALUE))
        self.register_buffer("collapsed", torch.zeros(0, dtype=torch.bool))
        self._passes = 0
        self._reported: list[int] = []

    @torch.no_grad()
    def update(self, f: Tensor, f_successor: Tensor) -> None:
        """Counts a batch of pairs, ``[B, d]`` each, and moves the barrier."""
        size, dimensions = f.shape
        if self.moments.shape[0] != dimensions or self.moments.device != f.device:
            self._set_dimensions(dimensions, f.device)
        # Double precision: a direction that is all but collapsed is a small difference of large moments.
        rows = f.detach().to(self.moments.dtype)
        change = rows - f_successor.detach().to(self.moments.dtype)
        self.smoothness.lerp_(change.mT @ change / (2 * size), self.rate)
        self.moments.lerp_(rows.mT @ rows / size, self.rate)
        self.weight.lerp_(torch.ones_like(self.weight), self.rate)
        moments = self.moments / self.weight
        scale = moments.diagonal().mean()
        identity = torch.eye(dimensions, dtype=moments.dtype, device=moments.device)
        root, _ = torch.linalg.cholesky_ex(moments + (_RIDGE * scale + 1e-30) * identity)
        # The square of the diagonal is what a dimension adds to those before it.
        self.collapsed = ~(root.diagonal().square() > self.threshold * scale + 1e-20)
        half = torch.linalg.solve_triangular(root, self.smoothness / self.weight, upper=False)
        quotients = torch.linalg.solve_triangular(root, half.mT, upper=False)
        # Where everything is 0 or not finite, the matrix of the eigenvalues must be neither.
        whole = torch.nan_to_num((quotients + quotients.mT) / 2, posinf=_LARGEST_EIGENVALUE)
        largest = torch.linalg.eigvalsh(whole)[-1]
        largest = torch.where(self.collapsed.any(), _LARGEST_EIGENVALUE, largest)
        value = self.factor * largest.clamp(_FLOOR, _LARGEST_EIGENVALUE)
        self.value.copy_(value)
        if not torch.compiler.is_compiling():
            self._passes += 1
            if self._passes % _CHECK_PERIOD == 0:
                self._report()

    def _report(self) -> None:
        """Names the dimensions that have collapsed, once, and those that are back."""
        if self.collapsed.is_meta:
            return
        now = (self.collapsed.nonzero().flatten() + 1).tolist()
        if now and now != self._reported:
            _LOGGER.warning(
                "dimensions %s of the Laplacian representation have collapsed after %d updates; the barrier is "
                "raised to %.3g until they are back",
                now,
                self._passes,
                float(self.value),
            )
        elif self._reported and not now:
            _LOGGER.info("all dimensions of the Laplacian representation are back")
        self._reported = now

    def _set_dimensions(self, dimensions: int, device: torch.device) -> None:
        self.smoothness = torch.zeros(dimensions, dimensions, dtype=torch.float64, device=device)
        self.moments = torch.zeros_like(self.smoothness)
        self.weight = torch.zeros((), dtype=torch.float64, device=device)
        self.value = self.value.to(device)
        self.collapsed = torch.zeros(dimensions, dtype=torch.bool, device=device)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: object) -> None:
        # A fresh module takes the size of what was saved: no batch is needed before loading.
        saved = state_dict.get(f"{prefix}moments")
        if saved is not None and saved.shape != self.moments.shape:
            self._set_dimensions(saved.shape[0], self.moments.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
