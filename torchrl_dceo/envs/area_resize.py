"""Shrinking grey pictures by area averaging, in torch alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["AreaResize"]


class AreaResize:
    """Scales grey pictures to a smaller size: each new pixel is the mean of the area that it covers.

    This is what OpenCV calls ``INTER_AREA``, the rule of the Atari literature, up to rounding (at most one grey level).
    It is ours because OpenCV and torchvision are no dependencies, and torch's own ``interpolate(mode="area")`` averages
    over whole pixels only: 210 rows onto 84 are two and a half rows each.

    The weights of a row repeat after every ``gcd`` of the two sizes (210 rows are 42 blocks of 5, which give 2 each),
    so that the picture is multiplied by two small matrices: fifty times less work than by the whole ones.

    Args:
        size (tuple of int): rows and columns of the pictures that it is given.
        new_size (tuple of int): rows and columns of those that it returns, none larger.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs.area_resize import AreaResize
        >>> AreaResize((1, 5), (1, 2))(torch.tensor([[10, 20, 30, 40, 50]], dtype=torch.uint8))
        tensor([[18, 42]], dtype=torch.uint8)
    """

    def __init__(self, size: tuple[int, int], new_size: tuple[int, int]) -> None:
        for name, old, new in zip(("rows", "columns"), size, new_size, strict=True):
            if not 1 <= new <= old:
                raise ValueError(f"new_size must have 1 to {old} {name}, got {new}")
        self.size, self.new_size = tuple(size), tuple(new_size)
        self._rows, self._columns = (
            _block_weights(old, new) for old, new in zip(size, new_size, strict=True)
        )

    def __call__(self, pictures: Tensor) -> Tensor:
        """Maps ``uint8 [*, H, W]`` to ``uint8 [*, new H, new W]``, rounded to the nearest level."""
        *lead, _, width = pictures.shape
        rows, columns = self._rows.shape[1], self._columns.shape[1]
        blocks = pictures.to(torch.float32).view(-1, rows, width)
        tall = torch.matmul(self._rows, blocks).view(-1, columns)
        wide = torch.matmul(tall, self._columns.T)
        return wide.round_().to(torch.uint8).view(*lead, *self.new_size)


def _block_weights(old: int, new: int) -> Tensor:
    """How much each of the ``old / gcd`` pixels of a block counts in each of its ``new / gcd``."""
    blocks = math.gcd(old, new)
    old, new = old // blocks, new // blocks
    scale = old / new
    weights = torch.zeros(new, old)
    for i in range(new):
        for j in range(old):
            overlap = min((i + 1) * scale, j + 1) - max(i * scale, j)
            weights[i, j] = max(0.0, overlap) / scale
    return weights
