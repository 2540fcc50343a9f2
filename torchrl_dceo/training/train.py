"""``train``: an agent, an environment and a number of frames, from plain Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.training.collection import WorkerEnv
from torchrl_dceo.training.config import CollectorConfig, TrainConfig
from torchrl_dceo.training.logging import LoggerKind, make_logs
from torchrl_dceo.training.trainer import Probe, Trainer

__all__ = ["train"]


def train(
    agent: Agent,
    env: EnvBase,
    *,
    total_frames: int,
    eval_env: EnvBase | None = None,
    discovery_env: EnvBase | None = None,
    run_dir: str | Path | None = None,
    resume: bool | Literal["auto"] = False,
    settings: Mapping[str, Any] | None = None,
    probes: tuple[Probe, ...] = (),
    logger: LoggerKind = "csv",
    worker_env: WorkerEnv | None = None,
    **config: Any,
) -> dict[str, float]:
    """Trains an agent; returns the last row of its log.

    Args:
        agent (Agent): from :func:`~torchrl_dceo.agents.make_agent`, or your own. It is trained in place.
        env (EnvBase): the world; batched or not.

    Keyword Args:
        total_frames (int): how many frames the run has in all, those before it was interrupted included.
        eval_env (EnvBase, optional): a batch of environments for greedy evaluation, one episode each.
        discovery_env (EnvBase, optional): the world without reward, for agents that discover options first.
        run_dir (path-like, optional): where log (``progress.csv``) and checkpoints go; nothing is written without it.
        resume (bool or "auto", optional): ``True`` goes on with the run in ``run_dir``: build agent and environments
            as it did; ``"auto"`` does so if there is one, and starts it otherwise. Default: ``False``: a
            directory that holds a run is refused.
        settings (mapping, optional): whatever else the run was made from; a resumed run must have the same.
        probes (sequence of callables, optional): ``probe(trainer)`` returns further numbers at each evaluation.
        logger (str, optional): ``"tensorboard"`` or ``"wandb"`` sends the rows there as well, by TorchRL's logger. The
            CSV file is written anyway. Default: ``"csv"``.
        worker_env (callable, optional): builds the environments of a worker, with ``collector="multi_sync"``,
            ``"multi_async"`` or ``"ray"``: ``functools.partial(make_env, "NineRooms")``, say. It is called with
            ``batch_size=…``, ``seed=…`` and, where options are discovered first, ``coverage=True``.
        **config: the other fields of :class:`~torchrl_dceo.training.TrainConfig` (``update_period``, ``eval_period``,
            ``checkpoint_period``, …) and of :class:`~torchrl_dceo.training.CollectorConfig` (``collector``,
            ``num_workers``, …).

    Networks and exploration draw from torch's global generator: with ``torch.manual_seed`` before the agent is built
    and seeded environments, the same run gives the same numbers, bit for bit, also if it is interrupted and resumed.

    Examples:
        >>> import tempfile, torch
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training import train
        >>> def run(frames, **kwargs):
        ...     torch.manual_seed(0)
        ...     env = make_env("NineRooms", room_size=3, seed=0, visits="counts")
        ...     agent = make_agent("dceo", env, num_options=3, dimensions=4)
        ...     return train(agent, env, total_frames=frames, learning_starts=100, log_period=100,
        ...                  replay_capacity=1000, progress=False, **kwargs)
        >>> whole = run(300)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = run(200, run_dir=folder)
        ...     rest = run(300, run_dir=folder, resume=True)
        >>> rest["frames"], rest["updates"], rest["loss_main"] == whole["loss_main"]
        (300, 50, True)
    """
    names = {field.name for field in fields(CollectorConfig)}
    collection = CollectorConfig(**{k: config.pop(k) for k in names & config.keys()})
    trainer = Trainer(
        agent,
        env,
        TrainConfig(total_frames=total_frames, **config),
        eval_env=eval_env,
        discovery_env=discovery_env,
        run_dir=run_dir,
        settings=settings,
        probes=probes,
        logs=make_logs(logger, run_dir, settings),
        collection=collection,
        worker_env=worker_env,
    )
    if resume not in (True, False, "auto"):
        raise ValueError(f"resume must be True, False or 'auto', got {resume!r}")
    if resume is True or (resume == "auto" and trainer.holds_a_run):
        trainer.resume()
    return trainer.run()
