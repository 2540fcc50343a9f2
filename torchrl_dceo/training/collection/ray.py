"""Workers as Ray actors, on this machine or on a cluster, with TorchRL's RayCollector."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from tensordict import TensorDictBase
from torch.distributed import DistStoreError
from torchrl.collectors import Collector
from torchrl.collectors.distributed import RayCollector
from torchrl.weight_update import _ray

from torchrl_dceo.training.collection.workers import WorkerCollection, WorkerEnvBuilder, WorkerLost
from torchrl_dceo.training.errors import RunError

__all__ = ["RayCollection"]

_log = logging.getLogger(__name__)
_ENDLESS = 2**62  # frames; RayCollector does not know -1
_CONNECTION = timedelta(minutes=10)
_PATIENCE = 10.0  # seconds for an actor to respond
_HEARTBEAT = 5.0  # seconds between two checks of the cluster's head


class ActorCollector(Collector):
    """A collector whose errors are raised. Ray evaluates ``bool`` of a failed actor, which for TorchRL's calls
    ``len``; an infinite collector has none, and that second error would kill the actor.
    """

    def __bool__(self) -> bool:
        return True


class HeadWatch:
    """Detects that the head of the cluster is gone. Ray itself does so only after a minute, by ending the process.

    A thread connects to the head periodically. After two failures the next call to Ray raises
    :class:`~torchrl_dceo.training.errors.RunError`. A pending call is interrupted by a signal. If it cannot be
    (it waits inside Ray), it gets ten seconds; then the
    process ends with the same message and exit code 1.
    """

    def __init__(self) -> None:
        self.address = str(ray.get_runtime_context().gcs_address)
        self.lost = False
        self.waiting = True  # whether the learner waits for Ray
        self._closed = threading.Event()
        self._main = threading.current_thread() is threading.main_thread()
        self._before: Any = signal.signal(signal.SIGUSR1, self._wake) if self._main else None
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        host, _, port = self.address.rpartition(":")
        misses = 0
        while misses < 2:
            if self._closed.wait(_HEARTBEAT):
                return
            try:
                socket.create_connection((host, int(port)), timeout=_HEARTBEAT).close()
                misses = 0
            except OSError:
                misses += 1
        self.lost = True
        main = threading.main_thread().ident
        if self._main and main is not None:
            signal.pthread_kill(main, signal.SIGUSR1)
        seconds = 0
        while not self._closed.wait(1.0):
            seconds = seconds + 1 if self.waiting else 0
            if seconds >= _PATIENCE:
                sys.stderr.write(f"{self._sentence()}\n")
                sys.stderr.flush()
                os._exit(1)

    def _wake(self, number: int, frame: FrameType | None) -> None:
        if self.waiting:
            self.check()

    def check(self) -> None:
        """Raises an error if the head is gone."""
        if self.lost:
            raise RunError(self._sentence())

    def _sentence(self) -> str:
        return f"the head of the Ray cluster at {self.address} is gone: start it again and resume the run"

    def close(self) -> None:
        """Stops the thread."""
        self._closed.set()
        if self._main:
            signal.signal(signal.SIGUSR1, self._before)


class RayCollection(WorkerCollection):
    """One Ray actor per worker; a batch is from one worker, and all workers collect during updates.

    The first start connects to Ray or starts it on this machine, unless the program has done so; what was
    started here ends with :meth:`close`. The replay buffer is in the learner's process: it is read at every update, but
    written only once per batch, so TorchRL's ``RayReplayBuffer``, in another process, would be slower.

    See :class:`~torchrl_dceo.training.collection.workers.WorkerCollection` for the arguments.
    """

    _collector: Any = None
    _actor_ids: list[str]
    _owns_ray = False
    _head: HeadWatch | None = None

    def _launch(self, envs: list[WorkerEnvBuilder]) -> None:
        self._connect()
        if self._head is None:
            self._head = HeadWatch()
        self._head.waiting = True
        config = self._config
        # Without these RayCollector reserves 2 GB for each actor.
        reserved: dict[str, Any] = {"num_cpus": config.ray_cpus, "num_gpus": 0}
        if config.ray_memory is not None:
            reserved["memory"] = config.ray_memory
        self._collector = RayCollector(
            envs,
            self._policy,
            frames_per_batch=self._envs_per_worker * config.worker_steps,
            total_frames=_ENDLESS,
            device="cpu",
            collector_class=ActorCollector,
            collector_kwargs={"track_traj_ids": False, "use_buffers": False},
            remote_configs=reserved,
            sync=False,
        )
        # Kept here: RayCollector drops its actors before it raises the error of one of them.
        self._actor_ids = [actor._actor_id.hex() for actor in self._collector.remote_collectors]
        # TorchRL's one minute for actors to find the learner is too short on a busy machine.
        _ray._DIST_TIMEOUT = _CONNECTION
        self._attempt(self._collector.update_policy_weights_)

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        config = self._config
        # The output of actors stays in Ray's logs; their errors are raised here anyway.
        settings: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
        needed = config.num_workers * config.ray_cpus
        address = config.ray_address or os.environ.get("RAY_ADDRESS")
        if address is None:
            # Actors without a free CPU would wait forever.
            settings["num_cpus"] = max(os.cpu_count() or 1, -int(-needed // 1))
        else:
            settings["address"] = address
        try:
            ray.init(logging_level=logging.WARNING, **settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise RunError(
                f"there is no Ray cluster at ray_address={address}, or it cannot be joined ({reason}): start it with "
                "`ray start --head`, or leave ray_address out"
            ) from error
        self._owns_ray = True
        there = ray.cluster_resources().get("CPU", 0)
        if there < needed:
            _log.warning(
                "num_workers=%d with ray_cpus=%g need %g CPUs and the cluster has %g: Ray waits until there are more",
                config.num_workers,
                config.ray_cpus,
                needed,
                there,
            )

    def _deliveries(self) -> Iterator[TensorDictBase]:
        batches = iter(self._collector)
        while True:
            try:
                data = self._attempt(next, batches)
            except StopIteration:
                return
            yield data

    def _send(self, worker: int) -> Iterable[int]:
        # This worker is idle until its next batch is requested; updating the others would mean waiting for them.
        self._attempt(self._collector.update_policy_weights_, worker_ids=[worker])
        return [worker]

    def _attempt(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a function and translates the loss of an actor into :class:`WorkerLost`; other errors are passed on."""
        assert self._head is not None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._head.check()
                self._head.waiting = True
                return call(*args, **kwargs)
        except RayActorError as error:
            self._head.check()
            raise WorkerLost(f"the Ray actor of {self._name(error)} has died") from error
        except DistStoreError as error:
            raise WorkerLost("the Ray actors did not find the learner in time") from error
        except (RuntimeError, OSError) as error:
            # Weights are not sent through Ray: a dead actor is a broken connection there.
            self._head.check()
            death = self._death()
            if death is None:
                raise
            raise death from error
        finally:
            self._head.waiting = False

    def _name(self, error: RayActorError) -> str:
        died = getattr(error, "actor_id", None)
        return f"worker {self._actor_ids.index(died)}" if died in self._actor_ids else "a worker"

    def _death(self) -> WorkerLost | None:
        for actor in self._collector.remote_collectors:
            try:
                ray.get(actor.__ray_ready__.remote(), timeout=_PATIENCE)
            except RayActorError as error:
                return WorkerLost(f"the Ray actor of {self._name(error)} has died")
            except GetTimeoutError:
                continue  # at work
        return None

    def _shut_down(self) -> None:
        if self._collector is not None:
            if self._head is None or not self._head.lost:
                self._collector.shutdown()
            self._collector = None

    def close(self) -> None:
        """Stops the workers, and Ray if it was started or connected here."""
        self.stop()
        if self._head is not None:
            self._head.close()
            self._head = None
        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False
