"""Parses the command line: Hydra composes the settings, dataclasses validate them."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import torchrl_dceo
from torchrl_dceo.agents import AGENTS, preset_settings, speed_settings
from torchrl_dceo.agents.rainbow import RainbowConfig
from torchrl_dceo.envs import env_kind, env_settings
from torchrl_dceo.settings import choices, defaults, environment_fields, from_settings
from torchrl_dceo.training.config import CollectorConfig, RunConfig, TrainConfig
from torchrl_dceo.training.logging import check_logger

__all__ = [
    "CONF",
    "RunSettings",
    "as_dict",
    "combinations",
    "compose",
    "not_read",
    "parse",
    "prepared",
]

CONF = Path(torchrl_dceo.__file__).parent / "conf"
TRAIN = "train"
# The errors of invalid user input; anything else is a bug.
MISTAKES = (ValueError, ImportError, FileNotFoundError, HydraException, OmegaConfBaseException)
# Set by a recipe for every agent that declares the field `by_environment`.
SHARED = ("num_options", "option_prob", "discovery_frames", "termination")
_RUN = (TrainConfig, CollectorConfig, RunConfig)
_OTHERS = (
    "agent",
    "env",
    "logger",
    "preset",
    "recipe",
    "resume",
    "run_dir",
    "speed",
    "switch_frames",
)


def _register() -> None:
    """Registers all defaults with Hydra: the groups ``agent`` and ``learner``, and the common settings."""
    store = ConfigStore.instance()
    run: dict[str, Any] = dict.fromkeys(SHARED, MISSING)
    for kind in _RUN:
        run.update(defaults(kind))
    store.store(name="run", node={**run, "resume": None, "run_dir": None})
    for name, agent in AGENTS.items():
        node = {"name": name, **defaults(agent.config)}
        for field in environment_fields(agent.config):
            node[field] = f"${{oc.select:{field},{node[field]}}}"
        store.store(group="agent", name=name, node=node)
    own = {name: defaults(RainbowConfig)[name] for name in vars(RainbowConfig)["__annotations__"]}
    store.store(group="learner", name="rainbow", node=own)


_register()


def compose(overrides: Sequence[str], config: str = TRAIN) -> dict[str, Any]:
    """Composes overrides with Hydra into plain values; an unknown name raises a one-sentence error.

    Examples:
        >>> from torchrl_dceo.cli.config import compose
        >>> compose(["env=maze", "agent=ddqn"])["agent"]["lr"]
        0.0005
        >>> compose(["sead=3"])
        Traceback (most recent call last):
        ValueError: unknown setting 'sead' (did you mean 'seed'?); choose from ...
    """
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        try:
            return as_dict(hydra.compose(config, prepared(overrides)), overrides)
        except MissingConfigException as error:
            group, _, name = str(error.missing_cfg_file).rpartition("/")
            if not group:
                raise
            raise ValueError(f"unknown {group} {choices(name, error.options or [])}") from None
        except ConfigCompositionException as error:
            unknown = re.match(r"Could not (?:override|delete).*?'([^']+)'", str(error))
            groups = [
                o
                for o in overrides
                if o.partition("=")[0] in ("agent", "env", "logger", "preset", "speed")
            ]
            known = _flat_keys(hydra.compose(config, groups))
            if unknown is None or unknown[1] in known:
                raise
            raise ValueError(f"unknown setting {choices(unknown[1], known)}") from None


def _flat_keys(config: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for key in map(str, config):
        name = f"{prefix}{key}"
        inner = None if OmegaConf.is_missing(config, key) else config[key]
        keys += _flat_keys(inner, f"{name}.") if isinstance(inner, DictConfig) else [name]
    return keys


def as_dict(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """The config as plain values without interpolations; a recipe's shared settings are moved to the agent.

    The settings of a preset override those of a recipe, a speed overrides a preset, and the command line overrides
    all of them.
    """
    container: Any = OmegaConf.to_container(config, resolve=True)
    settings = {key: value for key, value in container.items() if key not in SHARED}
    given = {override.lstrip("+~").partition("=")[0] for override in overrides}
    agent = settings["agent"]
    if agent["name"] not in AGENTS:
        return settings  # parse raises the error
    config_class = AGENTS[agent["name"]].config
    for name in SHARED:
        # The agent's own value overrides a recipe's, but not the command line's.
        if name in given and name in agent and f"agent.{name}" not in given:
            agent[name] = container[name]
    try:
        total_frames = int(settings["total_frames"])
    except (TypeError, ValueError, OverflowError):
        return settings  # parse raises the error
    chosen = preset_settings(
        settings["preset"],
        config_class,
        env_kind(settings["env"]["name"]),
        total_frames=total_frames,
    )
    faster = speed_settings(settings["speed"])
    known = defaults(config_class)
    chosen.agent.update((k, v) for k, v in faster.agent.items() if k in known)
    chosen.run.update(faster.run)
    # Shared settings on the command line count as given too.
    given_to_agent = {name for name in SHARED if name in given}
    given_to_agent |= {name.removeprefix("agent.") for name in given if name.startswith("agent.")}
    agent |= {k: v for k, v in chosen.agent.items() if k not in given_to_agent}
    settings["env"] |= {k: v for k, v in chosen.env.items() if f"env.{k}" not in given}
    return settings | {k: v for k, v in chosen.run.items() if k not in given}


def prepared(overrides: Sequence[str]) -> list[str]:
    """Converts overrides for Hydra: an environment has more settings than its yaml; ``~key`` resets to the default.

    Examples:
        >>> from torchrl_dceo.cli.config import prepared
        >>> prepared(["env.slip=0", "~eval_period", "~env.max_steps", "agent.lr=1e-3"])
        ['++env.slip=0', 'eval_period=10000', '~env.max_steps', 'agent.lr=1e-3']
    """
    every = {name: value for kind in _RUN for name, value in defaults(kind).items()}
    made = []
    for override in overrides:
        bare = override.lstrip("+")
        if bare.startswith("env.") and "=" in bare:
            override = f"++{bare}"
        elif override.startswith("~") and override[1:] in every:
            value = every[override[1:]]
            override = f"{override[1:]}={'null' if value is None else value}"
        made.append(override)
    return made


def not_read(overrides: Sequence[str], agent: dict[str, Any]) -> list[str]:
    """A message for every given shared setting (:data:`SHARED`) that the agent does not have.

    Examples:
        >>> from torchrl_dceo.cli.config import compose, not_read
        >>> not_read(["option_prob=0.5"], compose(["agent=ddqn"])["agent"])
        ['option_prob=0.5 is not read by ddqn, which has no such setting']
        >>> not_read(["option_prob=0.5"], compose(["agent=dceo"])["agent"])
        []
    """
    found = []
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key in SHARED and key not in agent:
            found.append(f"{key}={value} is not read by {agent['name']}, which has no such setting")
    return found


def combinations(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The overrides of every run of a sweep; for a single run, the overrides themselves.

    Examples:
        >>> from torchrl_dceo.cli.config import combinations
        >>> list(combinations(["seed=0,1", "agent=dceo"]))
        [['seed=0', 'agent=dceo'], ['seed=1', 'agent=dceo']]
    """
    parsed = OverridesParser.create().parse_overrides(prepared(overrides))
    ours = [override for override in parsed if not override.key_or_group.startswith("hydra")]
    for combination in itertools.product(*(_alternatives(override) for override in ours)):
        yield list(combination)


