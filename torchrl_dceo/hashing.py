"""An observation as a number: exact, as a coarse cell, or by the signs of random projections.

Coverage, counts and distinct samples need to know whether two observations are the same state, also where an
environment names no state. This module imports torch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

__all__ = ["HashKind", "ObservationHasher"]

HashKind = Literal["auto", "exact", "cells", "simhash"]
_EXACT = 2**13  # numbers of an image that is still hashed as it is
_CELLS = (8, 11)  # height and width of a cell's image: Ecoffet et al. 2021, on Atari
_LEVELS = 8  # of its grey values: the same
_SEED = 20_231  # the same numbers in every process and every run


class ObservationHasher(nn.Module):
    """Maps observations ``[*batch, *shape]`` to numbers ``[*batch]``, int64 and never negative.

    Three kinds:

    - ``"exact"``: a number for the very bytes. Two observations share one by chance alone, at most once in 2⁴⁰ pairs.
    - ``"cells"``: images in grey, averaged over 8 x 11 fields and rounded to 8 levels, as Go-Explore's cells
      (Ecoffet et al. 2021): images that look alike share a number.
    - ``"simhash"``: the signs of 32 random projections (Charikar 2002; Tang et al. 2017): vectors of about the same
      direction share a number.

    ``"auto"`` takes ``"exact"`` for whole numbers (bytes, indices) up to 8192 entries, ``"cells"`` for larger images, and
    ``"simhash"`` for floats, which hardly ever repeat to the last digit.

    Args:
        shape (sequence of int): of one observation; images are ``[C, H, W]``.

    Keyword Args:
        kind (str, optional): ``"auto"``, ``"exact"``, ``"cells"`` or ``"simhash"``. Default: ``"auto"``.
        size (int, optional): numbers lie below it, if given: places of a table. Of n distinct observations about
            n²/(2 size) pairs share a place.
        num_projections (int, optional): signs of ``"simhash"``. Default: 32.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.hashing import ObservationHasher
        >>> hasher = ObservationHasher((3, 5, 5))
        >>> images = torch.zeros(4, 3, 5, 5, dtype=torch.uint8)
        >>> images[2, 0, 0, 0] = 1
        >>> numbers = hasher(images)
        >>> (numbers == numbers[0]).tolist()
        [True, True, False, True]
    """

    weights: Tensor
    projections: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        *,
        kind: HashKind = "auto",
        size: int | None = None,
        num_projections: int = 32,
    ) -> None:
        super().__init__()
        if kind not in get_args(HashKind):
            raise ValueError(f"kind must be one of {', '.join(get_args(HashKind))}, got {kind!r}")
        self.shape = torch.Size(shape)
        if kind == "cells" and len(self.shape) != 3:
            raise ValueError(
                f"kind='cells' needs images [C, H, W], got observations of shape {list(shape)}: take 'simhash'"
            )
        if size is not None and size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.kind, self.size = kind, size
        numbers = max(self.shape.numel(), num_projections, _CELLS[0] * _CELLS[1])
        generator = torch.Generator().manual_seed(_SEED)
        # Odd 63-bit factors: a multilinear hash modulo 2^64.
        words = torch.randint(2**62, (numbers,), generator=generator) * 2 + 1
        normal = torch.randn(num_projections, self.shape.numel(), generator=generator)
        # Not saved: they follow from the seed above.
        self.register_buffer("weights", words, persistent=False)
        self.register_buffer("projections", normal, persistent=False)

    def kind_for(self, dtype: torch.dtype) -> HashKind:
        """The kind that observations of that type get."""
        if self.kind != "auto":
            return self.kind
        if dtype.is_floating_point:
            return "simhash"
        large = len(self.shape) == 3 and self.shape.numel() > _EXACT
        return "cells" if large else "exact"

    def forward(self, observation: Tensor) -> Tensor:
        """Maps observations to numbers."""
        batch = observation.shape[: observation.ndim - len(self.shape)]
        if observation.shape[len(batch) :] != self.shape:
            raise ValueError(
                f"observations must have the shape {list(self.shape)} after their batch dimensions, got "
                f"{list(observation.shape)}"
            )
        kind = self.kind_for(observation.dtype)
        if kind == "cells":
            words = _cells(observation.reshape(-1, *self.shape))
        else:
            words = observation.reshape(-1, self.shape.numel())
        if kind == "simhash":
            words = (words.to(self.projections.dtype) @ self.projections.T > 0).long()
        elif words.is_floating_point():
            # The bits themselves, with one zero instead of two.
            words = (words.float() + 0.0).contiguous().view(torch.int32)
        total = (words.long() * self.weights[: words.shape[-1]]).sum(-1)
        number = _mixed(total) & (2**63 - 1)
        return (number if self.size is None else number % self.size).view(batch)


def _cells(images: Tensor) -> Tensor:
    """Grey images of a few fields and levels, flat."""
    floats = images.float() if images.is_floating_point() else images.float() / 255
    small = nn.functional.adaptive_avg_pool2d(floats.mean(1, keepdim=True), _CELLS)
    return (small.flatten(1) * _LEVELS).floor().clamp(0, _LEVELS - 1)


def _mixed(words: Tensor) -> Tensor:
    """The finalizer of SplitMix64: every bit of the input reaches every bit of the output."""
    words = words ^ ((words >> 30) & (2**34 - 1))
    words = words * -4658895280553007687  # 0xBF58476D1CE4E5B9
    words = words ^ ((words >> 27) & (2**37 - 1))
    words = words * -7723592293110705685  # 0x94D049BB133111EB
    return words ^ ((words >> 31) & (2**33 - 1))
