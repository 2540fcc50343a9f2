"""Where in a 3D world an agent can stand, as seen from above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["FloorPlan"]


class FloorPlan:
    """The floor of a MiniWorld world: free positions, and numbered cells for counting visits.

    Positions are (x, z) in metres. One is free if it lies inside of a room and an agent there touches no wall.

    Args:
        rooms (sequence of miniworld.miniworld.Room): the rooms and hallways, with their walls generated.
        radius (float): of the agent.
        cell_size (float): side of a cell in metres.
        step (float): how finely the floor is looked at to find the cells that can be entered.

    Attributes:
        outlines (list of np.ndarray): ``[corners, 2]`` of each room.
        walls (np.ndarray): ``[W, 2, 2]``, both ends of each wall.
        low (np.ndarray): the least (x, z) of all rooms.
        high (np.ndarray): the largest (x, z) of all rooms.
        num_cells (int): how many cells an agent can enter.
        cell_centres (np.ndarray): ``[num_cells, 2]``.
    """

    def __init__(
        self, rooms: Sequence[Any], radius: float, cell_size: float = 1.0, step: float = 0.2
    ) -> None:
        if not cell_size > 0:
            raise ValueError(f"cell_size must be positive, got {cell_size}")
        self.outlines = [np.asarray(room.outline)[:, [0, 2]].astype(float) for room in rooms]
        self._normals = [np.asarray(room.edge_norms)[:, [0, 2]].astype(float) for room in rooms]
        self.walls = np.concatenate([room.wall_segs for room in rooms])[:, :, [0, 2]].astype(float)
        self.radius, self.cell_size = radius, cell_size
        corners = np.concatenate(self.outlines)
        self.low, self.high = corners.min(0), corners.max(0)
        shape = np.maximum(1, np.ceil((self.high - self.low) / cell_size - 1e-9)).astype(int)
        self._shape = shape
        fine = self.lattice(step)
        index = self._cell_index(fine)
        entered = np.unique(index[:, 0] * shape[1] + index[:, 1])
        self.num_cells = len(entered)
        cells = np.stack([entered // shape[1], entered % shape[1]], -1)
        self.cell_centres = self.low + (cells + 0.5) * cell_size
        # A cell of which an agent enters less than a step counts as its nearest neighbour.
        every = np.moveaxis(np.indices(tuple(shape)), 0, -1).reshape(-1, 2)
        nearest = ((every[:, None] - cells[None]) ** 2).sum(-1).argmin(1)
        self._number = nearest.reshape(shape).tolist()

    def _cell_index(self, positions: np.ndarray) -> np.ndarray:
        index = np.floor((positions - self.low) / self.cell_size).astype(int)
        return index.clip(0, self._shape - 1)

    def cell_of(self, x: float, z: float) -> int:
        """The number of the cell that a position lies in."""
        i, j = self._cell_index(np.array([x, z]))
        return self._number[i][j]

    def is_free(self, positions: np.ndarray) -> np.ndarray:
        """Whether an agent can stand at each of ``[..., 2]`` positions."""
        inside = np.zeros(positions.shape[:-1], bool)
        for outline, normals in zip(self.outlines, self._normals, strict=True):
            heights = ((positions[..., None, :] - outline) * normals).sum(-1)
            inside |= (heights > 0).all(-1)
        # A doorway is the border of two rooms, where a position is inside of neither.
        on_border = ~inside
        for outline, normals in zip(self.outlines, self._normals, strict=True):
            heights = ((positions[..., None, :] - outline) * normals).sum(-1)
            inside |= on_border & (heights > -1e-6).all(-1)
        start, along = self.walls[:, 0], self.walls[:, 1] - self.walls[:, 0]
        offset = positions[..., None, :] - start
        share = ((offset * along).sum(-1) / (along**2).sum(-1)).clip(0, 1)
        distance = np.linalg.norm(offset - share[..., None] * along, axis=-1).min(-1)
        return inside & (distance >= self.radius)

    def lattice(self, spacing: float) -> np.ndarray:
        """The free positions ``[P, 2]`` of a square grid, by x first."""
        return self.lattice_grid(spacing)[1]

    def lattice_grid(self, spacing: float) -> tuple[np.ndarray, np.ndarray]:
        """Which points of a square grid over the floor are free, ``[I, J]``, and where those are, ``[P, 2]``."""
        counts = np.floor((self.high - self.low) / spacing + 1e-9).astype(int)
        # The same margin on both sides: symmetric worlds get symmetric grids.
        margin = (self.high - self.low - counts * spacing) / 2
        axes = [self.low[k] + margin[k] + spacing * np.arange(counts[k] + 1) for k in range(2)]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
        free = self.is_free(points)
        return free, points[free]
