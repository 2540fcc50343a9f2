"""Workers that are Ray actors, on this machine or on a cluster, by TorchRL's RayCollector."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from tensordict import TensorDictBase
from torch.distributed import DistStoreError
from torchrl.collectors import Collector
from torchrl.collectors.distributed import RayCollector
from torchrl.weight_update import _ray

from torchrl_dceo.training.collection.workers import WorkerCollection, WorkerLost, WorkerWorld

__all__ = ["RayCollection"]

_log = logging.getLogger(__name__)
_ENDLESS = 2**62  # frames; RayCollector does not know -1
_CONNECTION = timedelta(minutes=10)
_PATIENCE = 10.0  # seconds for an actor to show that it lives


class ActorCollector(Collector):
    """A collector whose errors arrive: Ray asks for the truth of an actor that has failed, which for TorchRL's is its
    length; an endless one has none, and that second error kills the actor.
    """

    def __bool__(self) -> bool:
        return True


class RayCollection(WorkerCollection):
    """One Ray actor a worker. A batch is one worker's, and the others go on while the learner learns from it.

    Ray is connected to, or started on this machine, at the first start, unless the program has done so; what was
    started here ends with :meth:`close`. The replay stays with the learner: it is read at every update, and written
    once for each batch, so that TorchRL's ``RayReplayBuffer`` would put a call to another process where the time goes.

    See :class:`~torchrl_dceo.training.collection.workers.WorkerCollection` for the arguments.
    """

    _collector: Any = None
    _actor_ids: list[str]
    _owns_ray = False

    def _launch(self, worlds: list[WorkerWorld]) -> None:
        self._connect()
        config = self._config
        # Without these RayCollector reserves 2 GB for each actor.
        reserved: dict[str, Any] = {"num_cpus": config.ray_cpus, "num_gpus": 0}
        if config.ray_memory is not None:
            reserved["memory"] = config.ray_memory
        self._collector = RayCollector(
            worlds,
            self._policy,
            frames_per_batch=self._envs_per_worker * config.worker_steps,
            total_frames=_ENDLESS,
            device="cpu",
            collector_class=ActorCollector,
            collector_kwargs={"track_traj_ids": False, "use_buffers": False},
            remote_configs=reserved,
            sync=False,
        )
        # Kept here: RayCollector forgets its actors before it raises what one of them died of.
        self._actor_ids = [actor._actor_id.hex() for actor in self._collector.remote_collectors]
        # A minute for actors to find the learner is too little for TorchRL on a busy machine.
        _ray._DIST_TIMEOUT = _CONNECTION
        self._attempt(self._collector.update_policy_weights_)

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        config = self._config
        # What actors print stays in Ray's own logs, and what they raise comes here anyway.
        settings: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
        needed = config.num_workers * config.ray_cpus
        address = config.ray_address or os.environ.get("RAY_ADDRESS")
        if address is None:
            # Actors that find no free CPU would wait for ever.
            settings["num_cpus"] = max(os.cpu_count() or 1, -int(-needed // 1))
        else:
            settings["address"] = address
        ray.init(logging_level=logging.WARNING, **settings)
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
        # That one rests until its next batch is asked for; the others would have to be waited for.
        self._attempt(self._collector.update_policy_weights_, worker_ids=[worker])
        return [worker]

    def _attempt(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls; says who is lost if that is why it fails. What an actor itself raises is passed on."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return call(*args, **kwargs)
        except RayActorError as error:
            raise WorkerLost(f"the Ray actor of {self._name(error)} has died") from error
        except DistStoreError as error:
            raise WorkerLost("the Ray actors did not find the learner in time") from error
        except (RuntimeError, OSError) as error:
            # Weights go another way than through Ray: there a dead actor is a broken connection.
            death = self._death()
            if death is None:
                raise
            raise death from error

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
            self._collector.shutdown()
            self._collector = None

    def close(self) -> None:
        """Ends the workers, and Ray if it was started or connected to here."""
        self.stop()
        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False
