"""A sum tree with a wide fan-out: sampling in proportion to weights, a whole batch at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["SumTree"]


class SumTree:
    """Draws leaves with probability proportional to their weight.

    A binary tree over a million leaves has twenty levels, and on small batches every level costs a
    handful of calls. A node here has ``fan_out`` children instead, whose running sums are searched
    at once, so that four levels serve a million leaves. Inner nodes are always summed anew from
    their children, never corrected by a difference: rounding errors do not pile up. The arrays are
    small and on the CPU, where NumPy calls are cheaper than torch's.

    Args:
        size (int): the number of leaves.
        fan_out (int, optional): children of a node. Defaults to ``32``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.data.sum_tree import SumTree
        >>> tree = SumTree(1000)
        >>> tree.set(torch.tensor([3, 500]), torch.tensor([1.0, 3.0]))
        >>> tree.total
        4.0
        >>> tree.find(torch.tensor([0.0, 0.99, 1.0, 3.99], dtype=torch.float64))
        tensor([  3,   3, 500, 500])
    """

    def __init__(self, size: int, fan_out: int = 32) -> None:
        if size < 1:
            raise ValueError(f"A sum tree needs at least one leaf, got size={size}.")
        if fan_out < 2:
            raise ValueError(f"fan_out must be at least 2, got {fan_out}.")
        self.size = size
        self.fan_out = fan_out
        # Leaves first, the root's children last; each level is a table of whole families of children.
        self._levels: list[npt.NDArray[np.float64]] = []
        families = size
        while families > 1 or not self._levels:
            families = -(-families // fan_out)
            self._levels.append(np.zeros((families, fan_out)))

    @property
    def leaves(self) -> Tensor:
        """The weights of all leaves, ``[size]`` (a view: change them with :meth:`set` only)."""
        return torch.from_numpy(self._levels[0].reshape(-1)[: self.size])

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._levels[-1].sum())

    def get(self, index: Tensor) -> Tensor:
        """The weights of the leaves ``index``."""
        return torch.from_numpy(self._levels[0].reshape(-1)[index.numpy()])

    def set(self, index: Tensor | npt.NDArray, weight: Tensor | npt.NDArray) -> None:
        """Sets leaves; of several weights for one leaf the largest counts.

        Args:
            index (Tensor or array): the leaves, int64 ``[K]``.
            weight (Tensor or array): their weights, non-negative, ``[K]``.
        """
        node = np.asarray(index)
        leaves = self._levels[0].reshape(-1)
        # The result must not depend on the order of duplicates.
        leaves[node] = 0.0
        np.maximum.at(leaves, node, np.asarray(weight, dtype=np.float64))
        self._sum_up(node)

    def _sum_up(self, node: npt.NDArray) -> None:
        for level, parent in zip(self._levels[:-1], self._levels[1:], strict=True):
            node = node // self.fan_out
            parent.reshape(-1)[node] = level[node].sum(1)

    def fill(self, weights: Tensor) -> None:
        """Sets all leaves at once, ``[size]``."""
        self._levels[0].reshape(-1)[: self.size] = weights.numpy()
        for level, parent in zip(self._levels[:-1], self._levels[1:], strict=True):
            parent.reshape(-1)[: level.shape[0]] = level.sum(1)

    def find(self, mass: Tensor) -> Tensor:
        """The leaves at which the running sum of the weights first exceeds ``mass``.

        A leaf of weight zero is never found, whatever rounding does.

        Args:
            mass (Tensor): float64 in ``[0, total)``, ``[K]``.
        """
        rest = mass.numpy()[:, None]
        node = np.zeros(rest.shape[0], dtype=np.int64)
        item = np.arange(rest.shape[0])
        for level in reversed(self._levels):
            running = level[node].cumsum(1)
            # A node and the running sum of its children may differ in the last bit.
            rest = np.minimum(rest, np.nextafter(running[:, -1:], 0.0))
            child = (running > rest).argmax(1)
            # The sum before the first child is 0, that before another one is the running sum of its elder.
            rest = rest - (running[item, child - 1] * (child > 0))[:, None]
            node = node * self.fan_out + child
        return torch.from_numpy(node)

    def state(self) -> list[Tensor]:
        """Copies of all levels. The inner ones too: summed in another order they could differ in a bit."""
        return [torch.from_numpy(level.copy()) for level in self._levels]

    def load(self, state: list[Tensor]) -> None:
        """Restores what :meth:`state` gave, from a tree of the same shape."""
        for level, saved in zip(self._levels, state, strict=True):
            level[:] = saved.numpy()
