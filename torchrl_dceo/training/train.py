"""``train``: trains an agent from Python, with all features of the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from torch import nn
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.agents.networks import observation_key
from torchrl_dceo.analysis import draw_run
from torchrl_dceo.envs import StateCounts, TableEnv, env_recipe, find_transform, make_env
from torchrl_dceo.envs.prepare import frame_stack_of
from torchrl_dceo.settings import from_settings
from torchrl_dceo.training.checkpoint.run_directory import load_settings
from torchrl_dceo.training.collection import WorkerEnv
from torchrl_dceo.training.config import CollectorConfig, RunConfig, TrainConfig
from torchrl_dceo.training.logging import LoggerKind, make_logs
from torchrl_dceo.training.probes import (
    OptionProbe,
    SkillProbe,
    SpectrumProbe,
    eigen_reward,
    option_actor,
    save_run_analysis,
)
from torchrl_dceo.training.run_settings import plain_settings
from torchrl_dceo.training.trainer import Probe, Trainer

__all__ = ["check_task", "complete", "make_trainer", "train", "warnings_of"]

_log = logging.getLogger(__name__)
# The distance between the seeds of a run's environments.
_EVALUATION, _DISCOVERY = 10_000, 20_000


def train(
    agent: Agent,
    env: EnvBase,
    *,
    run_dir: str | Path | None = None,
    resume: bool | Literal["auto"] = False,
    settings: Mapping[str, Any] | None = None,
    draw: bool = True,
    **config: Any,
) -> dict[str, float]:
    """Trains an agent; returns the last row of its log.

    Like ``dceo train``: with an environment of :func:`~torchrl_dceo.envs.make_env` the agent is evaluated,
    its options are measured, and the run directory gets the settings (``config.yaml``) and, at the end, the figures.
    Each can resume the other's runs.

    Args:
        agent (Agent): from :func:`~torchrl_dceo.agents.make_agent`, or your own. It is trained in place.
        env (EnvBase): the environment; batched or not.

    Keyword Args:
        run_dir (path-like, optional): directory of log (``progress.csv``) and checkpoints. Default: none are written.
        resume (bool or "auto", optional): ``True`` resumes the run in ``run_dir``: build agent and environments as
            before; ``"auto"`` resumes a run if there is one, and starts one otherwise. Default: ``False``: a directory
            with a run raises an error.
        settings (mapping, optional): whatever else the run was made from; a resumed run must have the same.
        draw (bool, optional): draw the figures of the run at its end. Default: ``True``.
        **config: arguments of :func:`make_trainer` (``eval_env``, ``eval_episodes``, ``discovery_env``, ``probes``,
            ``logger``, ``worker_env``) and fields of :class:`~torchrl_dceo.training.TrainConfig` (``total_frames``,
            ``update_period``, ``eval_period``, ``checkpoint_period``, …) and of
            :class:`~torchrl_dceo.training.CollectorConfig` (``collector``, ``num_workers``, …).

    Networks and exploration use torch's global generator: with ``torch.manual_seed`` before the agent is built
    and seeded environments, a run is reproducible bit for bit, also if it is interrupted and resumed.

    Examples:
        >>> import tempfile, torch
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training import train
        >>> def run(frames, **kwargs):
        ...     torch.manual_seed(0)
        ...     env = make_env("NineRooms", room_size=3, seed=0, visits="counts")
        ...     agent = make_agent("dceo", env, num_options=3, dimensions=4)
        ...     return train(agent, env, total_frames=frames, learning_starts=100, log_period=100, update_period=4,
        ...                  replay_capacity=1000, progress=False, draw=False, **kwargs)
        >>> whole = run(300)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = run(200, run_dir=folder)
        ...     rest = run(300, run_dir=folder, resume=True)
        >>> rest["frames"], rest["updates"], rest["loss_main"] == whole["loss_main"]
        (300, 50, True)
    """
    if resume not in (True, False, "auto"):
        raise ValueError(f"resume must be True, False or 'auto', got {resume!r}")
    path = None if run_dir is None else Path(run_dir) / "config.yaml"
    if resume and path is not None and path.is_file() and config.get("replay_capacity") is None:
        # The capacity was computed at the start of the run; a later end does not change it.
        config["replay_capacity"] = load_settings(path).get("replay_capacity")
    trainer = make_trainer(agent, env, run_dir=run_dir, settings=settings, **config)
    return complete(trainer, _stored(trainer, config), resume=resume, draw=draw)


def make_trainer(
    agent: Agent,
    env: EnvBase,
    *,
    eval_env: EnvBase | None = None,
    eval_episodes: int = RunConfig.eval_episodes,
    discovery_env: EnvBase | None = None,
    run_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    probes: Sequence[Probe] | None = None,
    logger: LoggerKind = "csv",
    logger_settings: Mapping[str, Any] | None = None,
    worker_env: WorkerEnv | None = None,
    **config: Any,
) -> Trainer:
    """Builds the trainer of a run; for environments of :func:`~torchrl_dceo.envs.make_env`, with sensible defaults.

    Args:
        agent (Agent): the agent.
        env (EnvBase): the environment; batched or not.

    Keyword Args:
        eval_env (EnvBase, optional): a batch of environments for greedy evaluation, one episode each. Default: one like
            ``env``, with ``eval_episodes`` environments.
        eval_episodes (int, optional): 0 for no evaluation. Default: 20.
        discovery_env (EnvBase, optional): the environment without reward, for agents that discover options first.
            Default: one like ``env``.
        run_dir (path-like, optional): directory of log and checkpoints. Default: none are written.
        settings (mapping, optional): whatever else the run was made from; a resumed run must have the same.
        probes (sequence of callables, optional): ``probe(trainer)`` returns further log columns at each evaluation.
            Default: the quality of representation, options and skills, in environments with a state table.
        logger (str, optional): ``"tensorboard"`` or ``"wandb"`` also sends the rows to TorchRL's logger. The
            CSV file is always written. Default: ``"csv"``.
        logger_settings (mapping, optional): the arguments of the logger.
        worker_env (callable, optional): builds the environments of a worker, with ``collector="multi_sync"``,
            ``"multi_async"`` or ``"ray"``. It is called with ``batch_size=…``, ``seed=…`` and, where options are
            discovered first, ``coverage=True``. Default: environments like ``env``.
        **config: fields of :class:`~torchrl_dceo.training.TrainConfig` and
            :class:`~torchrl_dceo.training.CollectorConfig`.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.train import make_trainer
        >>> env = make_env("NineRooms", room_size=3, batch_size=8)
        >>> make_trainer(make_agent("dceo_two_phase", env), env).eval_env.batch_size
        torch.Size([20])
    """
    names = {field.name for field in dataclasses.fields(CollectorConfig)}
    collection = CollectorConfig(**{k: config.pop(k) for k in names & config.keys()})
    train_config = from_settings(TrainConfig, config)
    check_task(env)
    made_from: dict[str, Any] = {}
    recipe = env_recipe(env)
    if recipe is not None:
        made_from = {"env": plain_settings(recipe.made_from)}
        visits, batch_size = find_transform(env, StateCounts), env.batch_size
        if eval_env is None and eval_episodes:
            eval_env = recipe.build(_EVALUATION, batch_size=eval_episodes)
        if discovery_env is None and any(phase.reward_free for phase in agent.phases):
            discovery_env = recipe.build(
                _DISCOVERY, visits=visits, coverage=True, batch_size=batch_size
            )
        if worker_env is None:
            own = dict(recipe.made_from)
            worker_env = functools.partial(make_env, own.pop("name"), **own)
    if agent.made_from is not None:
        made_from["agent"] = plain_settings(agent.made_from)
    probes = (SpectrumProbe(), OptionProbe(), SkillProbe()) if probes is None else tuple(probes)
    trainer = Trainer(
        agent,
        env,
        train_config,
        eval_env=eval_env,
        discovery_env=discovery_env,
        run_dir=run_dir,
        settings={**made_from, **(settings or {})},
        probes=probes,
        logs=make_logs(logger, run_dir, {**config, **made_from}, **(logger_settings or {})),
        collection=collection,
        worker_env=worker_env,
    )
    for sentence in warnings_of(trainer):
        _log.warning(sentence)
    return trainer


def complete(
    trainer: Trainer,
    stored: Mapping[str, Any],
    *,
    resume: bool | Literal["auto"] = False,
    draw: bool = True,
) -> dict[str, float]:
    """Runs or resumes a trainer to its end; returns the last row of the log.

    Args:
        trainer (Trainer): from :func:`make_trainer`.
        stored (mapping): the content of ``config.yaml``, plain values.

    Keyword Args:
        resume, draw: as in :func:`train`.
    """
    run_dir = trainer.run_dir
    with _quiet_torchrl():
        if resume is True or (resume == "auto" and trainer.holds_a_run):
            trainer.resume()
        elif run_dir is not None and not trainer.holds_a_run:
            run_dir.mkdir(parents=True, exist_ok=True)
            # The capacity as a number: a run that is resumed with a later end keeps its replay buffer.
            text = {**stored, "replay_capacity": trainer.replay_capacity}
            (run_dir / "config.yaml").write_text(yaml.safe_dump(text, sort_keys=False))
        row = trainer.run()
        if run_dir is not None:
            save_run_analysis(trainer, run_dir)
            if draw:
                try:
                    drawn = draw_run(run_dir)
                    for log in trainer.logs:
                        log.show(drawn, int(row["frames"]))
                        log.close()
                except ImportError as error:
                    _log.warning("no figures of %s: %s", run_dir, error)
    return row


def _stored(trainer: Trainer, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run started from Python, in the format of the command line."""
    agent, env = trainer.agent, trainer.env
    names = {field.name for field in dataclasses.fields(CollectorConfig)}
    recipe = env_recipe(env)
    named = recipe is not None and isinstance(recipe.made_from["name"], str)
    evaluated = 0 if trainer.eval_env is None else trainer.eval_env.batch_size.numel()
    return {
        **dataclasses.asdict(trainer.config),
        **dataclasses.asdict(CollectorConfig(**{k: v for k, v in config.items() if k in names})),
        "num_envs": max(1, env.batch_size.numel()),
        "eval_episodes": evaluated,
        "device": str(next(agent.parameters()).device),
        "agent": None if agent.made_from is None else plain_settings(agent.made_from),
        "env": plain_settings(recipe.made_from) if recipe is not None and named else None,
        "logger": {"name": config.get("logger", "csv")},
    }


