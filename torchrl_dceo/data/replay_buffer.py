"""The buffer class: a TorchRL buffer whose samples are n-step transitions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn.utils import _set_dispatch_td_nn_modules
from torch import Tensor
from torchrl.data import TensorDictReplayBuffer

from torchrl_dceo.data.distinct import DistinctSampler
from torchrl_dceo.data.nstep import NStepReader
from torchrl_dceo.data.persistence import Segment, copied, load_state, save_state
from torchrl_dceo.data.samplers import SumTreeSampler, UniformStepSampler
from torchrl_dceo.hashing import ObservationHash, combine, make_hash

__all__ = ["NStepReplayBuffer"]

_ACTION_HASH = make_hash("exact")

_SEGMENT = 1 << 23  # bytes of rows in a segment
_MOST_SEGMENTS = 256


class NStepReplayBuffer(TensorDictReplayBuffer):
    """A TorchRL buffer of single steps that returns n-step transitions.

    Build it with :func:`~torchrl_dceo.data.make_replay_buffer`, which documents what it stores and returns. It supports
    the interface of :class:`~torchrl.data.TensorDictReplayBuffer` (``extend``, ``sample``, iteration,
    ``append_transform``, ``update_tensordict_priority``, ``empty``, ...) except prefetching. In addition:

    - :meth:`sample_uniform` samples uniformly, for any sampler; with ``uniform_key`` every sample includes such a
      batch;
    - :meth:`sample_distinct` samples uniformly over distinct observations, if the buffer was built for it;
    - :meth:`transitions` returns the transitions at given rows;
    - :attr:`n_steps` and :attr:`gamma` can be changed at any time;
    - ``len`` is the number of transitions that can be sampled;
    - ``rb[rows]`` and ``rb.storage[rows]`` are the raw rows;
    - :meth:`dumps` writes raw bytes and JSON, no pickle.

    Args:
        reader (NStepReader): builds the transitions.
        uniform (UniformStepSampler): the sampler of :meth:`sample_uniform`.
        uniform_key (str, optional): the key of a second, uniform batch in every sample. Default: none.
        uniform_measure (str, optional): uniform over rows (``"visits"``) or distinct observations (``"distinct"``).
            Default: ``"visits"``.
        distinct (DistinctSampler, optional): the sampler of :meth:`sample_distinct`; it may be the buffer's own.
            Default: none.
        observation_hash (callable, optional): the hash of observations for ``distinct``. Default: of their bytes.
        kwargs: the arguments of :class:`~torchrl.data.TensorDictReplayBuffer`.

    Examples:
        >>> from torchrl_dceo.data import make_replay_buffer
        >>> rb = make_replay_buffer(1000, observation_keys=["observation"], n_steps=5, batch_size=32)
        >>> rb.gamma = 0.9
        >>> rb.n_steps, rb.gamma, len(rb)
        (5, 0.9, 0)
    """

    def __init__(
        self,
        *,
        reader: NStepReader,
        uniform: UniformStepSampler,
        uniform_key: str | None = None,
        uniform_measure: Literal["visits", "distinct"] = "visits",
        distinct: DistinctSampler | None = None,
        observation_hash: ObservationHash | None = None,
        **kwargs: Any,
    ) -> None:
        self._reader = reader
        self._uniform = uniform
        self.uniform_key = uniform_key
        self._uniform_measure = uniform_measure
        self._distinct = distinct
        self._observation_hash = observation_hash or make_hash("exact")
        # Rows are read as one TensorDict: there is nothing to collate.
        super().__init__(**{"collate_fn": _unchanged, **kwargs})
        self._bar_all()

    def _bar_all(self) -> None:
        # A row that was never written must not be drawn, even if someone sets its priority.
        if isinstance(self._sampler, SumTreeSampler):
            rows = torch.arange(self._storage.max_size)
            self._sampler.set_live(rows, torch.zeros_like(rows, dtype=torch.bool))

    @property
    def n_steps(self) -> int:
        """The number of steps of a transition, n."""
        return self._reader.n_steps

    @n_steps.setter
    def n_steps(self, value: int) -> None:
        self._reader.n_steps = value

    @property
    def gamma(self) -> float:
        """The discount of the n-step return."""
        return self._reader.gamma

    @gamma.setter
    def gamma(self, value: float) -> None:
        self._reader.gamma = value

    @property
    def num_streams(self) -> int:
        """The number of separate streams (environments)."""
        return self._reader.ring.num_streams

    def __len__(self) -> int:
        return self._reader.ring.size

    def add(self, data: TensorDictBase) -> Tensor:
        """Adds one step of every environment, ``[*E]``; returns their rows."""
        return self.extend(data.unsqueeze(-1)).squeeze(-1)

    def extend(
        self,
        tensordicts: TensorDictBase,
        *,
        streams: Sequence[int] | None = None,
        update_priority: bool | None = None,
    ) -> Tensor:
        """Adds the steps of a collector's batch.

        Args:
            tensordicts (TensorDictBase): ``[*E, T]``: environments first, time last. A batch
                continues the previous one.
            streams (sequence of int, optional): the streams of a batch from only some of the
                environments, e.g. from one worker of an asynchronous collector. Default: all.
            update_priority (bool, optional): whether an entry named as the buffer's
                ``priority_key`` sets the priority of the steps. Defaults to ``True``.

        Returns:
            The row of each step, in the shape of the batch.
        """
        if not isinstance(tensordicts, TensorDictBase):
            raise TypeError(f"extend takes a TensorDict, got {type(tensordicts).__name__}.")
        if len(self._transform):
            tensordicts = self._transform.inv(tensordicts)
        with self._replay_lock, self._write_lock:
            rows = self._writer.extend(tensordicts, streams=streams)
            if isinstance(self._sampler, SumTreeSampler):
                update = self._writer.last_update
                self._sampler.set_live(update.changed, update.live)
                if update_priority is not False:
                    priority = tensordicts.get(self.priority_key, None)
                    if priority is not None:
                        self._sampler.update_priority(rows.flatten(), priority)
            if self._distinct is not None:
                update = self._writer.last_update
                self._distinct.write(
                    update.rows.reshape(-1), self._hashes(tensordicts), self._actions(tensordicts)
                )
                self._distinct.set_live(update.changed, update.live)
        return rows

    def _hashes(self, data: TensorDictBase) -> Tensor:
        """The hashes of a batch's observations; with stacked frames, of the whole stack."""
        found = []
        for key in self._reader.columns.observations:
            value = data.get(key)
            found.append(self._observation_hash(value.flatten(0, data.ndim - 1)))
        return combine(found)

    def _actions(self, data: TensorDictBase) -> Tensor | None:
        """The hashes of a batch's actions, if the distinct sampler distinguishes them."""
        if self._distinct is None or not self._distinct.by_action:
            return None
        action = data.get("action")
        return _ACTION_HASH(action.reshape(data.numel(), -1))

    def _sample(self, batch_size: int) -> tuple[TensorDictBase, dict]:
        with self._replay_lock, self._write_lock:
            index, info = self._sampler.sample(self._storage, batch_size)
            data = self._reader.read(index)
        for key, value in info.items():
            data.set(key, value)
        info["index"] = index
        data = self._apply_transform(data)
        if self.uniform_key is not None:
            distinct = self._uniform_measure == "distinct"
            draw = self.sample_distinct if distinct else self.sample_uniform
            data.set(self.uniform_key, draw(batch_size))
        return data, info

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,
    ) -> Any:
        """Draws a batch of transitions with the buffer's sampler.

        Args:
            batch_size (int, optional): default: that of the buffer.
            return_info (bool, optional): whether to return ``(batch, info)``.
            include_info (bool, optional): unused, for TorchRL's signature.
        """
        data, info = self._sample(self._resolve(batch_size))
        return (data, info) if return_info else data

    def sample_uniform(self, batch_size: int | None = None) -> TensorDictBase:
        """Draws a batch uniformly from all transitions, also from a prioritized buffer.

        The Laplacian's objectives assume uniform sampling. No importance weight is set. With a uniform
        sampler it is the same as :meth:`sample`.
        """
        return self._drawn_by(self._uniform, batch_size)

    def sample_distinct(self, batch_size: int | None = None) -> TensorDictBase:
        """Draws a batch uniformly over distinct observations, then uniformly over the rows of each.

        Needs ``sampler="distinct"`` or ``uniform_measure="distinct"``. No importance weight is set.
        """
        if self._distinct is None:
            raise RuntimeError(
                "The buffer does not track distinct observations: build it with "
                "make_replay_buffer(..., sampler='distinct') or uniform_measure='distinct'."
            )
        return self._drawn_by(self._distinct, batch_size)

    @property
    def num_distinct(self) -> int:
        """The number of distinct observations that can be sampled."""
        if self._distinct is None:
            raise RuntimeError(
                "The buffer does not count distinct observations: build it with "
                "make_replay_buffer(..., sampler='distinct') or uniform_measure='distinct'."
            )
        return self._distinct.num_distinct

    def _drawn_by(
        self, sampler: UniformStepSampler | DistinctSampler, batch_size: int | None
    ) -> TensorDictBase:
        batch_size = self._resolve(batch_size)
        with self._replay_lock, self._write_lock:
            index, _ = sampler.sample(self._storage, batch_size)
            data = self._reader.read(index)
        return self._apply_transform(data)

    def transitions(self, index: Tensor | None = None) -> TensorDictBase:
        """The transitions that start at the rows ``index`` (default: all that can be sampled)."""
        with self._replay_lock, self._write_lock:
            index = self._reader.ring.sampleable() if index is None else index
            data = self._reader.read(index)
        return self._apply_transform(data)

    def _resolve(self, batch_size: int | None) -> int:
        size = self._batch_size if batch_size is None else batch_size
        if size is None or size < 1:
            raise ValueError(
                f"batch_size must be at least 1, got {size}: pass it to the buffer or to sample."
            )
        return size

    def _apply_transform(self, data: TensorDictBase) -> TensorDictBase:
        if not len(self._transform):
            return data
        with _set_dispatch_td_nn_modules(True):
            return self._transform(data)

    def empty(self, empty_write_count: bool = True) -> None:
        """Removes all steps. Memory, settings and generators are unchanged."""
        with self._replay_lock, self._write_lock:
            self._writer._empty(empty_write_count=empty_write_count)
            self._sampler._empty()
            if self._distinct is not None:
                self._distinct._empty()
            self._bar_all()

    @property
    def _second_distinct(self) -> DistinctSampler | None:
        """The distinct sampler, if it is not the buffer's own sampler."""
        return None if self._distinct is self._sampler else self._distinct

    def _layout(self) -> dict[str, Any]:
        ring = self._reader.ring
        return {
            "rows_per_stream": ring.rows_per_stream,
            "num_streams": ring.num_streams,
            "sampler": type(self._sampler).__name__,
            **({} if self._distinct is None else {"measure": "distinct"}),
            **self._reader.columns.spec(),
        }

    def _segments(self, rows: dict[str, Tensor], filled: int) -> list[Segment]:
        """The rows in segments, of which only those written since change from one checkpoint to the next."""
        ring, storage = self._reader.ring, self._writer.storage
        row = sum(value[:, :1].nbytes for value in rows.values())  # of all streams
        target = max(_SEGMENT, row * ring.rows_per_stream // _MOST_SEGMENTS)
        length = -(-target // max(1, row))
        return [
            Segment(
                {key: value[:, start : start + length] for key, value in rows.items()},
                (storage.edits, ring.mark(start, min(start + length, filled))),
            )
            for start in range(0, filled, length)
        ]

    def _views(self, segments: bool = False) -> dict[str, Any]:
        ring = self._reader.ring
        filled = min(int(ring.head.max()), ring.rows_per_stream)
        shape = (ring.num_streams, ring.rows_per_stream)
        rows = {
            key if isinstance(key, str) else ".".join(key): value.unflatten(0, shape)[:, :filled]
            for key, value in self._writer.tensors.items()
        }
        # Streams fill unevenly: rows that a shorter one has not written contain uninitialised memory.
        for stream in (ring.head < filled).nonzero()[0]:
            for value in rows.values():
                value[stream, ring.head[stream] :] = 0
        second = self._second_distinct
        return {
            "layout": self._layout(),
            "n_steps": self.n_steps,
            "gamma": self.gamma,
            "batch_size": self._batch_size,
            "rows": self._segments(rows, filled) if segments else rows,
            "writer": self._writer.state_dict(),
            "sampler": self._sampler.state_dict(),
            "uniform": self._uniform.state_dict(),
            **({} if second is None else {"distinct": second.state_dict()}),
            "transform": dict(self._transform.state_dict()),
        }

    def state_dict(self, *, copy: bool = True, segments: bool = False) -> dict[str, Any]:
        """The whole state: nested dictionaries of plain values and of tensors.

        Keyword Args:
            copy (bool, optional): ``False`` returns the tensors themselves, without copies; they are valid until the
                next step is written. Default: ``True``.
            segments (bool, optional): return the rows in segments, so that unchanged ones need not be written again
                (:class:`~torchrl_dceo.data.persistence.Segment`). Default: ``False``.
        """
        with self._replay_lock, self._write_lock:
            views = self._views(segments)
            return copied(views) if copy else views

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state into a buffer built with the same arguments.

        The next samples are those that the saved buffer would have drawn. ``n_steps``, ``gamma``
        and the batch size are restored too.
        """
        saved, own = state_dict["layout"], self._layout()
        for name, value in own.items():
            if saved.get(name) != value:
                raise ValueError(
                    f"The saved replay buffer has {name}={saved.get(name)!r}, this one {value!r}: build "
                    "it with the same arguments."
                )
        ring, writer = self._reader.ring, self._writer
        with self._replay_lock, self._write_lock:
            names = {
                ".".join(key) if isinstance(key, tuple) else key: key
                for key in [*self._reader.columns.keys(), "reward", "end"]
            }
            saved, start = state_dict["rows"], 0
            for part in [saved] if isinstance(saved, dict) else saved:
                rows = {names[name]: value for name, value in part.items()}
                if rows and not writer.tensors:
                    writer.storage.allocate({key: value[:, 0] for key, value in rows.items()})
                writer.check_rows({key: value.flatten(0, 1) for key, value in rows.items()})
                stop = start
                for key, value in rows.items():
                    target = writer.tensors[key].unflatten(
                        0, (ring.num_streams, ring.rows_per_stream)
                    )
                    stop = start + value.shape[1]
                    target[:, start:stop] = value
                start = stop
            writer.load_state_dict(state_dict["writer"])
            self._sampler.load_state_dict(state_dict["sampler"])
            self._uniform.load_state_dict(state_dict["uniform"])
            if self._second_distinct is not None:
                self._second_distinct.load_state_dict(state_dict["distinct"])
            self._transform.load_state_dict(state_dict["transform"])
            self._batch_size = state_dict["batch_size"]
            self.n_steps, self.gamma = state_dict["n_steps"], state_dict["gamma"]

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Saves the buffer into a directory, as raw bytes and JSON.

        Only rows that have been written are saved. Saving again into the same directory is atomic: it
        contains a complete state, old or new, at any time.
        """
        with self._replay_lock, self._write_lock:
            save_state(path, self._views())

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Restores what :meth:`dumps` saved; see :meth:`load_state_dict`."""
        self.load_state_dict(load_state(path))


def _unchanged(rows: TensorDictBase) -> TensorDictBase:
    return rows