def _alternatives(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    sign = "++" if override.is_force_add() else "+" if override.is_add() else ""
    values = override.sweep_string_iterator()
    return [f"{sign}{override.key_or_group}={value}" for value in values]


@dataclass(frozen=True)
class RunSettings:
    """The validated settings of a run."""

    agent: str
    agent_settings: dict[str, Any]
    env: str
    env_settings: dict[str, Any]
    train: TrainConfig
    collector: CollectorConfig
    run: RunConfig
    logger: str
    logger_settings: dict[str, Any]
    switch_frames: int | None = None

    @property
    def discovery_frames(self) -> int:
        """The number of frames without reward at the start."""
        return self.agent_settings.get("discovery_frames") or 0


def parse(settings: dict[str, Any]) -> RunSettings:
    """Validates plain settings, including those of older runs; raises an error for the first invalid value.

    Examples:
        >>> from torchrl_dceo.cli.config import compose, parse
        >>> parse(compose(["total_frames=1e5"])).train.total_frames
        100000
        >>> parse(compose(["agent.gamma=1.5"]))
        Traceback (most recent call last):
        ValueError: agent.gamma must lie in [0, 1], got 1.5
    """
    given = dict(settings)
    parts: list[Any] = [
        from_settings(kind, {name: given.pop(name) for name in defaults(kind) if name in given})
        for kind in _RUN
    ]
    train, collector, run = parts
    for key in given:
        if key not in (*_OTHERS, *SHARED):  # those of older runs
            known = [name for kind in _RUN for name in defaults(kind)]
            raise ValueError(f"unknown setting {choices(key, [*known, *SHARED, *_OTHERS])}")
    agent, env = dict(given["agent"]), dict(given["env"])
    logger = dict(given.get("logger") or {"name": "csv"})
    agent_name, env_name = agent.pop("name"), str(env.pop("name"))
    if agent_name not in AGENTS:
        raise ValueError(f"unknown agent {choices(agent_name, list(AGENTS))}")
    config: Any = from_settings(AGENTS[agent_name].config, agent, prefix="agent.")
    kind = logger.pop("name")
    check_logger(kind)
    if collector.uses_workers:
        collector.envs_per_worker(run.num_envs)
    known = _env_settings(env_name)
    for key in env:
        if key not in known:
            names = [f"env.{name}" for name in known]
            raise ValueError(f"unknown setting {choices(f'env.{key}', names)}")
    made = RunSettings(
        agent_name,
        vars(config).copy(),
        env_name,
        env,
        train,
        collector,
        run,
        kind,
        logger,
    )
    if "switch_frames" in given:
        frames = switch_frames(made, given["switch_frames"])
        return RunSettings(**{**vars(made), "switch_frames": frames})
    return made


@functools.cache
def _env_settings(name: str) -> list[str]:
    return env_settings(name)


def switch_frames(settings: RunSettings, given: Any) -> int:
    """The frames before the environment changes: as set, or half of the frames with a goal."""
    discovery, total = settings.discovery_frames, settings.train.total_frames
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if given is not None and (not isinstance(given, int) or isinstance(given, bool)):
        raise ValueError(f"switch_frames must be int or null, got {given!r}")
    frames = discovery + max(0, total - discovery) // 2 if given is None else given
    if not discovery < frames < total:
        raise ValueError(
            f"switch_frames must lie between the end of discovery ({discovery}) and total_frames ({total}), "
            f"got {frames}"
        )
    return frames
