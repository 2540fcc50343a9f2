"""``dceo train env=nine_rooms agent=dceo key=value …``: one run, or with ``--multirun`` a sweep."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from torchrl.envs import EnvBase

from torchrl_dceo._fast.process import tune_process
from torchrl_dceo.agents import AGENTS, make_agent
from torchrl_dceo.analysis import draw_run
from torchrl_dceo.cli.config import (
    CONF,
    MISTAKES,
    SHARED,
    TRAIN,
    as_dict,
    combinations,
    compose,
    parse,
    prepared,
)
from torchrl_dceo.envs import StateCounts, find_transform, make_env
from torchrl_dceo.settings import environment_fields
from torchrl_dceo.training import Trainer
from torchrl_dceo.training.checkpoint.run_directory import load_settings
from torchrl_dceo.training.checkpoint.state import seed_generators
from torchrl_dceo.training.errors import exit_with_a_sentence
from torchrl_dceo.training.logging.logs import make_logs
from torchrl_dceo.training.probes import OptionProbe, SkillProbe, SpectrumProbe, save_run_analysis

__all__ = ["build", "check", "main"]

_log = logging.getLogger(__name__)
_PROGRAM = "dceo train"
# Hydra's flags that take a value.
_FLAGS = ("-c", "--cfg", "-p", "--package", "-cp", "--config-path", "-cn", "--config-name")
_FLAGS += ("-cd", "--config-dir", "--experimental-rerun")


def main(
    arguments: Sequence[str] | None = None, *, recipe: str | None = None, program: str = _PROGRAM
) -> int:
    """Runs the command; returns its exit code.

    Args:
        arguments (sequence of str, optional): overrides and Hydra's flags. Default: those of the process.

    Keyword Args:
        recipe (str, optional): the environment that a script is for: ``env=recipe`` goes before the arguments.
        program (str, optional): how sentences about mistakes begin.

    Examples:
        >>> from torchrl_dceo.cli.train import main
        >>> main(["agent=dcceo"])
        Traceback (most recent call last):
        SystemExit: dceo train: unknown agent 'dcceo' (did you mean 'dceo'?); choose from ...
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if recipe is not None:
        program = recipe
        if any(word.startswith("env=") for word in given):
            sys.exit(f"{program}: this script is env={recipe}: use `{_PROGRAM}` for another one")
        given.insert(0, f"env={recipe}")
    launch(given, TRAIN, run, program, functools.partial(check, program=program))
    return 0


def launch(
    arguments: list[str],
    config: str,
    program: Callable[[DictConfig], Any],
    name: str,
    check: Callable[[list[str]], None],
) -> None:
    """Checks the overrides, then gives everything to Hydra."""
    before = ["", *arguments]
    overrides = [
        word
        for previous, word in zip(before, arguments, strict=False)
        if not word.startswith("-") and previous not in _FLAGS
    ]
    check(overrides)
    ready = iter(prepared(overrides))
    words = [next(ready) if word in overrides else word for word in arguments]
    saved = sys.argv
    sys.argv = [name, *words]
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=config)(program)()
    finally:
        sys.argv = saved


def check(overrides: Sequence[str], *, program: str = _PROGRAM) -> None:
    """Ends the program with one sentence if a name or a value is not known, before anything is written."""
    try:
        for combination in combinations(overrides):
            settings = compose(combination)
            if settings["resume"] is not None:
                settings = resumed(settings, combination)
            parse(settings)
    except MISTAKES as error:
        sys.exit(f"{program}: {str(error).strip().splitlines()[0]}")


def run(config: DictConfig) -> float:
    """Trains what the config says; returns the last greedy return, for sweeps that optimise it."""
    tune_process()
    settings, hydra_config = as_dict(config), HydraConfig.get()
    if settings["resume"] is not None:
        settings = resumed(settings, hydra_config.overrides.task)
    else:
        settings["recipe"] = hydra_config.runtime.choices["env"]
    run_dir = Path(settings["resume"] or settings["run_dir"] or hydra_config.runtime.output_dir)
    if hydra_config.mode is not RunMode.MULTIRUN:
        with exit_with_a_sentence(run_dir):
            return _train(settings, run_dir)
    try:
        return _train(settings, run_dir)
    except Exception as error:
        # The other runs of the sweep are not stopped: this one's traceback is in its log, and Hydra ends with the
        # sentence. An error of a plain kind, since it may have to come out of another process.
        _log.exception("%s has failed", run_dir)
        raise RuntimeError(f"{run_dir}: {error}") from None


