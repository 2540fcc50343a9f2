"""Common parts of collecting in worker processes."""

from __future__ import annotations

import copy
import logging
import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Composite, Unbounded
from torchrl.envs import EnvBase, InitTracker, Transform, TransformedEnv

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.envs import StateCounts, current_map, find_transform
from torchrl_dceo.envs.grid.switching import hold_map, set_steps_made, steps_made
from torchrl_dceo.training.checkpoint.run_directory import transform_chain
from torchrl_dceo.training.collection import Batch, Collection, WorkerEnv
from torchrl_dceo.training.config import CollectorConfig
from torchrl_dceo.training.errors import RunError

__all__ = [
    "STAMP",
    "StepStamp",
    "WorkerCollection",
    "WorkerEnv",
    "WorkerEnvBuilder",
    "WorkerLost",
    "with_transforms",
    "worker_seeds",
]

STAMP = "worker_step"


def with_transforms(env: EnvBase, transforms: Sequence[Transform]) -> EnvBase:
    """Appends the transforms that an agent's policy needs, if they are missing; returns the environment to use.

    Examples:
        >>> from torchrl.envs import StepCounter
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.collection.workers import with_transforms
        >>> env = make_env("NineRooms")
        >>> _ = with_transforms(with_transforms(env, [StepCounter()]), [StepCounter()])
        >>> sum(isinstance(transform, StepCounter) for transform in env.transform)
        1
    """
    there = []
    outer = env
    while isinstance(outer, TransformedEnv):
        there += [(type(other), other.out_keys) for other in transform_chain(outer)]
        outer = outer.base_env
    if transforms and all(kind is not InitTracker for kind, _ in there):
        # The policy's state is reset with each episode.
        env = env.append_transform(InitTracker())
    for transform in transforms:
        # Not twice, if the same environment is used for another training.
        if (type(transform), transform.out_keys) not in there:
            # A new object, if the environment had no transforms.
            env = env.append_transform(transform.clone())
    return env


def worker_seeds(*numbers: int) -> tuple[int, int]:
    """Two seeds derived from any numbers; different numbers give different seeds.

    Examples:
        >>> from torchrl_dceo.training.collection.workers import worker_seeds
        >>> len({seed for worker in range(100) for seed in worker_seeds(0, worker)})
        200
    """
    words = np.random.SeedSequence(numbers).generate_state(2)
    # 31 bits, which every kind of environment accepts.
    return int(words[0]) >> 1, int(words[1]) >> 1


