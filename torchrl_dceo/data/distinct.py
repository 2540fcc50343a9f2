"""A sampler that is uniform over distinct observations, regardless of their number of visits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from torchrl_dceo.data.samplers import _Seeded

__all__ = ["DistinctSampler"]


class _Group:
    """The rows of one observation and action, the oldest first."""

    __slots__ = ("action", "first", "rows")

    def __init__(self, action: int, rows: list[int] | None = None) -> None:
        self.action = action
        self.rows = [] if rows is None else rows
        self.first = 0  # where the oldest is; those before it are gone

    @property
    def held(self) -> int:
        """The number of rows."""
        return len(self.rows) - self.first


def _of_action(groups: list[_Group], action: int) -> _Group | None:
    # There are as many as actions: a few.
    return next((group for group in groups if group.action == action), None)


class DistinctSampler(_Seeded):
    """Draws a distinct observation uniformly, then one of its rows uniformly, or one of its newest.

    Uniform sampling of rows weights a state by its visits: if all episodes start in one state, states at the frontier
    have almost no weight. Here every distinct observation has the same weight. If all observations differ, it is the
    same as uniform sampling.

    With ``by_action=True`` an action is drawn in between: all that were taken at the observation are equally likely,
    however rarely. The drawn transitions are then those of a uniformly random policy, whatever policy collected them,
    and so is the Laplacian.

    With ``newest=k`` only the last k rows of each observation (of each of its actions) are drawn. All visited
    observations stay in the sample, but old transitions do not: after a change of the environment, k visits of a state
    replace its outdated transitions.

    Observations are identified by their hash (see :mod:`torchrl_dceo.hashing`), computed once, when a row is written.
    The distinct hashes are kept in a dense list; one without rows is replaced by the last of the list. The rows of
    each hash and action are in the order in which they became valid for sampling, so that the row to be removed is
    nearly always the first. Drawing, adding and overwriting a row take constant (amortised) time at any size.

    :func:`~torchrl_dceo.data.make_replay_buffer` builds and feeds one with ``sampler="distinct"`` or
    ``uniform_measure="distinct"``.

    Args:
        max_capacity (int): rows of the storage.
        seed (int, optional): seed of its generator. Default: drawn from torch's global one.

    Keyword Args:
        newest (int, optional): draw only from this many newest rows of an observation, or of an observation and action.
            Default: ``None``, all rows.
        by_action (bool, optional): whether every action of an observation is equally likely. Default: ``False``, every
            row.

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
        self,
        max_capacity: int,
        seed: int | None = None,
        *,
        newest: int | None = None,
        by_action: bool = False,
    ) -> None:
        if max_capacity < 1:
            raise ValueError(f"max_capacity must be at least 1, got {max_capacity}.")
        if newest is not None and newest < 1:
            raise ValueError(f"newest must be at least 1, got {newest}: None draws all rows.")
        self._max_capacity = max_capacity
        self.newest = newest
        self.by_action = by_action
        self._seed(seed)
        self._empty()

    def _empty(self) -> None:
        self._hash = np.zeros(self._max_capacity, dtype=np.int64)
        self._action = np.zeros(self._max_capacity, dtype=np.int64)  # 0 without by_action
        # The position of a row in its group; -1: it cannot be drawn.
        self._place = np.full(self._max_capacity, -1, dtype=np.int64)
        self._slots: dict[int, int] = {}  # hash -> place among the distinct ones
        self._hashes: list[int] = []  # and back
        self._groups: list[list[_Group]] = []  # those of each, one for every action

    @property
    def num_distinct(self) -> int:
        """The number of distinct observations that can be drawn."""
        return len(self._groups)

    def count(self, rows: Tensor) -> Tensor:
        """The number of rows with the same observation, for each of ``rows``; 0 for one that cannot be drawn."""
        held = [
            sum(group.held for group in self._groups[self._slots[key]]) if place >= 0 else 0
            for key, place in zip(
                self._hash[rows.numpy()].tolist(), self._place[rows.numpy()].tolist(), strict=True
            )
        ]
        return torch.tensor(held, dtype=torch.int64)

    def write(self, rows: Tensor, hashes: Tensor, actions: Tensor | None = None) -> None:
        """Registers new observations in ``rows``; none of these rows can be drawn until it is set live.

        Args:
            rows (Tensor): int64 ``[K]``.
            hashes (Tensor): the hashes of their observations, int64 ``[K]``.
            actions (Tensor, optional): the hashes of the actions taken there, int64 ``[K]``; for ``by_action``.
        """
        if self.by_action and actions is None:
            raise ValueError(
                "a sampler with by_action=True needs the actions of the rows, got None"
            )
        row = rows.numpy()
        self._remove(row)
        self._hash[row] = hashes.numpy()
        if self.by_action and actions is not None:
            self._action[row] = actions.numpy()

    def set_live(self, index: Tensor, live: Tensor) -> None:
        """Sets which rows can be drawn.

        Args:
            index (Tensor): rows, int64 ``[K]``.
            live (Tensor): bool ``[K]``.
        """
        row, alive = index.numpy(), live.numpy()
        self._remove(row[~alive])
        slots, groups, place = self._slots, self._groups, self._place
        added = row[alive]
        for item, key, action in self._named(added):
            if place[item] >= 0:
                continue
            slot = slots.get(key)
            if slot is None:
                slots[key] = len(groups)
                self._hashes.append(key)
                groups.append([])
                slot = slots[key]
            group = _of_action(groups[slot], action)
            if group is None:
                group = _Group(action)
                groups[slot].append(group)
            place[item] = len(group.rows)
            group.rows.append(item)

    def _named(self, rows: npt.NDArray) -> Iterator[tuple[int, int, int]]:
        """Each row with its observation and its action."""
        return zip(
            rows.tolist(), self._hash[rows].tolist(), self._action[rows].tolist(), strict=True
        )

    def _remove(self, rows: npt.NDArray) -> None:
        held = rows[self._place[rows] >= 0]
        place = self._place
        for item, key, action in self._named(held):
            hole = int(place[item])
            if hole < 0:
                continue  # named twice
            slot = self._slots[key]
            group = _of_action(self._groups[slot], action)
            assert group is not None
            oldest = group.rows[group.first]
            if oldest != item:
                group.rows[hole] = oldest
                place[oldest] = hole
            place[item] = -1
            group.first += 1
            if group.held == 0:
                self._groups[slot].remove(group)
                if not self._groups[slot]:
                    self._forget(slot)
            elif 2 * group.first > len(group.rows):
                # More gone than there: what is left moves to the front.
                del group.rows[: group.first]
                place[group.rows] -= group.first
                group.first = 0

    def _forget(self, slot: int) -> None:
        """Removes an observation without rows; the last one takes its place."""
        del self._slots[self._hashes[slot]]
        last_hash, last_groups = self._hashes.pop(), self._groups.pop()
        if slot < len(self._hashes):
            self._hashes[slot], self._groups[slot] = last_hash, last_groups
            self._slots[last_hash] = slot

    def sample(self, storage: Storage | None, batch_size: int) -> tuple[Tensor, dict]:
        """Draws ``batch_size`` rows, with replacement."""
        groups = self._groups
        if not groups:
            raise RuntimeError(
                "The replay buffer contains no transition that can be sampled: a step can be sampled once "
                "the next step has been written or its episode has ended."
            )
        # Double precision: float32 has too few digits to reach every observation of a large buffer.
        draws = torch.rand(2, batch_size, dtype=torch.float64, generator=self.generator)
        slots = (draws[0] * len(groups)).long().tolist()
        newest = self._max_capacity if self.newest is None else self.newest
        index = []
        for slot, share in zip(slots, draws[1].tolist(), strict=True):
            actions = groups[slot]
            # One draw for both: its whole part is the action's, the rest the row's.
            scaled = share * len(actions)
            group = actions[int(scaled)]
            rows = group.rows
            drawable = min(len(rows) - group.first, newest)
            index.append(rows[len(rows) - drawable + int(scaled % 1 * drawable)])
        return torch.tensor(index, dtype=torch.int64), {}

    def _sampleable_count(self, storage: Storage, batch_size: int) -> int:
        return len(self._groups)

    def state_dict(self) -> dict[str, Any]:
        """The hashes, the rows of each in order, and the generator."""
        listed = [group for groups in self._groups for group in groups]
        state = {
            "hash": torch.from_numpy(self._hash.copy()),
            "distinct": torch.tensor(self._hashes, dtype=torch.int64),
            "counts": torch.tensor([group.held for group in listed], dtype=torch.int64),
            "rows": torch.tensor(
                [row for group in listed for row in group.rows[group.first :]]
            ).long(),
            "generator": self.generator.get_state(),
        }
        if self.by_action:
            state["action"] = torch.from_numpy(self._action.copy())
            # How many of the counts belong to each observation: its actions.
            state["actions"] = torch.tensor(
                [len(groups) for groups in self._groups], dtype=torch.int64
            )
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state of a sampler of the same capacity."""
        rows = state_dict["hash"].numel()
        if rows != self._max_capacity:
            raise ValueError(
                f"The saved sampler has {rows} rows, this one {self._max_capacity}: build it with the "
                "same max_capacity."
            )
        if ("action" in state_dict) != self.by_action:
            raise ValueError(
                f"The saved sampler has by_action={not self.by_action}, this one {self.by_action}: build it "
                "with the same by_action."
            )
        self._empty()
        self._hash[:] = state_dict["hash"].numpy()
        self._hashes = state_dict["distinct"].tolist()
        self._slots = {key: slot for slot, key in enumerate(self._hashes)}
        numbers = [1] * len(self._hashes)
        if self.by_action:
            self._action[:] = state_dict["action"].numpy()
            numbers = state_dict["actions"].tolist()
        listed, counts = state_dict["rows"].tolist(), iter(state_dict["counts"].tolist())
        start = 0
        for number in numbers:
            groups = []
            for count in itertools.islice(counts, number):
                members = listed[start : start + count]
                self._place[members] = np.arange(count)
                groups.append(_Group(int(self._action[members[0]]), members))
                start += count
            self._groups.append(groups)
        self.generator.set_state(state_dict["generator"].clone())
