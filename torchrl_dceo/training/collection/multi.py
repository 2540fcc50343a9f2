"""Worker processes on this machine, with TorchRL's multi-process collectors."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterable, Iterator, Sequence
from queue import Empty
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
from torchrl.weight_update import SharedMemWeightSyncScheme

from torchrl_dceo.training.collection.workers import WorkerCollection, WorkerEnvBuilder, WorkerLost
from torchrl_dceo.training.errors import RunError

__all__ = ["MultiAsyncCollection", "MultiSyncCollection"]

_PATIENCE = 600.0  # seconds that a worker waits for a learner that evaluates or saves
# Errors of a call to a dead worker; ValueError for processes that TorchRL closes before they have ended.
_BROKEN = (RuntimeError, OSError, EOFError, ValueError)
_GOODBYE = 2.0  # seconds to end by itself


def _wait_for_the_learner() -> None:
    """In a worker: TorchRL 0.14 drops a batch if the learner does not fetch it within a second."""
    from torchrl.collectors import _runner

    _runner._TIMEOUT = _PATIENCE
    # Ctrl-C is sent to the workers too: the learner saves first and then ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def _quick_start() -> Iterator[None]:
    """Forks processes from a server with all imports done: seconds faster per process than spawn.

    Unlike a plain fork they inherit nothing of this process.
    """
    before = multiprocessing.get_start_method(allow_none=True)
    if before not in (None, "spawn") or "forkserver" not in multiprocessing.get_all_start_methods():
        yield
        return
    # tensordict imports pandas, if installed, at the first output of a module.
    imported = ["torchrl.collectors", "torchrl_dceo.training", "pandas"]
    multiprocessing.set_forkserver_preload(imported)
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


class MultiSyncCollection(WorkerCollection):
    """All workers at once, while the learner waits: a batch has the steps of all environments, reproducibly.

    See :class:`~torchrl_dceo.training.collection.workers.WorkerCollection` for the arguments.
    """

    _kind: Any = MultiSyncCollector
    _collector: Any = None

    def _frames_per_batch(self) -> int:
        return self._config.num_workers * self._envs_per_worker * self._config.worker_steps

    def _launch(self, envs: list[WorkerEnvBuilder]) -> None:
        # Not waited for by the scheme itself, which would also wait for dead workers.
        self._scheme = SharedMemWeightSyncScheme(sync=False)
        self._threads = torch.get_num_threads()
        with _quick_start():
            self._collector = self._kind(
                envs,
                self._policy,
                frames_per_batch=self._frames_per_batch(),
                total_frames=-1,
                device="cpu",
                num_threads=self._threads,
                num_sub_threads=1,
                weight_sync_schemes={"policy": self._scheme},
                init_fn=_wait_for_the_learner,
            )

    def _deliveries(self) -> Iterator[TensorDictBase]:
        batches = iter(self._collector)
        while True:
            try:
                data = next(batches)
            except StopIteration:
                return
            except _BROKEN as error:
                raise self._cause(error) from error
            yield data

    def _by_worker(self, data: TensorDictBase) -> Sequence[TensorDictBase]:
        return data.unbind(0)

    def _cause(self, error: Exception) -> Exception:
        """Replaces a killed worker; a worker that raised an error would fail again, so its error is raised."""
        codes = {
            worker: process.exitcode
            for worker, process in enumerate(self._collector.procs)
            if not process._closed and not process.is_alive()
        }
        # TorchRL terminates all others when it finds one dead: that one is the cause.
        for worker, code in sorted(codes.items(), key=lambda item: item[1] == -signal.SIGTERM):
            if code < 0:
                return WorkerLost(f"worker {worker} was killed by signal {-code}")
            return RunError(
                f"worker {worker} has failed, with exit code {code}: its error is above"
            )
        return error

    def _send(self, worker: int) -> Iterable[int]:
        try:
            self._collector.update_policy_weights_()
            self._await_workers()
        except _BROKEN as error:
            raise self._cause(error) from error
        return range(self._config.num_workers)

    def _await_workers(self) -> None:
        """Waits until each worker has confirmed the new weights."""
        for worker, queue in self._scheme._ack_queues.items():
            while True:
                with contextlib.suppress(Empty):
                    queue.get(timeout=1.0)
                    break
                if not self._collector.procs[worker].is_alive():
                    raise RuntimeError(f"worker {worker} does not answer")

    def _shut_down(self) -> None:
        if self._collector is not None:
            self._collector.shutdown(timeout=_GOODBYE, raise_on_error=False)
            self._collector = None
            torch.set_num_threads(self._threads)  # TorchRL leaves more behind


class MultiAsyncCollection(MultiSyncCollection):
    """Asynchronous workers: they collect during updates; a batch is from one worker, the first that is ready.

    See :class:`~torchrl_dceo.training.collection.workers.WorkerCollection` for the arguments.
    """

    _kind: Any = MultiAsyncCollector

    def _frames_per_batch(self) -> int:
        return self._envs_per_worker * self._config.worker_steps

    def _by_worker(self, data: TensorDictBase) -> Sequence[TensorDictBase]:
        return [data]

    def _await_workers(self) -> None:
        """The weights are in shared memory, so only the workers' confirmations are read."""
        for queue in self._scheme._ack_queues.values():
            with contextlib.suppress(Empty):
                while True:
                    queue.get_nowait()
