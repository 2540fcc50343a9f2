"""Samplers of rows: uniform, and by priorities through a sum tree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, Sampler
from torchrl.data.replay_buffers.storages import Storage

from torchrl_dceo.data.persistence import load_state, save_state
from torchrl_dceo.data.ring import StreamRing

__all__ = [
    "SumTree",
    "SumTreeSampler",
    "UniformStepSampler",
]


class SumTree:
    """Draws leaves with probability proportional to their weight.

    A binary tree over a million leaves has twenty levels, and for small batches each level costs
    several calls. Here a node has ``fan_out`` children, whose running sums are searched in one call,
    so a million leaves need four levels. Inner nodes are recomputed from their children, so rounding
    errors do not accumulate. The arrays are small and on the CPU, where NumPy calls are cheaper than
    torch's.

    Args:
        size (int): the number of leaves.
        fan_out (int, optional): children of a node. Defaults to ``32``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.data.samplers import SumTree
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
        # Leaves first, the root's children last; each row of a level's table is the children of one node.
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
        """Sets the weights of leaves; of several weights for one leaf the largest is used.

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

        A leaf of weight zero is never returned, even with rounding errors.

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
            # The sum before the first child is 0, before any other the running sum of the previous child.
            rest = rest - (running[item, child - 1] * (child > 0))[:, None]
            node = node * self.fan_out + child
        return torch.from_numpy(node)

    def state(self) -> list[Tensor]:
        """Copies of all levels. The inner ones too: summed in another order they could differ in a bit."""
        return [torch.from_numpy(level.copy()) for level in self._levels]

    def load(self, state: list[Tensor]) -> None:
        """Restores the result of :meth:`state` of a tree of the same shape."""
        for level, saved in zip(self._levels, state, strict=True):
            level[:] = saved.numpy()


class _Seeded(Sampler):
    """A sampler with a generator of its own, which is saved with it."""

    _generator: torch.Generator

    def _seed(self, seed: int | None) -> None:
        # Without a seed, one is drawn from the global generator, so that `torch.manual_seed` controls it.
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def generator(self) -> torch.Generator:
        """The generator in use: the buffer's, if it has one, else the sampler's own."""
        return self._generator if self._rng is None else self._rng

    def dumps(self, path: Any) -> None:
        """Saves the state in the directory ``path``, without pickle."""
        save_state(path, self.state_dict())

    def loads(self, path: Any) -> None:
        """Restores the state from the directory ``path``."""
        self.load_state_dict(load_state(path))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_rng"] = None
        state["_generator"] = self._generator.get_state()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        generator = torch.Generator()
        generator.set_state(state["_generator"])
        self.__dict__.update(state, _generator=generator)


class UniformStepSampler(_Seeded):
    """Draws uniformly, with replacement, from all rows of a ring that can be sampled.

    Exactly uniform over the steps of all streams, also if these have different numbers of steps.

    Args:
        ring (StreamRing): the positions of the rows.
        seed (int, optional): seed of its generator. Default: drawn from torch's global one.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.data.ring import StreamRing
        >>> from torchrl_dceo.data.samplers import UniformStepSampler
        >>> ring = StreamRing(rows_per_stream=8)
        >>> _ = ring.advance(torch.tensor([[False, True, False]]))
        >>> sorted(set(UniformStepSampler(ring, seed=0).sample(None, 100)[0].tolist()))
        [0, 1]
    """

    def __init__(self, ring: StreamRing, seed: int | None = None) -> None:
        self.ring = ring
        self._seed(seed)

    def sample(self, storage: Storage | None, batch_size: int) -> tuple[Tensor, dict]:
        """Draws ``batch_size`` rows."""
        if not self.ring.size:
            raise RuntimeError(
                "The replay buffer contains no transition that can be sampled: a step can be sampled once "
                "the next step has been written or its episode has ended."
            )
        return self.ring.draw(batch_size, self.generator), {}

    def _sampleable_count(self, storage: Storage, batch_size: int) -> int:
        return self.ring.size

    def _empty(self) -> None:
        return

    def state_dict(self) -> dict[str, Any]:
        """The state of the generator."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the generator."""
        self.generator.set_state(state_dict["generator"].clone())


