"""Every transition of the symmetric walk on small graphs, as states and successors: rho is uniform."""

from __future__ import annotations

import torch
from torch import Tensor


def path_graph(n: int) -> tuple[Tensor, Tensor]:
    """A path; the walk stays put at a wall."""
    s = torch.arange(n)
    return s.repeat(2), torch.cat([(s - 1).clamp_min(0), (s + 1).clamp_max(n - 1)])


def grid_graph(height: int, width: int) -> tuple[Tensor, Tensor]:
    """A grid with four moves; the walk stays put at a wall."""
    s = torch.arange(height * width)
    row, column = s // width, s % width
    successors = [
        (row + dr).clamp(0, height - 1) * width + (column + dc).clamp(0, width - 1)
        for dr, dc in ((0, 1), (0, -1), (1, 0), (-1, 0))
    ]
    return s.repeat(4), torch.cat(successors)