class StepStamp(Transform):
    """Writes into each step the index of its worker and the worker's step count.

    Batches of workers are received in any order and without their source, and may be lost. With the
    stamp each batch is written to its own streams, and a gap is detected before it is stored.

    Args:
        worker (int): the index of the worker.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.collection.workers import STAMP, StepStamp
        >>> env = make_env("NineRooms", batch_size=2)
        >>> _ = env.append_transform(StepStamp(3))
        >>> env.rollout(2)[STAMP][0].tolist()  # worker 3, its steps 0 and 1
        [[3, 0], [3, 1]]
    """

    def __init__(self, worker: int) -> None:
        super().__init__(in_keys=[], out_keys=[STAMP])
        self._worker, self._made = worker, 0

    def _write(self, tensordict: TensorDictBase) -> TensorDictBase:
        stamp = torch.tensor([self._worker, self._made], device=tensordict.device)
        return tensordict.set(STAMP, stamp.expand(*tensordict.batch_size, 2).clone())

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._made += 1
        return self._write(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._write(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes nothing: only steps of environments are stamped."""
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the stamp."""
        shape = (*observation_spec.shape, 2)
        observation_spec[STAMP] = Unbounded(
            shape=shape, dtype=torch.int64, device=observation_spec.device
        )
        return observation_spec


@dataclass
class WorkerEnvBuilder:
    """Builds the environments of a worker, inside the worker: a callable that can be pickled.

    It also configures the worker: one thread, and random numbers different from all other workers'.

    Examples:
        >>> from functools import partial
        >>> import torch
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.collection.workers import WorkerEnvBuilder
        >>> with torch.random.fork_rng():
        ...     env = WorkerEnvBuilder(partial(make_env, "NineRooms"), 1, torch.Size([4]), seeds=(5, 6))()
        >>> env.batch_size
        torch.Size([4])
    """

    make: WorkerEnv
    worker: int
    batch_size: torch.Size
    seeds: tuple[int, int]  # of its environments, and of all other random numbers
    transforms: Sequence[Transform] = ()
    settings: dict[str, Any] = field(default_factory=dict)  # e.g. coverage=True
    steps: Tensor | None = None  # of its environments so far, if they change over time
    held_map: int | None = None  # a fixed map for such environments

    def __call__(self) -> EnvBase:
        """Builds the environments."""
        tune_process()
        env_seed, seed = self.seeds
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        env = self.make(batch_size=self.batch_size, seed=env_seed, **self.settings)
        if env.batch_size != self.batch_size:
            raise ValueError(
                f"worker_env was called for environments of batch_size {list(self.batch_size)} and returned "
                f"{list(env.batch_size)}"
            )
        if self.steps is not None:
            set_steps_made(env, self.steps)
        if self.held_map is not None:
            hold_map(env, self.held_map)
        env = with_transforms(env, self.transforms)
        return env.append_transform(StepStamp(self.worker))


_log = logging.getLogger(__name__)


class WorkerLost(RunError):
    """A worker has died, or a batch of it was lost."""


class WorkerCollection(Collection):
    """Base of the collections with workers; a subclass defines how workers are started, read and updated.

    Worker i has the i-th part of the run's environments, so its steps belong to a range of streams. The learner's
    own environment is not stepped: it keeps the run's visit counts, and the step count of a changing environment,
    from the workers' batches. If a worker is lost, all workers are replaced and start new
    episodes; steps in progress are lost, and the replay buffer does not connect the new episodes to the old ones.

    Args:
        agent (Agent): the agent, whose policy is copied.
        config (CollectorConfig): the number of workers, and how often their weights are updated.
        worker_env (callable): builds environments from ``batch_size=``, ``seed=`` and, for a phase without reward,
            ``coverage=True``.
        seed (int): the seed of the run.
    """

    def __init__(
        self, agent: Agent, config: CollectorConfig, worker_env: WorkerEnv, seed: int
    ) -> None:
        self._agent = agent
        self._config = config
        self._worker_env = worker_env
        self._seed = seed
        self._running = False
        self._restarts = 0
        self._lost: str | None = None  # the reason, if it was detected outside of the iteration

    # Methods of subclasses

    @abstractmethod
    def _launch(self, envs: list[WorkerEnvBuilder]) -> None:
        """Starts the workers, with ``self._policy``."""

    @abstractmethod
    def _deliveries(self) -> Iterator[TensorDictBase]:
        """Iterates over the batches as they are received; raises :class:`WorkerLost`."""

    @abstractmethod
    def _send(self, worker: int) -> Iterable[int]:
        """Sends ``self._policy`` to the worker of the last batch, and returns the updated workers; raises
        :class:`WorkerLost`.
        """

    @abstractmethod
    def _shut_down(self) -> None:
        """Stops the workers, dead or alive."""

    # The collection

    def start(self, env: EnvBase, *, reward_free: bool, frames: int) -> None:
        """Starts the workers for a phase."""
        self._env, self._reward_free, self._frames = env, reward_free, frames
        num_envs = max(1, env.batch_size.numel())
        self._envs_per_worker = self._config.envs_per_worker(num_envs)
        self._try_to_start()

    def _try_to_start(self) -> None:
        try:
            self._start_workers()
        except WorkerLost as error:
            self._restart(str(error))

    def _start_workers(self) -> None:
        workers = self._config.num_workers
        # A copy of the learner's tensors: the workers' weights change only when they are sent.
        self._policy = copy.deepcopy(self._agent.policy).to("cpu").requires_grad_(False)
        self._next_step: list[int | None] = [None] * workers
        self._sent_at = [self._frames] * workers
        self._newest = 0  # the worker of the last batch
        self._lost = None
        self._running = True
        self._launch([self._env_builder(worker) for worker in range(workers)])

    def _env_builder(self, worker: int) -> WorkerEnvBuilder:
        steps, part = steps_made(self._env), self._streams(worker)
        alone = self._config.num_workers == 1
        return WorkerEnvBuilder(
            self._worker_env,
            worker,
            self._env.batch_size if alone else torch.Size([len(part)]),
            # New seeds: a replaced worker must not repeat the same steps.
            seeds=worker_seeds(self._seed, self._frames, self._restarts, worker),
            transforms=self._agent.transforms,
            settings={"coverage": True} if self._reward_free else {},
            steps=None if steps is None else steps.view(-1)[part.start : part.stop],
            # Discovery happens before any change of the environment.
            held_map=current_map(self._env) if self._reward_free else None,
        )

    def _streams(self, worker: int) -> range:
        return range(worker * self._envs_per_worker, (worker + 1) * self._envs_per_worker)

    def __iter__(self) -> Iterator[Batch]:
        """Iterates over the batches as they are received, each with its streams."""
        while True:
            try:
                for data in self._deliveries():
                    yield self._received(data)
                    if self._lost is not None:
                        raise WorkerLost(self._lost)
                raise WorkerLost("the workers have stopped")
            except WorkerLost as error:
                if self.interrupted():
                    # The signal that ends the run may have reached them first.
                    raise
                self._restart(str(error))

    def _restart(self, reason: str) -> None:
        self._shut_down()
        if self._restarts >= self._config.max_restarts:
            raise RunError(
                f"{reason}, after max_restarts={self._restarts} replacements: the run gives up, and can be resumed"
            )
        self._restarts += 1
        _log.warning(
            "%s: all workers are replaced, and the run continues with new episodes", reason
        )
        self._try_to_start()

    def _received(self, data: TensorDictBase) -> Batch:
        """Checks that no step is missing, and updates visit counts and step counts."""
        parts = [part.reshape(-1, part.shape[-1]) for part in self._by_worker(data)]
        for part in parts:
            worker = int(part[STAMP][0, 0, 0])
            self._check_order(worker, part)
            self._keep_account(worker, part)
            self._newest = worker
        if len(parts) == 1:
            return parts[0], self._streams(self._newest)
        return torch.cat(parts), None

    def _by_worker(self, data: TensorDictBase) -> Sequence[TensorDictBase]:
        """Splits a batch into those of single workers; here it is from one worker."""
        return [data]

    def _check_order(self, worker: int, part: TensorDictBase) -> None:
        first, expected = int(part[STAMP][0, 0, 1]), self._next_step[worker]
        if expected is None:
            if part.get("is_init", None) is None:
                # Without an InitTracker nothing else marks these as new episodes.
                begins = torch.zeros(*part.shape, 1, dtype=torch.bool)
                begins[:, 0] = True
                part.set("is_init", begins)
        elif first != expected:
            raise WorkerLost(f"steps {expected} to {first - 1} of worker {worker} did not arrive")
        self._next_step[worker] = int(part["next", STAMP][0, -1, 1])

    def _keep_account(self, worker: int, part: TensorDictBase) -> None:
        counts = find_transform(self._env, StateCounts)
        if counts is not None:
            counts.count(part)
        steps = steps_made(self._env)
        if steps is not None:
            streams = self._streams(worker)
            steps.view(-1)[streams.start : streams.stop] += part.shape[-1]
            set_steps_made(self._env, steps)

    def learned(self, frames: int) -> None:
        """Sends the newest weights to workers that are due."""
        self._frames = frames
        if (
            self._lost is not None
            or frames - self._sent_at[self._newest] < self._config.weight_period
        ):
            return
        with torch.no_grad():
            for own, learners in zip(
                _tensors(self._policy), _tensors(self._agent.policy), strict=True
            ):
                own.copy_(learners)
        try:
            for worker in self._send(self._newest):
                self._sent_at[worker] = frames
        except WorkerLost as error:
            self._lost = str(error)

    def stop(self) -> None:
        """Stops the workers; the learner's environment stays open."""
        if self._running:
            self._running = False
            self._shut_down()


def _tensors(policy: torch.nn.Module) -> Any:
    yield from policy.parameters()
    yield from policy.buffers()