# TorchRL's buffers pass priorities only to subclasses of its PrioritizedSampler. Nothing of that class
# is used: its trees need a compiled extension, which 0.14.1 cannot load with torch 2.13.0.
class SumTreeSampler(_Seeded, PrioritizedSampler):
    r"""Prioritized sampling (`Schaul et al., 2016 <https://arxiv.org/abs/1511.05952>`_), vectorised.

    Row i, of priority :math:`p_i`, is drawn with probability

    .. math:: P(i) = \frac{(p_i + \epsilon)^\alpha}{\sum_j (p_j + \epsilon)^\alpha}

    and gets the importance weight :math:`w_i = P(i)^{-\beta} / \max_j P(j)^{-\beta}` in
    ``"priority_weight"``, where the maximum is over the batch drawn (TorchRL's ``PrioritizedSampler``
    takes it over the buffer, which needs a second tree; the difference is a common factor of the
    batch). New rows get the largest priority set so far (at least 1). Works in any one-dimensional TorchRL
    buffer, in the place of ``PrioritizedSampler``.

    Args:
        max_capacity (int): rows of the storage.
        alpha (float, optional): how much priorities count; 0 is uniform. Defaults to ``0.6``.
        beta (float, optional): how much the weights correct for it; may be changed at any time (for
            example by :class:`~torchrl.data.replay_buffers.LinearScheduler`). Defaults to ``0.4``.
        eps (float, optional): added to every priority that is set, so that a TD error of exactly 0
            does not remove a row. With 0, a row of priority 0 is never drawn. Defaults to ``0.0``.
        reduction (str, optional): how TorchRL reduces priorities of more than one value a row.
            Defaults to ``"max"``.
        stratified (bool, optional): draw one row from each of ``batch_size`` equal parts of the
            total priority. Defaults to ``False``: independent draws.
        seed (int, optional): seed of its generator. Default: drawn from torch's global one.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> from torchrl_dceo.data import SumTreeSampler
        >>> sampler = SumTreeSampler(10, alpha=1.0, beta=1.0, seed=0)
        >>> rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler, batch_size=8)
        >>> rows = rb.extend(TensorDict({"x": torch.arange(3)}, [3]))
        >>> rb.update_priority(rows, torch.tensor([0.0, 1.0, 3.0]))
        >>> batch = rb.sample()
        >>> drawn = zip(batch["x"].tolist(), batch["priority_weight"].tolist())
        >>> sorted({(x, round(weight, 2)) for x, weight in drawn})  # row 0 is never drawn
        [(1, 1.0), (2, 0.33)]
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 0.0,
        *,
        reduction: str = "max",
        stratified: bool = False,
        seed: int | None = None,
    ) -> None:
        for name, value in {"alpha": alpha, "beta": beta, "eps": eps}.items():
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {value}.")
        self._max_capacity = max_capacity
        self._alpha, self._beta, self._eps = float(alpha), float(beta), float(eps)
        self.reduction = reduction
        self.stratified = stratified
        self._seed(seed)
        self._empty()

    def _empty(self) -> None:
        self._tree = SumTree(self._max_capacity)
        # Rows that must not be drawn, even if a late update sets their priority.
        self._barred = np.zeros(self._max_capacity, dtype=np.bool_)
        self._largest = 1.0

    @property
    def device(self) -> torch.device:
        """The device of the tree: always the CPU."""
        return torch.device("cpu")

    @property
    def alpha(self) -> float:
        """How much priorities count; a new value re-weights all rows at once."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        if not 0.0 < value < math.inf or self._alpha == 0.0:
            raise ValueError(
                f"alpha can be changed between positive values only, got {value} after {self._alpha}."
            )
        self._tree.fill(self._tree.leaves ** (float(value) / self._alpha))
        self._alpha = float(value)

    @property
    def default_priority(self) -> float:
        """The priority of new rows: the largest one set so far, and at least 1."""
        return self._largest

    def _weight(self, priority: npt.NDArray) -> npt.NDArray:
        base = priority + self._eps
        return base**self._alpha * (base > 0)  # 0 ** 0 is 1

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict]:
        """Draws ``batch_size`` rows and their importance weights."""
        tree = self._tree
        total = tree.total
        if not total > 0.0:
            raise RuntimeError(
                "There is no row with a positive priority to sample: the buffer is empty or too short, "
                "or all priorities are zero (set eps > 0 to prevent that)."
            )
        # float32 has too few digits to reach every row of a large buffer.
        mass = torch.rand(batch_size, dtype=torch.float64, generator=self.generator)
        if self.stratified:
            mass = (mass + torch.arange(batch_size)) / batch_size
        index = tree.find(mass * total)
        weight = tree.get(index).numpy()
        weight = (weight / weight.min()) ** -self._beta
        return index, {"priority_weight": torch.from_numpy(weight.astype(np.float32))}

    def _sampleable_count(self, storage: Storage, batch_size: int) -> int:
        return int(self._tree.total > 0.0)

    def set_live(self, index: Tensor, live: Tensor) -> None:
        """Sets which rows can be drawn.

        Args:
            index (Tensor): rows, int64 ``[K]``.
            live (Tensor): bool ``[K]``. If true, the row gets the priority of a new one. If false, it
                is not drawn and updates of its priority are ignored, until it is set live again.
        """
        row, alive = index.numpy(), live.numpy()
        self._barred[row] = ~alive
        self._tree.set(row, alive * (self._largest + self._eps) ** self._alpha)

    def extend(self, index: Tensor) -> None:
        """New rows: they get the largest priority so far."""
        index = torch.as_tensor(index, dtype=torch.int64).flatten()
        self.set_live(index, torch.ones_like(index, dtype=torch.bool))

    def add(self, index: int | Tensor) -> None:
        """A new row: it gets the largest priority so far."""
        self.extend(torch.as_tensor(index).view(1))

    def mark_update(self, index: int | Tensor, *, storage: Storage | None = None) -> None:
        """Rows whose content changed are new rows."""
        self.extend(torch.as_tensor(index))

    @torch.no_grad()
    def update_priority(
        self, index: int | Tensor, priority: float | Tensor, *, storage: Storage | None = None
    ) -> None:
        """Sets priorities; of several for one row the largest is used.

        Args:
            index (int or Tensor): rows. Negative ones are ignored, as in TorchRL.
            priority (float or Tensor): one priority for all rows, or one per row; non-negative and finite.
            storage (Storage, optional): unused.
        """
        index = torch.as_tensor(index, dtype=torch.int64)
        if index.ndim > 1 and index.shape[-1] != 1:
            raise ValueError(
                f"SumTreeSampler needs a storage of one dimension, got indices of shape {tuple(index.shape)}."
            )
        row = index.reshape(-1).cpu().numpy()
        value = torch.as_tensor(priority).detach().reshape(-1).cpu().double().numpy()
        if value.size not in (1, row.size):
            raise ValueError(
                f"priority must be one number or one a row, got {value.size} for {row.size} rows."
            )
        kept = row >= 0
        if not kept.all():
            row, value = row[kept], value[kept] if value.size > 1 else value
        if not row.size:
            return
        low, high = float(value.min()), float(value.max())
        if not (low >= 0.0 and high < math.inf):
            raise ValueError(f"Priorities must be finite and at least 0, got {low} to {high}.")
        self._largest = max(self._largest, high)
        self._tree.set(row, self._weight(value) * ~self._barred[row])

    def state_dict(self) -> dict[str, Any]:
        """The weights of all rows, the settings and the generator, as plain values."""
        return {
            "alpha": self._alpha,
            "beta": float(self._beta),
            "eps": self._eps,
            "largest": self._largest,
            "tree": self._tree.state(),
            "barred": torch.from_numpy(self._barred.copy()),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state of a sampler of the same capacity."""
        rows = state_dict["barred"].numel()
        if rows != self._max_capacity:
            raise ValueError(
                f"The saved sampler has {rows} rows, this one {self._max_capacity}: build it with the "
                "same max_capacity."
            )
        self._alpha, self._beta = state_dict["alpha"], state_dict["beta"]
        self._eps = state_dict["eps"]
        self._largest = state_dict["largest"]
        self._tree.load(state_dict["tree"])
        self._barred[:] = state_dict["barred"].numpy()
        self.generator.set_state(state_dict["generator"].clone())
