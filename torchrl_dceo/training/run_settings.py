"""The settings of a run in its directory: ``config.yaml``."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.training.checkpoint.run_directory import RunDirectory, load_settings

__all__ = ["plain_settings", "read_settings", "store_settings"]

_FILE = "config.yaml"


def store_settings(run_dir: Path, agent: Agent) -> None:
    """Writes the agent's arguments into the directory of a run, unless all settings are there already."""
    path = run_dir / _FILE
    if agent.made_from is not None and not path.exists():
        text = yaml.safe_dump({"agent": plain_settings(agent.made_from)}, sort_keys=False)
        path.write_text(text)


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Converts settings for a file: functions become their names.

    Examples:
        >>> from torchrl_dceo.training.run_settings import plain_settings
        >>> plain_settings({"lr": 1e-3, "sizes": (8, 8), "termination": plain_settings})
        {'lr': 0.001, 'sizes': [8, 8], 'termination': 'torchrl_dceo.training.run_settings:plain_settings'}
    """
    return {name: _as_text(value) for name, value in settings.items()}


def _as_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return plain_settings(value)
    if isinstance(value, list | tuple):
        return [_as_text(item) for item in value]
    plain = value is None or isinstance(value, bool | int | float | str)
    if plain or not callable(value):
        return value if plain else str(value)
    kind = value if isinstance(value, type | types.FunctionType) else type(value)
    return f"{kind.__module__}:{kind.__qualname__}"


def read_settings(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a run from its ``config.yaml``, with references resolved.

    Examples:
        >>> import pathlib, tempfile
        >>> from torchrl_dceo.training.run_settings import read_settings
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "config.yaml").write_text("seed: 3\\nagent: {lr: 1e-3, seed: '${seed}'}")
        ...     read_settings(folder)
        {'seed': 3, 'agent': {'lr': 0.001, 'seed': 3}}
    """
    folder = Path(run_dir)
    path = folder / _FILE
    if not path.is_file():
        if RunDirectory(folder).holds_a_run:
            return {}
        raise FileNotFoundError(f"{folder} is not the directory of a run")
    settings = load_settings(path)
    return _resolved(settings, settings)


def _resolved(value: Any, settings: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(item, settings) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, settings) for item in value]
    if not isinstance(value, str):
        return value
    named = re.fullmatch(r"\$\{(\w+)\}", value)
    return settings.get(named[1]) if named else value
