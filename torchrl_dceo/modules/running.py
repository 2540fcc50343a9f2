"""Statistics of everything seen so far, kept as buffers: moments, and a normaliser of observations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["RunningMoments", "RunningNormalizer"]


class RunningMoments(nn.Module):
    """Mean and variance over all batches so far, one for each feature, saved with the module.

    Batches are merged by the parallel formula of Chan, Golub & LeVeque (1983), which loses no precision to large
    means.

    Args:
        shape (sequence of int): the shape of one sample. Default: ``()``, a number.

    Keyword Args:
        eps (float): added to the variance before its root is taken. Default: ``1e-8``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules import RunningMoments
        >>> moments = RunningMoments()
        >>> moments.update(torch.tensor([1.0, 2.0]))
        >>> moments.update(torch.tensor([3.0]))
        >>> moments.mean, moments.var
        (tensor(2.), tensor(0.6667))
    """

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, shape: Sequence[int] = (), *, eps: float = 1e-8) -> None:
        super().__init__()
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps}")
        self.eps = eps
        # int64: a float32 stops counting single samples after 16 million.
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(tuple(shape)))
        self.register_buffer("var", torch.ones(tuple(shape)))

    @property
    def std(self) -> Tensor:
        """The standard deviation, never 0."""
        return (self.var + self.eps).sqrt()

    @torch.no_grad()
    def update(self, batch: Tensor) -> None:
        """Counts a batch ``[*, *shape]``."""
        shape = self.mean.shape
        if batch.shape[batch.ndim - len(shape) :] != shape:
            raise ValueError(
                f"statistics of samples of shape {tuple(shape)} cannot take a batch of {tuple(batch.shape)}"
            )
        rows = batch.reshape(-1, *shape).to(self.mean.dtype)
        if not rows.shape[0]:
            return
        self.count += rows.shape[0]
        weight = (rows.shape[0] / self.count.double()).to(rows.dtype)
        mean = rows.mean(0)
        variance = (rows - mean).square().mean(0)
        delta = mean - self.mean
        self.mean += weight * delta
        self.var.lerp_(variance, weight)
        self.var += weight * (1 - weight) * delta.square()


class RunningNormalizer(RunningMoments):
    """Observations minus their mean, divided by their standard deviation, clipped: each pixel by its own statistics.

    Calling it changes nothing; :meth:`update` counts a batch, once, however many networks begin with the module.
    A pixel that never changed and now does is far from its mean: it is clipped, and so seen as new.

    Args:
        shape (sequence of int): the shape of one observation.

    Keyword Args:
        clip (float): the largest absolute value of the result. Default: ``5.0``, as in Burda et al. (2019).
        eps (float): added to the variance before its root is taken. Default: ``1e-8``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules import RunningNormalizer
        >>> normalize = RunningNormalizer((2,))
        >>> normalize.update(torch.tensor([[0.0, 7.0], [2.0, 7.0]]))
        >>> normalize(torch.tensor([[2.0, 7.0], [9.0, 8.0]]))
        tensor([[1., 0.],
                [5., 5.]])
    """

    def __init__(self, shape: Sequence[int], *, clip: float = 5.0, eps: float = 1e-8) -> None:
        super().__init__(shape, eps=eps)
        if not (clip > 0 and math.isfinite(clip)):
            raise ValueError(f"clip must be positive and finite, got {clip}")
        self.clip = clip

    def forward(self, observation: Tensor) -> Tensor:
        """Normalises observations ``[*, *shape]`` of any dtype."""
        return ((observation.to(self.mean.dtype) - self.mean) / self.std).clamp(
            -self.clip, self.clip
        )
