"""Collecting transitions, in this process, in worker processes or on a Ray cluster: one interface for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import Collector
from torchrl.envs import EnvBase

from torchrl_dceo._fast import is_fast
from torchrl_dceo._fast.rollout import DirectRollout, reason_against
from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.training.config import CollectorConfig, TrainConfig

__all__ = ["Batch", "Collection", "SingleCollection", "WorkerEnv", "make_collection"]

# Called with batch_size=…, seed=… and, for a phase without reward, coverage=True; e.g. make_env with a name.
WorkerEnv = Callable[..., EnvBase]
# Steps [*E, T], and their streams in the replay buffer; None: all of them, in order.
Batch = tuple[TensorDictBase, Sequence[int] | None]


class Collection(ABC):
    """A source of steps: it is started for a phase of the run, iterated, notified of updates, and stopped.

    Attributes:
        interrupted (callable): whether a signal ends the run, so that nothing is restarted.
    """

    interrupted: Callable[[], bool] = staticmethod(lambda: False)

    @property
    def carrier(self) -> TensorDict | None:
        """The next step's input, if a resumed run can continue from it."""
        return None

    def carry_on(self, carrier: TensorDict) -> None:
        """Continues from a saved step; if that is not possible, the episode is dropped."""
        del carrier

    @abstractmethod
    def start(self, env: EnvBase, *, reward_free: bool, frames: int) -> None:
        """Starts collecting.

        Args:
            env (EnvBase): the environment of the phase, or a copy if workers step their own.

        Keyword Args:
            reward_free (bool): whether the phase has no reward.
            frames (int): the frames of the run so far.
        """

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Infinite iterator over batches; the steps of a stream are in order."""

    def learned(self, frames: int) -> None:
        """Called after the updates for all delivered batches, i.e. the run's first ``frames`` frames."""
        del frames

    @abstractmethod
    def stop(self) -> None:
        """Stops collecting; it can be started again."""

    def close(self) -> None:
        """Stops permanently."""
        self.stop()


class SingleCollection(Collection):
    """Collects in this process with the agent's policy, between updates.

    Args:
        policy (TensorDictModuleBase): the agent's.
        update_period (int): frames between two updates: the batch size, rounded up to whole steps of all
            environments.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.collection import SingleCollection
        >>> env = make_env("NineRooms", batch_size=4)
        >>> collection = SingleCollection(make_agent("ddqn", env).policy, update_period=8)
        >>> collection.start(env, reward_free=False, frames=0)
        >>> data, streams = next(iter(collection))
        >>> collection.close()
        >>> data.shape, streams
        (torch.Size([4, 2]), None)
    """

    def __init__(self, policy: TensorDictModuleBase, update_period: int) -> None:
        self._policy = policy
        self._update_period = update_period
        self._collector: Collector | None = None
        self._direct: DirectRollout | None = None

    @property
    def carrier(self) -> TensorDict | None:
        """The collector's tensordict, which is not in its ``state_dict``."""
        return None if self._collector is None else self._collector._carrier

    def carry_on(self, carrier: TensorDict) -> None:
        """Restores a saved step."""
        assert self._collector is not None
        device = self._collector._carrier.device
        self._collector._carrier = carrier if device is None else carrier.to(device)

    def start(self, env: EnvBase, *, reward_free: bool, frames: int) -> None:
        """Resets the environment and calls the policy once."""
        del reward_free, frames
        num_envs = max(1, env.batch_size.numel())
        tensors = (*self._policy.parameters(), *self._policy.buffers())
        apart = {tensor.device for tensor in tensors} - {env.device}
        devices: dict[str, Any] = {"device": env.device}
        if apart:
            # The networks may be on an accelerator; environment and stored steps are on the host.
            devices = {"policy_device": apart.pop(), "env_device": env.device}
            devices["storing_device"] = env.device
        self._collector = Collector(
            env,
            self._policy,
            frames_per_batch=-(-self._update_period // num_envs) * num_envs,
            total_frames=-1,
            # Explicit devices, so that nothing is cast between policy and environment, and a new stack instead of a
            # copy of a reused one: together a tenth of the time of collecting.
            **devices,
            use_buffers=False,
            return_same_td=True,
            no_cuda_sync="device" in devices,
            track_traj_ids=False,
        )
        if is_fast() and not apart and reason_against(env) is None:
            self._direct = DirectRollout(self._collector)

    def __iter__(self) -> Iterator[Batch]:
        """The collector's batches, of all environments each."""
        assert self._collector is not None
        if self._direct is None:
            for data in self._collector:
                yield data, None
        else:
            while True:
                yield self._direct(), None

    def stop(self) -> None:
        """Releases the collector; the environments stay open."""
        if self._collector is not None:
            self._collector.shutdown(close_env=False)
            self._collector = self._direct = None


def make_collection(
    agent: Agent,
    config: TrainConfig,
    collector: CollectorConfig | None = None,
    worker_env: WorkerEnv | None = None,
) -> Collection:
    """Builds the collection of an agent.

    Args:
        agent (Agent): the agent.
        config (TrainConfig): the config of the run.
        collector (CollectorConfig, optional): how transitions are collected. Default: this process.
        worker_env (callable, optional): builds the environments of a worker.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training import CollectorConfig, TrainConfig
        >>> from torchrl_dceo.training.collection import make_collection
        >>> agent = make_agent("ddqn", make_env("NineRooms"))
        >>> type(make_collection(agent, TrainConfig())).__name__
        'SingleCollection'
        >>> make_collection(agent, TrainConfig(), CollectorConfig("multi_sync"))
        Traceback (most recent call last):
        ValueError: collector='multi_sync' builds environments in its workers: pass worker_env, e.g. ...
    """
    if collector is None or not collector.uses_workers:
        return SingleCollection(agent.policy, config.update_period)
    if worker_env is None:
        raise ValueError(
            f"collector={collector.collector!r} builds environments in its workers: pass worker_env, e.g. "
            "functools.partial(make_env, 'NineRooms')"
        )
    # Imported here: the TorchRL modules take long to import, and Ray is an extra.
    if collector.collector == "ray":
        from torchrl_dceo.training.collection.ray import RayCollection

        return RayCollection(agent, collector, worker_env, config.seed)
    from torchrl_dceo.training.collection.multi import MultiAsyncCollection, MultiSyncCollection

    kind = MultiSyncCollection if collector.collector == "multi_sync" else MultiAsyncCollection
    return kind(agent, collector, worker_env, config.seed)
