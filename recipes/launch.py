"""What every recipe does: read the config, check it, build world and agent, train, draw."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torchrl.envs import EnvBase

from torchrl_dceo._fast.process import tune_process
from torchrl_dceo.agents import AGENTS, choices, make_agent
from torchrl_dceo.analysis import draw_run
from torchrl_dceo.envs import StateCounts, env_settings, find_transform, make_env
from torchrl_dceo.training import CollectorConfig, TrainConfig, Trainer
from torchrl_dceo.training.checkpoint.run_directory import load_settings
from torchrl_dceo.training.checkpoint.state import seed_generators
from torchrl_dceo.training.errors import exit_with_a_sentence
from torchrl_dceo.training.logging.logs import Log, check_logger, make_logs
from torchrl_dceo.training.probes import OptionProbe, SkillProbe, SpectrumProbe, save_run_analysis

CONFIG = Path(__file__).parent / "config"
_log = logging.getLogger(__name__)
_COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")
Checker = Callable[[dict[str, Any]], None]
_COLLECTOR = {field.name for field in dataclasses.fields(CollectorConfig)}
# The fields of a recipe that are none of TrainConfig.
_OWN = _COLLECTOR | {
    "agent",
    "compile",
    "device",
    "discovery_frames",
    "env",
    "eval_episodes",
    "logger",
    "num_envs",
    "num_options",
    "option_prob",
    "resume",
    "run_dir",
    "switch_frames",
}


def run(config: DictConfig) -> float:
    """Trains what the config says; returns the last greedy return, for sweeps that optimise it."""
    tune_process()
    run_dir = Path(config.resume or config.run_dir or HydraConfig.get().runtime.output_dir)
    if HydraConfig.get().mode is not RunMode.MULTIRUN:
        with exit_with_a_sentence(run_dir):
            return _train(config, run_dir)
    try:
        return _train(config, run_dir)
    except Exception as error:
        # The other runs of the sweep go on: this one's traceback is in its log, and Hydra ends with the sentence. An
        # error of a plain kind, since it may have to come out of another process.
        _log.exception("%s has failed", run_dir)
        raise RuntimeError(f"{run_dir}: {error}") from None


def _train(config: DictConfig, run_dir: Path) -> float:
    if config.resume is not None:
        config = resumed(config)
    trainer = build(as_dict(config), run_dir)
    if config.resume is not None:
        trainer.resume()
    elif not trainer.holds_a_run:
        run_dir.mkdir(parents=True, exist_ok=True)
        # The capacity in numbers: a run that is resumed with a later end keeps the replay it has.
        config.replay_capacity = trainer.replay_capacity
        if "switch_frames" in config:
            config.switch_frames = switch_frames(as_dict(config))  # the same for the change
        OmegaConf.save(config, run_dir / "config.yaml")
    row = trainer.run()
    save_run_analysis(trainer, run_dir)
    draw_run(run_dir)
    return row.get("eval_return", float("nan"))


def build(settings: dict[str, Any], run_dir: Path) -> Trainer:
    """World, agent and trainer from plain settings."""
    agent_settings, env_settings_ = dict(settings["agent"]), dict(settings["env"])
    agent_name, env_name = agent_settings.pop("name"), env_settings_.pop("name")
    train = TrainConfig(**{k: v for k, v in settings.items() if k not in _OWN})
    seed_generators(train.seed)
    if "switch_frames" in settings:
        # Each environment counts its own steps, from the first one with a goal on.
        after = switch_frames(settings) - _discovery_frames(settings)
        env_settings_["switch_steps"] = max(1, after // settings["num_envs"])

    def world(offset: int, **kwargs: Any) -> EnvBase:
        return make_env(env_name, seed=train.seed + offset, **{**env_settings_, **kwargs})

    batch_size = settings["num_envs"]
    env = world(0, visits="counts", batch_size=batch_size)
    # The networks are made where they stay; the world and the replay buffer are on the host.
    with torch.device(settings.get("device", "cpu")):
        agent = make_agent(agent_name, env, **agent_settings)
    if settings.get("compile"):
        agent.compile_networks(mode=None if settings["compile"] is True else settings["compile"])
    eval_episodes = settings.get("eval_episodes", 20)  # not in the configs of older runs
    discovers = any(phase.reward_free for phase in agent.phases)
    visits = find_transform(env, StateCounts)
    return Trainer(
        agent,
        env,
        train,
        eval_env=world(10_000, batch_size=eval_episodes) if eval_episodes else None,
        discovery_env=(
            world(20_000, visits=visits, coverage=True, batch_size=batch_size)
            if discovers
            else None
        ),
        run_dir=run_dir,
        settings={"agent": settings["agent"], "env": settings["env"]},
        probes=(SpectrumProbe(), OptionProbe(), SkillProbe()),
        logs=_logs(settings, run_dir),
        collection=_collection(settings),
        worker_env=functools.partial(make_env, env_name, **env_settings_),
    )


def _collection(settings: dict[str, Any]) -> CollectorConfig:
    # Not in the configs of older runs.
    given = {k: v for k, v in settings.items() if k in _COLLECTOR}
    check_dataclass(CollectorConfig, given, "")
    config = CollectorConfig(**given)
    if config.uses_workers:
        config.envs_per_worker(settings["num_envs"])
    return config


def switch_frames(settings: dict[str, Any]) -> int:
    """The frames of the run before the world changes: as set, or half of those in which it has a goal."""
    given, discovery = settings["switch_frames"], _discovery_frames(settings)
    total = settings["total_frames"]
    frames = discovery + max(0, total - discovery) // 2 if given is None else given
    if not discovery < frames < total:
        raise ValueError(
            f"switch_frames must lie between the end of discovery ({discovery}) and total_frames ({total}), "
            f"got {frames}"
        )
    return frames


def _discovery_frames(settings: dict[str, Any]) -> int:
    return settings["agent"].get("discovery_frames") or 0


def _logs(settings: dict[str, Any], run_dir: Path) -> list[Log]:
    logger = dict(settings.get("logger") or {"name": "csv"})
    kind = logger.pop("name")
    if kind == "wandb":
        logger["name"] = f"{settings['env']['name']}_{settings['agent']['name']}_{settings['seed']}"
    return make_logs(kind, run_dir, settings, **logger)


def resumed(config: DictConfig) -> DictConfig:
    """The config of the run to go on with, and on top of it what the command line sets (a later end, say)."""
    stored = OmegaConf.create(load_settings(Path(config.resume) / "config.yaml"))
    given = [o for o in HydraConfig.get().overrides.task if not (CONFIG / o.split("=")[0]).is_dir()]
    merged = OmegaConf.merge(stored, OmegaConf.from_dotlist([o.lstrip("+") for o in given]))
    assert isinstance(merged, DictConfig)
    return merged


def as_dict(config: DictConfig) -> dict[str, Any]:
    """The config as plain values."""
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def main(
    recipe: str, program: Callable[[DictConfig], Any] = run, check_values: Checker | None = None
) -> None:
    """The command line of a recipe: one sentence for a typo, then Hydra."""
    # Hydra's own parser: it alone knows which of its flags take a value (--cfg job).
    check(get_args_parser().parse_args().overrides, recipe, check_values)
    hydra.main(version_base="1.3", config_path=str(CONFIG), config_name=recipe)(program)()


# One sentence for a typo


def check(arguments: list[str], recipe: str, check_values: Checker | None = None) -> None:
    """Ends the program with one sentence if a key or a value is not known, before Hydra starts."""
    try:
        overrides = OverridesParser.create().parse_overrides(arguments)
        _check_groups(overrides)
        for combination in _combinations(overrides):
            (check_values or _check_values)(_compose(recipe, combination))
    except (ValueError, ImportError, HydraException, OmegaConfBaseException) as error:
        sys.exit(f"{recipe}: {str(error).strip().splitlines()[0]}")


def _check_groups(overrides: list[Override]) -> None:
    for override in overrides:
        group = CONFIG / override.key_or_group
        if group.is_dir():
            options = sorted(path.stem for path in group.glob("*.yaml"))
            for value in _values(override):
                if value not in options:
                    raise ValueError(f"unknown {override.key_or_group} {choices(value, options)}")


def _values(override: Override) -> list[str]:
    if override.is_sweep_override():
        return [str(value) for value in override.sweep_string_iterator()]
    return [str(override.get_value_element_as_str())]


def _combinations(overrides: list[Override]) -> typing.Iterator[list[str]]:
    ours = [o for o in overrides if not o.key_or_group.startswith("hydra")]
    for values in itertools.product(*(_values(override) for override in ours)):
        yield [
            f"{'+' if o.is_add() else ''}{o.key_or_group}={value}"
            for o, value in zip(ours, values, strict=True)
        ]


def _compose(recipe: str, overrides: list[str]) -> dict[str, Any]:
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONFIG)):
        groups = [o for o in overrides if (CONFIG / o.split("=", 1)[0]).is_dir()]
        base = hydra.compose(recipe, groups)
        known = _flat_keys(base)
        for override in overrides:
            key = override.split("=", 1)[0]
            # With a plus a setting is added that the yaml leaves at its default: the dataclass knows it.
            if override not in groups and not key.startswith("+") and key not in known:
                raise ValueError(f"unknown setting {choices(key, known)}")
        return as_dict(hydra.compose(recipe, overrides))


def _flat_keys(config: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for key, value in config.items():
        name = f"{prefix}{key}"
        keys += _flat_keys(value, f"{name}.") if isinstance(value, DictConfig) else [name]
    return keys


def _check_values(settings: dict[str, Any]) -> None:
    if settings["resume"] is not None and not (Path(settings["resume"]) / "config.yaml").is_file():
        raise ValueError(
            f"resume={settings['resume']} is not the directory of a run: it has no config.yaml"
        )
    _check_own(settings)
    if not _fits(settings["num_envs"], int) or settings["num_envs"] < 1:
        raise ValueError(f"num_envs must be a whole number from 1 on, got {settings['num_envs']!r}")
    if "switch_frames" in settings:
        given = settings["switch_frames"]
        if given is not None and not _fits(given, int):
            raise ValueError(f"switch_frames must be int or null, got {given!r}")
        if settings["resume"] is None:  # a resumed run has its own
            switch_frames(settings)
    agent, env = dict(settings["agent"]), dict(settings["env"])
    name = agent.pop("name")
    check_dataclass(AGENTS[name].config, agent, "agent.")
    train = {k: v for k, v in settings.items() if k not in _OWN}
    check_dataclass(TrainConfig, train, "")
    TrainConfig(**train)
    _collection(settings)
    check_logger(settings["logger"]["name"])
    known = env_settings(env.pop("name"))
    for key in env:
        if key not in known:
            raise ValueError(f"unknown setting env.{choices(key, known)}")


def _check_own(settings: dict[str, Any]) -> None:
    episodes, compiled = settings["eval_episodes"], settings["compile"]
    if not _fits(episodes, int) or episodes < 0:
        raise ValueError(f"eval_episodes must be a whole number from 0 on, got {episodes!r}")
    if compiled not in (True, False, *_COMPILE_MODES):
        modes = ", ".join(_COMPILE_MODES)
        raise ValueError(f"compile must be true, false or one of {modes}, got {compiled!r}")
    device = torch.device(settings["device"])
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device} needs a GPU, and torch finds none here: set device=cpu")


def check_dataclass(kind: type, values: dict[str, Any], prefix: str) -> None:
    """Says which value does not fit its field, and what would."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    for name, value in values.items():
        if name not in names:
            raise ValueError(f"unknown setting {prefix}{choices(name, names)}")
        allowed = _alternatives(hints[name])
        literals = [choice for kind in allowed for choice in typing.get_args(kind)]
        if any(_fits(value, kind) for kind in allowed):
            continue
        if literals:
            raise ValueError(f"{prefix}{name} is {choices(str(value), list(map(str, literals)))}")
        wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
        raise ValueError(f"{prefix}{name} must be {wanted}, got {value!r}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