@contextlib.contextmanager
def _quiet_torchrl() -> Iterator[None]:
    """Silences TorchRL's report of the storage size, which would interrupt the progress line."""
    logger = logging.getLogger("torchrl")
    before = logger.level
    logger.setLevel(max(before, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(before)


def check_task(env: EnvBase) -> None:
    """Raises an error for a map without a goal if a reward is expected.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.train import check_task
        >>> check_task(make_env("S..", coverage=True))
        >>> check_task(make_env("S.."))
        Traceback (most recent call last):
        ValueError: this map has no goal, so that nothing is ever rewarded: mark one by G, or set coverage=True ...
    """
    recipe = env_recipe(env)
    if recipe is None or recipe.made_from.get("coverage", False):
        return
    base = _innermost(env)
    if isinstance(base, TableEnv) and not bool(base._is_goal.any()):
        raise ValueError(
            "this map has no goal, so that nothing is ever rewarded: mark one by G, or set coverage=True (on the "
            "command line env.coverage=true) to explore without reward"
        )


def _innermost(env: EnvBase) -> EnvBase:
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def warnings_of(trainer: Trainer) -> list[str]:
    """Warnings about settings that will probably not work, before training starts.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.train import make_trainer, warnings_of
        >>> env = make_env("NineRooms", room_size=3)
        >>> agent = make_agent("dceo_two_phase", env, discovery_frames=10_000)
        >>> warnings_of(make_trainer(agent, env, total_frames=10_000))[0]
        'discovery takes 10,000 of 10,000 frames, so that the main learner never learns: ...'
    """
    agent, config, found = trainer.agent, trainer.config, []
    discovery = sum(phase.frames or 0 for phase in agent.phases)
    if discovery >= config.total_frames:
        found.append(
            f"discovery takes {discovery:,} of {config.total_frames:,} frames, so that the main learner never learns: "
            "set fewer discovery_frames or more total_frames"
        )
    reward, options = eigen_reward(agent), option_actor(agent)
    if reward is not None:
        outputs, what = _last_sizes(reward.encoder), "eigenfunctions"
    else:
        outputs, what = (None if options is None else _last_sizes(options)), "options"
    wanted = (
        reward.num_options if reward is not None else 0 if options is None else options.num_options
    )
    if outputs is not None and wanted > outputs:
        found.append(
            f"{wanted} {what} are linear in {outputs} features of their network, so that at most {outputs} of them "
            "differ: set fewer num_options or a wider network"
        )
    if agent.replay.observation_hash != "exact" and not agent.replay.draws_distinct:
        given = plain_settings({"observation_hash": agent.replay.observation_hash})
        found.append(
            f"observation_hash={given['observation_hash']!r} has no effect, because no batch is drawn by distinct "
            "observations: set replay_measure='distinct' or leave it out"
        )
    found += _memory_of_replay(trainer)
    episodes = 0 if trainer.eval_env is None else max(1, trainer.eval_env.batch_size.numel())
    base = _innermost(trainer.env)
    steps = base.max_steps if isinstance(base, TableEnv) else None
    recipe = env_recipe(trainer.env)
    if recipe is not None:
        steps = recipe.made_from.get("max_steps", steps)
    period = min(config.eval_period, config.total_frames)
    if steps is not None and episodes * steps > period:
        found.append(
            f"an evaluation may take {episodes} episodes of {steps:,} steps, {episodes * steps:,} frames for every "
            f"{period:,} of training: set fewer eval_episodes or a longer eval_period"
        )
    return found


def _memory_of_replay(trainer: Trainer) -> list[str]:
    """A warning if the observations of a full replay buffer do not fit into this machine's memory."""
    key = observation_key(trainer.env)
    spec, stack = trainer.env.observation_spec[key], frame_stack_of(trainer.env, key)
    numbers = spec.shape[len(trainer.env.batch_size) :].numel() // (1 if stack is None else stack.N)
    needed = trainer.replay_capacity * numbers * spec.dtype.itemsize / 1e9
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if trainer.config.replay_storage == "memmap" or needed < there:
        return []
    return [
        f"a full replay of {trainer.replay_capacity:,} observations takes {needed:.3g} GB, this machine has "
        f"{there:.3g}: set a smaller replay_capacity, or replay_storage='memmap'"
    ]


def _last_sizes(module: nn.Module) -> int | None:
    """The input features of the last linear layer."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return layers[-1].in_features if layers else None
