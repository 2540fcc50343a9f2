"""Collecting transitions: in this process, in worker processes, on a Ray cluster."""

from __future__ import annotations

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.training.collection.base import Collection, SingleCollection
from torchrl_dceo.training.collection.workers import WorkerEnv
from torchrl_dceo.training.config import CollectorConfig, TrainConfig

__all__ = ["make_collection"]


def make_collection(
    agent: Agent,
    config: TrainConfig,
    collector: CollectorConfig | None = None,
    worker_env: WorkerEnv | None = None,
) -> Collection:
    """Builds what collects for an agent.

    Args:
        agent (Agent): whose policy acts.
        config (TrainConfig): of the run.
        collector (CollectorConfig, optional): who makes the steps. Default: this process.
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
    # Their TorchRL modules take a while to import, and Ray is an extra.
    if collector.collector == "ray":
        from torchrl_dceo.training.collection.ray import RayCollection

        return RayCollection(agent, collector, worker_env, config.seed)
    from torchrl_dceo.training.collection.multi import MultiAsyncCollection, MultiSyncCollection

    kind = MultiSyncCollection if collector.collector == "multi_sync" else MultiAsyncCollection
    return kind(agent, collector, worker_env, config.seed)
