"""A sampler that is uniform over distinct observations, regardless of their number of visits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from torchrl_dceo.data.samplers import _Seeded

__all__ = ["DistinctSampler"]


class DistinctSampler(_Seeded):
    """Draws a distinct observation uniformly, then one of its rows uniformly, or one of its newest.

    Uniform sampling of rows weights a state by its visits: if all episodes start in one state, states at the frontier
    have almost no weight. Here every distinct observation has the same weight. If all observations differ, it is the
    same as uniform sampling.

    With ``newest=k`` only the last k rows of each observation are drawn. All visited observations stay in the
    sample, but old transitions do not: after a change of the environment, k visits of a state replace its outdated
    transitions.

    Observations are identified by their hash (see :mod:`torchrl_dceo.hashing`), computed once, when a row is written.
    The distinct hashes are kept in a dense list; one without rows is replaced by the last of the list. The rows of
    each hash are in the order in which they became valid for sampling, so that the row to be removed is nearly always
    the first. Drawing, adding and overwriting a row take constant (amortised) time at any size.

    :func:`~torchrl_dceo.data.make_replay_buffer` builds and feeds one with ``sampler="distinct"`` or
    ``uniform_measure="distinct"``.

    Args:
        max_capacity (int): rows of the storage.
        seed (int, optional): seed of its generator. Default: drawn from torch's global one.

    Keyword Args:
        newest (int, optional): draw only from this many newest rows of an observation. Default: ``None``, all rows.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.data import DistinctSampler
        >>> sampler = DistinctSampler(10, seed=0)
        >>> rows = torch.arange(10)
        >>> sampler.write(rows, torch.tensor([7] * 9 + [8]))  # nine visits of one state, one of another
        >>> sampler.set_live(rows, torch.ones(10, dtype=torch.bool))
        >>> drawn, _ = sampler.sample(None, 1000)
        >>> sampler.num_distinct, 450 < int((drawn == 9).sum()) < 550
        (2, True)
    """

    def __init__(
        self, max_capacity: int, seed: int | None = None, *, newest: int | None = None
    ) -> None:
        if max_capacity < 1:
            raise ValueError(f"max_capacity must be at least 1, got {max_capacity}.")
        if newest is not None and newest < 1:
            raise ValueError(f"newest must be at least 1, got {newest}: None draws all rows.")
        self._max_capacity = max_capacity
        self.newest = newest
        self._seed(seed)
        self._empty()

    def _empty(self) -> None:
        self._hash = np.zeros(self._max_capacity, dtype=np.int64)
        # The position of a row among those of its observation; -1: it cannot be drawn.
        self._place = np.full(self._max_capacity, -1, dtype=np.int64)
        self._slots: dict[int, int] = {}  # hash -> place among the distinct ones
        self._hashes: list[int] = []  # and back
        self._members: list[list[int]] = []  # the rows of each, the oldest first
        self._first: list[int] = []  # where in that list the oldest is; those before it are gone

    @property
    def num_distinct(self) -> int:
        """The number of distinct observations that can be drawn."""
        return len(self._members)

    def count(self, rows: Tensor) -> Tensor:
        """The number of rows with the same observation, for each of ``rows``; 0 for one that cannot be drawn."""
        held = [
            self._held(self._slots[key]) if place >= 0 else 0
            for key, place in zip(
                self._hash[rows.numpy()].tolist(), self._place[rows.numpy()].tolist(), strict=True
            )
        ]
        return torch.tensor(held, dtype=torch.int64)

    def _held(self, slot: int) -> int:
        """The number of rows with the observation in a slot."""
        return len(self._members[slot]) - self._first[slot]

    def write(self, rows: Tensor, hashes: Tensor) -> None:
        """Registers new observations in ``rows``; none of these rows can be drawn until it is set live.

        Args:
            rows (Tensor): int64 ``[K]``.
            hashes (Tensor): the hashes of their observations, int64 ``[K]``.
        """
        row = rows.numpy()
        self._remove(row)
        self._hash[row] = hashes.numpy()

    def set_live(self, index: Tensor, live: Tensor) -> None:
        """Sets which rows can be drawn.

        Args:
            index (Tensor): rows, int64 ``[K]``.
            live (Tensor): bool ``[K]``.
        """
        row, alive = index.numpy(), live.numpy()
        self._remove(row[~alive])
        slots, members, place = self._slots, self._members, self._place
        added = row[alive]
        for item, key in zip(added.tolist(), self._hash[added].tolist(), strict=True):
            if place[item] >= 0:
                continue
            slot = slots.get(key)
            if slot is None:
                slots[key] = len(members)
                self._hashes.append(key)
                self._first.append(0)
                members.append([item])
                place[item] = 0
            else:
                rows = members[slot]
                place[item] = len(rows)
                rows.append(item)

    def _remove(self, rows: npt.NDArray) -> None:
        held = rows[self._place[rows] >= 0]
        slots, members, hashes, first = self._slots, self._members, self._hashes, self._first
        place = self._place
        for item, key in zip(held.tolist(), self._hash[held].tolist(), strict=True):
            hole = int(place[item])
            if hole < 0:
                continue  # named twice
            slot = slots[key]
            rows_of, start = members[slot], first[slot]
            oldest = rows_of[start]
            if oldest != item:
                rows_of[hole] = oldest
                place[oldest] = hole
            place[item] = -1
            first[slot] = start = start + 1
            if start == len(rows_of):
                del slots[key]
                last_hash, last_rows, last_first = hashes.pop(), members.pop(), first.pop()
                if last_hash != key:
                    hashes[slot], members[slot], first[slot] = last_hash, last_rows, last_first
                    slots[last_hash] = slot
            elif 2 * start > len(rows_of):
                # More gone than there: what is left moves to the front.
                del rows_of[:start]
                place[rows_of] -= start
                first[slot] = 0

    def sample(self, storage: Storage | None, batch_size: int) -> tuple[Tensor, dict]:
        """Draws ``batch_size`` rows, with replacement."""
        members, first = self._members, self._first
        if not members:
            raise RuntimeError(
                "The replay buffer contains no transition that can be sampled: a step can be sampled once "
                "the next step has been written or its episode has ended."
            )
        # Double precision: float32 has too few digits to reach every observation of a large buffer.
        draws = torch.rand(2, batch_size, dtype=torch.float64, generator=self.generator)
        slots = (draws[0] * len(members)).long().tolist()
        newest = self._max_capacity if self.newest is None else self.newest
        index = []
        for slot, share in zip(slots, draws[1].tolist(), strict=True):
            rows = members[slot]
            drawable = min(len(rows) - first[slot], newest)
            index.append(rows[len(rows) - drawable + int(share * drawable)])
        return torch.tensor(index, dtype=torch.int64), {}

    def _sampleable_count(self, storage: Storage, batch_size: int) -> int:
        return len(self._members)

    def state_dict(self) -> dict[str, Any]:
        """The hashes, the rows of each in order, and the generator."""
        return {
            "hash": torch.from_numpy(self._hash.copy()),
            "distinct": torch.tensor(self._hashes, dtype=torch.int64),
            "counts": torch.tensor(
                [self._held(slot) for slot in range(self.num_distinct)], dtype=torch.int64
            ),
            "rows": torch.tensor(
                [
                    row
                    for rows, start in zip(self._members, self._first, strict=True)
                    for row in rows[start:]
                ]
            ).long(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state of a sampler of the same capacity."""
        rows = state_dict["hash"].numel()
        if rows != self._max_capacity:
            raise ValueError(
                f"The saved sampler has {rows} rows, this one {self._max_capacity}: build it with the "
                "same max_capacity."
            )
        self._empty()
        self._hash[:] = state_dict["hash"].numpy()
        self._hashes = state_dict["distinct"].tolist()
        self._slots = {key: slot for slot, key in enumerate(self._hashes)}
        self._first = [0] * len(self._hashes)
        listed, start = state_dict["rows"].tolist(), 0
        for count in state_dict["counts"].tolist():
            members = listed[start : start + count]
            self._members.append(members)
            self._place[members] = np.arange(count)
            start += count
        self.generator.set_state(state_dict["generator"].clone())