def _train(settings: dict[str, Any], run_dir: Path) -> float:
    trainer = build(settings, run_dir)
    if settings["resume"] is not None:
        trainer.resume()
    elif not trainer.holds_a_run:
        run_dir.mkdir(parents=True, exist_ok=True)
        # The capacity in numbers: a run that is resumed with a later end keeps the replay it has.
        settings["replay_capacity"] = trainer.replay_capacity
        if "switch_frames" in settings:
            settings["switch_frames"] = parse(settings).switch_frames  # the same for the change
        OmegaConf.save(OmegaConf.create(settings), run_dir / "config.yaml")
    row = trainer.run()
    save_run_analysis(trainer, run_dir)
    draw_run(run_dir)
    return row.get("eval_return", float("nan"))


def build(settings: dict[str, Any], run_dir: Path) -> Trainer:
    """Environment, agent and trainer from plain settings."""
    made = parse(settings)
    env_kwargs = dict(made.env_settings)
    seed_generators(made.train.seed)
    if made.switch_frames is not None:
        # Each environment counts its own steps, from the first one with a goal on.
        after = made.switch_frames - made.discovery_frames
        env_kwargs["switch_steps"] = max(1, after // made.run.num_envs)

    def world(offset: int, **kwargs: Any) -> EnvBase:
        return make_env(made.env, seed=made.train.seed + offset, **{**env_kwargs, **kwargs})

    batch_size, episodes = made.run.num_envs, made.run.eval_episodes
    env = world(0, visits="counts", batch_size=batch_size)
    # The networks are made where they stay; the environment and the replay buffer are on the host.
    with torch.device(made.run.device):
        agent = make_agent(made.agent, env, **made.agent_settings)
    if made.run.compile:
        agent.compile_networks(mode=None if made.run.compile is True else made.run.compile)
    discovers = any(phase.reward_free for phase in agent.phases)
    visits = find_transform(env, StateCounts)
    logger = dict(made.logger_settings)
    if made.logger == "wandb":
        logger["name"] = f"{made.env}_{made.agent}_{made.train.seed}"
    return Trainer(
        agent,
        env,
        made.train,
        eval_env=world(10_000, batch_size=episodes) if episodes else None,
        discovery_env=(
            world(20_000, visits=visits, coverage=True, batch_size=batch_size)
            if discovers
            else None
        ),
        run_dir=run_dir,
        settings={"agent": settings["agent"], "env": settings["env"]},
        probes=(SpectrumProbe(), OptionProbe(), SkillProbe()),
        logs=make_logs(made.logger, run_dir, settings, **logger),
        collection=made.collector,
        worker_env=functools.partial(make_env, made.env, **env_kwargs),
    )


def resumed(composed: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The settings of the run to resume, and on top of them what the command line sets (a later end, say)."""
    folder = Path(composed["resume"])
    path = folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"resume={folder} is not the directory of a run: it has no config.yaml")
    plain = load_settings(path)
    try:
        stored: Any = OmegaConf.to_container(OmegaConf.create(plain), resolve=True)
        agent, env = stored["agent"], stored["env"]
        recipe = stored.get("recipe")
        agent["name"], env["name"]
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read, restore it from a copy: {reason}") from None
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key, value = override.key_or_group, None if override.is_delete() else override.value()
        if key == "agent":
            _refuse(folder, "agent", agent["name"], composed["agent"]["name"])
        elif key == "env":
            pairs = (recipe, value) if recipe else (env["name"], composed["env"]["name"])
            _refuse(folder, "env", *pairs)
        elif key == "logger":
            stored["logger"] = composed["logger"]
        elif key in SHARED:
            if key in environment_fields(AGENTS[agent["name"]].config):
                agent[key] = value
        elif not key.startswith("hydra"):
            _set(stored, key.split("."), value, delete=override.is_delete())
    return {**stored, "resume": composed["resume"], "run_dir": None}


def _refuse(folder: Path, what: str, stored: Any, given: Any) -> None:
    if stored != given:
        raise ValueError(
            f"resume={folder} has {what}={stored}, not {what}={given}: leave {what} out, or start a new run"
        )


def _set(settings: dict[str, Any], keys: list[str], value: Any, *, delete: bool) -> None:
    for key in keys[:-1]:
        settings = settings.setdefault(key, {})
    if delete:
        settings.pop(keys[-1], None)
    else:
        settings[keys[-1]] = value
