"""Steps made by others: workers with their own environments and a copy of the policy."""

from __future__ import annotations

import copy
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from torchrl_dceo.envs import StateCounts, current_map, find_transform
from torchrl_dceo.envs.switching import set_steps_made, steps_made
from torchrl_dceo.training.agent import Agent
from torchrl_dceo.training.collection import Batch, Collection
from torchrl_dceo.training.collector_config import CollectorConfig
from torchrl_dceo.training.workers import STAMP, WorkerEnv, WorkerWorld, worker_seeds

__all__ = ["WorkerCollection", "WorkerLost"]

_log = logging.getLogger(__name__)


class WorkerLost(RuntimeError):
    """A worker has died, or something that it made did not arrive."""


class WorkerCollection(Collection):
    """What all collections with workers share; a subclass says how workers are started, heard and told.

    Worker i has the i-th part of the run's environments, so its steps are those of a range of streams. The learner's
    own environment makes no step: it keeps the run's account (visit counts, and how far a world that changes has
    come), from what workers deliver. A lost worker costs the steps under way: all workers are replaced and begin new
    episodes, which the replay does not join to the old ones.

    Args:
        agent (Agent): whose policy is copied.
        config (CollectorConfig): how many workers, and how often they hear of the learner.
        worker_env (callable): builds environments from ``batch_size=``, ``seed=`` and, for a phase without reward,
            ``coverage=True``.
        seed (int): of the run.
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
        self._lost: str | None = None  # why, if it was noticed outside the iteration

    # What a subclass says

    @abstractmethod
    def _launch(self, worlds: list[WorkerWorld]) -> None:
        """Starts the workers, with ``self._policy``."""

    @abstractmethod
    def _deliveries(self) -> Iterator[TensorDictBase]:
        """Batches as they come; raises :class:`WorkerLost`."""

    @abstractmethod
    def _send(self, worker: int) -> Iterable[int]:
        """Sends ``self._policy`` to the worker whose batch was just delivered, and says who got it; raises
        :class:`WorkerLost`.
        """

    @abstractmethod
    def _shut_down(self) -> None:
        """Ends the workers, dead or alive."""

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
        # Where workers act by, apart from the learner's own tensors: they change when they are sent, not before.
        self._policy = copy.deepcopy(self._agent.policy).to("cpu").requires_grad_(False)
        self._next_step: list[int | None] = [None] * workers
        self._sent_at = [self._frames] * workers
        self._newest = 0  # the worker heard last
        self._lost = None
        self._running = True
        self._launch([self._world(worker) for worker in range(workers)])

    def _world(self, worker: int) -> WorkerWorld:
        steps, part = steps_made(self._env), self._streams(worker)
        alone = self._config.num_workers == 1
        return WorkerWorld(
            self._worker_env,
            worker,
            self._env.batch_size if alone else torch.Size([len(part)]),
            # Never those of before: a worker that is replaced must not live the same life again.
            seeds=worker_seeds(self._seed, self._frames, self._restarts, worker),
            transforms=self._agent.transforms,
            settings={"coverage": True} if self._reward_free else {},
            steps=None if steps is None else steps.view(-1)[part.start : part.stop],
            # Discovery comes before any change of the world.
            held_map=current_map(self._env) if self._reward_free else None,
        )

    def _streams(self, worker: int) -> range:
        return range(worker * self._envs_per_worker, (worker + 1) * self._envs_per_worker)

    def __iter__(self) -> Iterator[Batch]:
        """Batches as they come, each with its streams."""
        while True:
            try:
                for data in self._deliveries():
                    yield self._received(data)
                    if self._lost is not None:
                        raise WorkerLost(self._lost)
                raise WorkerLost("the workers have stopped")
            except WorkerLost as error:
                self._restart(str(error))

    def _restart(self, reason: str) -> None:
        self._shut_down()
        if self._restarts >= self._config.max_restarts:
            raise RuntimeError(
                f"{reason}, after max_restarts={self._restarts} replacements: the run gives up, and can be resumed"
            )
        self._restarts += 1
        _log.warning("%s: all workers are replaced, and the run goes on with new episodes", reason)
        self._try_to_start()

    def _received(self, data: TensorDictBase) -> Batch:
        """Checks that nothing is missing, and keeps the account."""
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
        """The batches of single workers, in their order: the one that it is."""
        return [data]

    def _check_order(self, worker: int, part: TensorDictBase) -> None:
        first, expected = int(part[STAMP][0, 0, 1]), self._next_step[worker]
        if expected is None:
            if part.get("is_init", None) is None:
                # Without an InitTracker nobody else tells the replay that these are new episodes.
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
        """Sends the newest weights where it is time."""
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
        """Ends the workers; the learner's environment stays open."""
        if self._running:
            self._running = False
            self._shut_down()


def _tensors(policy: torch.nn.Module) -> Any:
    yield from policy.parameters()
    yield from policy.buffers()
