"""Builds the replay buffer: single steps stored, n-step transitions and frame stacks built when sampling."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Literal

from tensordict import NestedKey
from torchrl.envs.transforms import Transform

from torchrl_dceo.data.distinct import DistinctSampler
from torchrl_dceo.data.nstep import OWN_KEYS, Columns, NStepReader
from torchrl_dceo.data.replay_buffer import NStepReplayBuffer
from torchrl_dceo.data.ring import StreamRing
from torchrl_dceo.data.samplers import SumTreeSampler, UniformStepSampler
from torchrl_dceo.data.writer import RowStorage, StreamWriter
from torchrl_dceo.hashing import ObservationHash, make_hash

__all__ = ["make_replay_buffer", "rows_for"]


def rows_for(steps: int, *, num_streams: int = 1, frame_stack: int = 1) -> int:
    """The capacity in rows for a number of steps, for episodes of any length.

    A step needs one row and the last observation of an episode another, so episodes of one step need two rows per
    step. A stream also needs rows for the frames of an episode that has already started, and one row that stays empty.

    Args:
        steps (int): the steps of all streams together, evenly divided among them.

    Keyword Args:
        num_streams (int, optional): the number of environments. Default: ``1``.
        frame_stack (int, optional): frames in an observation. Default: ``1``.

    Examples:
        >>> from torchrl_dceo.data import rows_for
        >>> rows_for(1000, num_streams=4)
        2008
    """
    return num_streams * (2 * math.ceil(steps / num_streams) + frame_stack + 1)


def make_replay_buffer(
    capacity: int,
    *,
    n_steps: int = 1,
    gamma: float = 0.99,
    batch_size: int | None = None,
    num_streams: int = 1,
    observation_keys: Sequence[NestedKey] = ("pixels",),
    state_keys: Sequence[NestedKey] = (),
    step_keys: Sequence[NestedKey] = ("action",),
    frame_stack: int = 1,
    stack_dim: int = -3,
    window: bool = False,
    pair_steps: int = 1,
    sampler: Literal["uniform", "prioritized", "distinct"] | SumTreeSampler = "uniform",
    alpha: float = 0.6,
    beta: float = 0.4,
    eps: float = 1e-6,
    priority_key: str = "td_error",
    uniform_key: str | None = None,
    uniform_measure: Literal["visits", "distinct"] = "visits",
    observation_hash: Literal["exact", "cell", "simhash"] | ObservationHash = "exact",
    newest: int | None = None,
    by_action: bool = False,
    storage: Literal["memory", "memmap"] = "memory",
    scratch_dir: str | os.PathLike[str] | None = None,
    transform: Transform | Callable | None = None,
    seed: int | None = None,
    init_key: NestedKey = "is_init",
) -> NStepReplayBuffer:
    r"""A replay buffer that stores single steps and returns n-step transitions.

    Every frame is stored once, in its own dtype: ``("next", <observation>)`` is the observation of
    the next row, and needs a row of its own only at the end of an episode. A sample contains

    ================================ ==================================================================
    ``<observation>``, ``<state>``   the state :math:`s_t`
    ``<step>``                       entries of the step from it (``action``, ...)
    ``("next", ...)``                the state :math:`s_{t+m}`, :math:`m \le n`; the n-step ``reward``
                                     :math:`\sum_{i<m} \gamma^i R_{t+i+1}`; ``done``, ``terminated``,
                                     ``truncated``: whether the episode ended within m steps
    ``steps_to_next_obs``            m, int64 ``[B, 1]``: TorchRL's losses discount the value of the next
                                     state by :math:`\gamma^m`
    ``("successor", ...)``           the state :math:`s_{t+1}`, for the Laplacian
    ``("window", <observation>)``    with ``window=True``, :math:`s_{t+1}, \dots, s_{t+n}`, ``[B, n, ...]``,
                                     with :math:`s_{t+m}` repeated after m
    ``("later", <observation>)``     with ``pair_steps=k`` above 1, the state k steps later, or the episode's last
    ``index``, ``priority_weight``   the row, and with priorities the importance weight
    ``(uniform_key, ...)``           with ``uniform_key``, all of the above for a second batch, sampled uniformly
    ================================ ==================================================================

    ``m < n`` at the end of an episode and at the write head. Only the newest step of a stream cannot
    be sampled, until its successor has been written.

    Rows, samplers and samples are on the CPU, for batches from any device. Use ``batch.to(device)`` or a transform
    such as TorchRL's ``DeviceCastTransform`` to move samples to an accelerator. The buffer consists of a
    :class:`~torchrl_dceo.data.writer.RowStorage`, a :class:`~torchrl_dceo.data.writer.StreamWriter`, a sampler and a
    :class:`~torchrl_dceo.data.nstep.NStepReader` over one :class:`~torchrl_dceo.data.ring.StreamRing`; they can also be
    passed to :class:`NStepReplayBuffer` directly.

    Args:
        capacity (int): the number of rows, divided evenly among the streams. A step needs one row, and so does
            the last observation of an episode: :func:`rows_for` computes the rows for a number of steps. Rows
            that are never written need no memory.
        n_steps (int, optional): n. Defaults to ``1``.
        gamma (float, optional): the discount within the n steps. Defaults to ``0.99``.
        batch_size (int, optional): of a sample.
        num_streams (int, optional): the number of environments, over all workers of a collector.
            Defaults to ``1``.
        observation_keys (sequence of NestedKey, optional): Defaults to ``("pixels",)``.
        state_keys (sequence of NestedKey, optional): other entries of a state, available for
            ``next`` and ``successor`` too, such as ``state_id``.
        step_keys (sequence of NestedKey, optional): entries that are only available for :math:`s_t`,
            such as ``option``. Defaults to ``("action",)``.
        frame_stack (int, optional): the number of frames stacked in an observation (the environment's
            ``CatFrames(N=frame_stack, dim=stack_dim, padding="same")``): only the newest is stored.
            Applies to all of ``observation_keys``. Defaults to ``1``.
        stack_dim (int, optional): the dimension of the stack. Defaults to ``-3``.
        window (bool, optional): whether samples have ``("window", ...)``. Defaults to ``False``.
        pair_steps (int, optional): steps between the two states of the Laplacian's pairs. Above 1, samples
            have ``("later", ...)``, for any n. Defaults to ``1``: the second state is ``successor``.
        sampler (str or SumTreeSampler, optional): ``"uniform"``, ``"prioritized"``, ``"distinct"`` (uniform over
            distinct observations, :class:`DistinctSampler`), or a :class:`SumTreeSampler` of ``capacity`` rows.
            Defaults to ``"uniform"``.
        alpha, beta, eps (float, optional): see :class:`SumTreeSampler`; for ``"prioritized"`` only.
            Defaults to ``0.6``, ``0.4``, ``1e-6``.
        priority_key (str, optional): the entry that ``update_tensordict_priority`` reads. Defaults to
            ``"td_error"``.
        uniform_key (str, optional): under this key every sample has a second batch of the same size, sampled
            independently and uniformly, for objectives such as the Laplacian's beside a learner with priorities.
            Default: ``None``, no second batch.
        uniform_measure (str, optional): the second batch is uniform over all rows (``"visits"``) or over distinct
            observations (``"distinct"``, :class:`DistinctSampler`; also available as ``rb.sample_distinct()``).
            Defaults to ``"visits"``.
        observation_hash (str or callable, optional): how ``"distinct"`` compares observations: ``"exact"``,
            ``"cell"`` for images, ``"simhash"`` for vectors, or a callable (:mod:`torchrl_dceo.hashing`). Defaults to
            ``"exact"``.
        newest (int, optional): for ``"distinct"``: draw only from this many newest rows of each observation, so that
            outdated transitions are replaced when the agent returns. Default: ``None``, all rows.
        by_action (bool, optional): for ``"distinct"``: of an observation, every action that was taken there is equally
            likely, and ``newest`` counts the rows of each action. The actions are the entry ``"action"`` of
            ``step_keys``. Default: ``False``, every row.
        storage (str, optional): ``"memory"`` or ``"memmap"`` (files). Defaults to ``"memory"``.
        scratch_dir (path-like, optional): the directory for the files of ``"memmap"``.
        transform (Transform or callable, optional): applied to samples. More can be appended.
        seed (int, optional): seed of the samplers' own generators. Default: drawn from torch's global one.
        init_key (NestedKey, optional): the key of
            :class:`~torchrl.envs.transforms.InitTracker`, read if present: it marks episodes
            that were interrupted by a reset of the collector. Defaults to ``"is_init"``.

    Examples:
        >>> import torch
        >>> from torchrl.collectors import Collector
        >>> from torchrl.envs import GymEnv
        >>> from torchrl_dceo.data import make_replay_buffer
        >>> env = GymEnv("CartPole-v1", categorical_action_encoding=True)
        >>> collector = Collector(env, env.rand_action, frames_per_batch=64, total_frames=128)
        >>> rb = make_replay_buffer(
        ...     1000, n_steps=3, observation_keys=["observation"], batch_size=32, sampler="prioritized", seed=0
        ... )
        >>> for data in collector:
        ...     _ = rb.extend(data)
        >>> batch = rb.sample()
        >>> batch["next", "observation"].shape, batch["steps_to_next_obs"].shape
        (torch.Size([32, 4]), torch.Size([32, 1]))
        >>> batch["td_error"] = torch.rand(32)
        >>> rb.update_tensordict_priority(batch)
        >>> pairs = rb.sample_uniform(64)  # for the Laplacian, from the same rows
        >>> pairs["successor", "observation"].shape
        torch.Size([64, 4])
    """
    if num_streams < 1:
        raise ValueError(f"num_streams must be at least 1, got {num_streams}.")
    if storage not in ("memory", "memmap"):
        raise ValueError(f"storage must be 'memory' or 'memmap', got {storage!r}.")
    if scratch_dir is not None and storage != "memmap":
        raise ValueError(
            f"scratch_dir={str(scratch_dir)!r} has no effect without storage='memmap'."
        )
    columns = Columns(observation_keys, state_keys, step_keys, frame_stack, stack_dim)
    roots = {key if isinstance(key, str) else key[0] for key in columns.keys()}
    if uniform_key in (*roots, *OWN_KEYS):
        raise ValueError(
            f"uniform_key={uniform_key!r} is already an entry of the samples: choose another key."
        )
    if uniform_measure not in ("visits", "distinct"):
        raise ValueError(
            f"uniform_measure must be 'visits' or 'distinct', got {uniform_measure!r}."
        )
    ring = StreamRing(capacity // num_streams, num_streams, frame_stack)
    rows = ring.rows_per_stream * num_streams
    held = RowStorage(rows, in_files=storage == "memmap", scratch_dir=scratch_dir)
    writer = StreamWriter(ring, columns, init_key)
    reader = NStepReader(ring, columns, held.tensors, n_steps, gamma, window, pair_steps)
    uniform = UniformStepSampler(ring, seed)
    drawn: UniformStepSampler | SumTreeSampler | DistinctSampler = uniform
    if sampler == "prioritized":
        # Not the seed of the uniform sampler: the two must not be correlated.
        drawn = SumTreeSampler(rows, alpha, beta, eps, seed=None if seed is None else seed + 1)
    elif isinstance(sampler, SumTreeSampler):
        if sampler.max_size < rows:
            raise ValueError(f"The sampler has {sampler.max_size} rows, the buffer {rows}.")
        drawn = sampler
    elif sampler not in ("uniform", "distinct"):
        raise ValueError(
            f"sampler must be 'uniform', 'prioritized' or 'distinct', got {sampler!r}."
        )
    distinct = None
    if "distinct" in (sampler, uniform_measure):
        if by_action and "action" not in columns.steps:
            raise ValueError(
                f"by_action=True needs 'action' among step_keys, got {list(columns.steps)}."
            )
        distinct = DistinctSampler(
            rows, None if seed is None else seed + 2, newest=newest, by_action=by_action
        )
    elif newest is not None or by_action:
        name, value = ("by_action", True) if newest is None else ("newest", newest)
        raise ValueError(
            f"{name}={value} has no effect without sampler='distinct' or uniform_measure='distinct'."
        )
    if distinct is not None and sampler == "distinct":
        drawn = distinct
    return NStepReplayBuffer(
        reader=reader,
        uniform=uniform,
        uniform_key=uniform_key,
        uniform_measure=uniform_measure,
        distinct=distinct,
        observation_hash=make_hash(observation_hash),
        storage=held,
        sampler=drawn,
        writer=writer,
        transform=transform,
        batch_size=batch_size,
        priority_key=priority_key,
    )
