"""The directory of a run: its lock, and the description of the run."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import platform
import re
import types
import zlib
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import tensordict
import torch
import torchrl
import yaml
from torch import Tensor, nn
from torchrl.envs import Compose, EnvBase, Transform, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

import torchrl_dceo
from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.data.persistence import write_file
from torchrl_dceo.hashing import ObservationHash
from torchrl_dceo.settings import first_difference
from torchrl_dceo.training.errors import NoRun, RunBusy, RunExists, RunRefused

__all__ = [
    "RunDirectory",
    "RunLock",
    "describe_agent",
    "describe_env",
    "load_settings",
    "plain",
    "transform_chain",
    "versions",
]

_log = logging.getLogger(__name__)

try:
    import fcntl
except ImportError:  # not on Windows, where there is no lock
    fcntl = None  # type: ignore[assignment]


class RunLock:
    """Locks a run directory, so that two processes cannot train in it.

    The kernel releases the lock when the process ends for any reason, so the file of a killed run
    blocks nothing, and process ids are not compared. The file contains the process id for the error
    message.

    Args:
        path (path-like): the run directory.

    Examples:
        >>> import tempfile
        >>> from torchrl_dceo.training.checkpoint.run_directory import RunLock
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first, second = RunLock(folder), RunLock(folder)
        ...     first.acquire()
        ...     try:
        ...         second.acquire()
        ...     except RuntimeError as error:
        ...         print(str(error).split(": ")[1])
        ...     first.release()
        ...     second.acquire()
        ...     second.release()
        wait for it or choose another run_dir
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path) / "run.lock"
        self._file: TextIOWrapper | None = None

    def acquire(self) -> None:
        """Acquires the lock, or raises an error that names its owner. Acquiring it twice is allowed."""
        if self._file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+")
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                file.close()
                raise RunBusy(
                    f"{self.path.parent} is being written by the run of process {holder}: wait for it or "
                    "choose another run_dir"
                ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Releases the lock. The file is not removed: that would race with the next owner."""
        if self._file is not None:
            self._file.close()
            self._file = None


_PLAIN = (bool, int, float, str)


# Public attributes that change during use.
_CHANGING = {"training", "is_closed", "initialized", "counter"}


# Buffers that are settings, unlike buffers that are learned or annealed.
_SETTING_BUFFERS = {"gamma", "lmbda", "eps_init", "eps_end"}


def _kind(thing: object) -> str:
    return type(thing).__name__


def _settings(thing: object) -> dict[str, Any]:
    """The public attributes with plain values: the arguments that a constructor stored."""
    return {
        name: value
        for name, value in vars(thing).items()
        if isinstance(value, _PLAIN) and not name.startswith("_") and name not in _CHANGING
    }


def _describe_module(module: nn.Module) -> dict[str, Any]:
    numbers = {
        name: float(f"{float(buffer):.6g}")  # 0.99 instead of its value in single precision
        for name, buffer in module.named_buffers(recurse=False)
        if name in _SETTING_BUFFERS
    }
    return {"kind": _kind(module), **_settings(module), **numbers}


def _describe_hash(given: str | ObservationHash) -> Any:
    """A hash by its name; an object of one's own by its class and its public attributes."""
    if isinstance(given, str):
        return given
    kind = given if isinstance(given, type | types.FunctionType) else type(given)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if kind is given:
        return name
    public = {k: v for k, v in getattr(given, "__dict__", {}).items() if not k.startswith("_")}
    return {"kind": name, **plain(public)}


def describe_agent(agent: Agent) -> dict[str, Any]:
    """The networks' shapes and all plain settings of an agent, without anything that training changes.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.checkpoint.run_directory import describe_agent
        >>> agent = make_agent("ddqn", make_env("NineRooms"), lr=3e-4)
        >>> describe_agent(agent)["optimizer"]["groups"][0]["lr"]
        0.0003
    """
    groups = agent.optimizer.state_dict()["param_groups"]
    return {
        "objectives": list(agent.objectives),
        "modules": {name or ".": _describe_module(m) for name, m in agent.named_modules()},
        "shapes": {
            name: list(value.shape)
            for name, value in agent.state_dict().items()
            if isinstance(value, Tensor)
        },
        "optimizer": {"kind": _kind(agent.optimizer), "groups": plain(groups)},
        "targets": [{"kind": _kind(target), **_settings(target)} for target in agent.targets],
        "replay": {
            **plain(dataclasses.asdict(agent.replay)),
            "observation_hash": _describe_hash(agent.replay.observation_hash),
        },
        "phases": [plain(dataclasses.asdict(phase)) for phase in agent.phases],
        "max_grad_norm": agent.max_grad_norm,
    }


def describe_env(env: EnvBase, ignored: tuple[type, ...] = ()) -> dict[str, Any]:
    """The settings of an environment, its observations and its transforms.

    Args:
        env (EnvBase): any environment.
        ignored (tuple of types): classes of transforms to leave out.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.checkpoint.run_directory import describe_env
        >>> describe_env(make_env("NineRooms", slip=0.2))["settings"]["slip"]
        0.2
    """
    base, transforms = env, []
    while isinstance(base, TransformedEnv):
        chain = [t for t in transform_chain(base) if not isinstance(t, ignored)]
        transforms += [{"kind": _kind(t), **_settings(t)} for t in chain]
        base = base.base_env
    if isinstance(base, BatchedEnvBase):
        # Its workers may be in other processes, and some of its own settings depend on the machine.
        settings: dict[str, Any] = {"workers": base.num_workers}
    else:
        # The tables of a map or a cube; of other environments the constructor's arguments.
        made_from = getattr(base, "_constructor_kwargs", {})
        settings = {**_settings(base), **plain(made_from), "tables": _checksum(base)}
    return {
        "kind": _kind(base),
        "batch_size": list(env.batch_size),
        "observation": {
            str(key): [list(spec.shape), str(spec.dtype)]
            for key, spec in base.full_observation_spec.items(True, True)
        },
        "actions": repr(env.full_action_spec[env.action_key].space),
        "settings": settings,
        "transforms": transforms,
    }


# Settings of agents that came later, and what the code did before.
_LATER = {"observation_hash": "exact"}


def _with_present_names(fingerprint: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Renames entries from earlier versions and adds what came later, so that their runs can be resumed."""
    for outer, inner in (("settings", "agent"), ("agent", "replay")):
        group, mine = fingerprint.get(outer), own.get(outer)
        if not isinstance(group, dict) or not isinstance(mine, dict):
            continue
        present = mine.get(inner)
        if isinstance(group.get(inner), dict) and present:
            later = {name: value for name, value in _LATER.items() if name in present}
            fingerprint = {**fingerprint, outer: {**group, inner: {**later, **group[inner]}}}
    envs = fingerprint.get("envs")
    if not isinstance(envs, dict):
        return fingerprint
    renamed = {}
    for name, description in envs.items():
        if isinstance(description, dict):
            description = {"settings" if k == "world" else k: v for k, v in description.items()}
            if description.get("kind") == "SerialWorlds":
                description["kind"] = "SerialGymEnvs"
        renamed[name] = description
    return {**fingerprint, "envs": renamed}


def transform_chain(env: TransformedEnv) -> Iterator[Transform]:
    """The transforms of a ``TransformedEnv``: one, or those of a ``Compose``.

    Examples:
        >>> from torchrl.envs import InitTracker, TransformedEnv
        >>> from torchrl_dceo.envs import RubiksCubeEnv
        >>> from torchrl_dceo.training.checkpoint.run_directory import transform_chain
        >>> [type(t).__name__ for t in transform_chain(TransformedEnv(RubiksCubeEnv(), InitTracker()))]
        ['InitTracker']
    """
    chain = env.transform
    yield from chain.transforms if isinstance(chain, Compose) else (chain,)


def _checksum(module: nn.Module) -> int:
    checksum = 0
    for name, buffer in sorted(module.named_buffers()):
        data = buffer.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(data.data, zlib.crc32(name.encode(), checksum))
    return checksum


def plain(value: Any) -> Any:
    """Converts nested values to the plain values of a checkpoint; other objects become text.

    Examples:
        >>> from torchrl_dceo.training.checkpoint.run_directory import plain
        >>> plain({"betas": (0.9, 0.999), 1: None})
        {'betas': [0.9, 0.999], '1': None}
    """
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)


def versions() -> dict[str, str]:
    """The versions of the packages that a run's numbers depend on.

    Examples:
        >>> from torchrl_dceo.training.checkpoint.run_directory import versions
        >>> list(versions())
        ['python', 'torch', 'torchrl', 'tensordict', 'numpy', 'torchrl_dceo']
    """
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchrl": torchrl.__version__,
        "tensordict": tensordict.__version__,
        "numpy": np.__version__,
        "torchrl_dceo": torchrl_dceo.__version__,
    }


_LARGEST_SETTINGS = 1 << 20  # bytes


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can expand to more than the memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"line {self.peek_event().start_mark.line + 1} has an alias")
        return super().compose_node(parent, index)


# YAML 1.1 parses numbers such as 1e-3 as text.
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def load_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a run from its ``config.yaml``, as plain values; the file is not trusted.

    References to other settings (``${num_envs}``) are kept; resolvers (``${oc.env:HOME}``), which would read
    this machine's variables, and aliases raise an error.

    Args:
        path (path-like): the file.

    Examples:
        >>> import pathlib, tempfile
        >>> from torchrl_dceo.training.checkpoint.run_directory import load_settings
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "config.yaml"
        ...     _ = path.write_text("seed: 3")
        ...     load_settings(path)
        {'seed': 3}
    """
    path = Path(path)
    if not path.is_file():
        raise NoRun(f"{path.parent} is not the directory of a run: it has no {path.name}")
    if path.stat().st_size > _LARGEST_SETTINGS:
        raise RunRefused(f"{path} is no file of settings: it is larger than a megabyte")
    try:
        text = path.read_bytes().decode()
        settings = yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise RunRefused(f"{path} cannot be read, restore it from a copy: {reason}") from None
    if not isinstance(settings, dict):
        raise RunRefused(f"{path} holds no settings: restore it from a copy")
    resolver = re.search(r"\$\{[^}$]*:[^}]*\}", text)
    if resolver:
        raise RunRefused(
            f"{path} has {resolver.group()!r}, which reads from outside the run: write the value itself"
        )
    return settings


class RunDirectory:
    """Manages ``run.json`` in the directory of a run: the description of the run, package versions, and the
    newest checkpoint.

    Args:
        path (path-like): the directory; created by :meth:`start`.

    Examples:
        >>> import tempfile
        >>> from torchrl_dceo.training.checkpoint.run_directory import RunDirectory
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = RunDirectory(folder)
        ...     run.start({"agent": "dceo"})
        ...     run.check({"agent": "dceo"})
        ...     run.lock.release()
        ...     run.holds_a_run
        True
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.lock = RunLock(self.path)

    @property
    def holds_a_run(self) -> bool:
        """Whether a run was started here."""
        names = ("run.json", "progress.csv", "checkpoints")
        return any((self.path / name).exists() for name in names)

    def start(self, fingerprint: dict[str, Any]) -> None:
        """Locks the directory for a new run."""
        self.lock.acquire()
        if self.holds_a_run:
            self.lock.release()
            raise RunExists(
                f"{self.path} already holds a run: resume it, or choose another run_dir"
            )
        self._write({**fingerprint, "versions": versions(), "checkpoint": None})

    def open(self) -> None:
        """Locks the directory to resume its run."""
        if not self.holds_a_run:
            raise NoRun(f"there is no run to resume in {self.path}")
        self.lock.acquire()

    def read(self) -> dict[str, Any] | None:
        """The content of ``run.json``; ``None`` if it cannot be read."""
        try:
            read = json.loads((self.path / "run.json").read_text())
        except (OSError, ValueError, RecursionError):
            return None
        return read if isinstance(read, dict) else None

    def _write(self, content: dict[str, Any]) -> None:
        write_file(self.path / "run.json", json.dumps(content, indent=1).encode())

    def saved(self, fingerprint: dict[str, Any], step: int) -> None:
        """Records a checkpoint, so that a run that lost all its checkpoints is not silently restarted."""
        content = self.read() or {**fingerprint, "versions": versions()}
        self._write({**content, "checkpoint": step})

    def resumed(self, fingerprint: dict[str, Any], step: int) -> None:
        """Logs a warning if package versions differ from those with which the run was trained."""
        content, own = self.read() or dict(fingerprint), versions()
        before = ([content["versions"]] if "versions" in content else []) + content.get(
            "resumed", []
        )
        known = {name: before[-1].get(name) for name in own} if before else None
        if known != own:
            difference = first_difference(
                known or {}, own, sentence="{name} was {saved} and is {own}"
            )
            _log.warning(
                "%s was made with other versions (%s): its numbers may not be those of a run of one version",
                self.path,
                difference,
            )
            key: dict[str, Any] = {
                "resumed": [*content.get("resumed", []), {**own, "frames": step}]
            }
            self._write({**content, **key})

    def refuse_lost_checkpoints(self, log_has_rows: bool) -> None:
        """Raises an error instead of restarting a run that had a checkpoint.

        Args:
            log_has_rows (bool): whether the log has rows that would be lost.
        """
        content = self.read() or {}
        # Runs of older versions do not record their checkpoints.
        step = content.get("checkpoint", "an unknown number of" if log_has_rows else None)
        if step is not None:
            raise RunRefused(
                f"{self.path} had a checkpoint after {step} frames and has none that is whole now: nothing was "
                "changed; restore it, or start again in another run_dir"
            )

    def check(self, fingerprint: dict[str, Any], saved: dict[str, Any] | None = None) -> None:
        """Raises an error if the run's description differs from that of the run started here.

        Args:
            fingerprint (dict): the description of the run.
            saved (dict, optional): the description in a checkpoint. Default: that in ``run.json``.
        """
        if saved is None:
            content = self.read()
            if content is None:
                raise RunRefused(
                    f"{self.path / 'run.json'} cannot be read and there is no checkpoint: start again in "
                    "another run_dir"
                )
            notes = ("versions", "checkpoint", "resumed")
            saved = {key: value for key, value in content.items() if key not in notes}
        saved = _with_present_names(saved, fingerprint)
        # Converted to JSON types.
        difference = first_difference(saved, json.loads(json.dumps(fingerprint)))
        if difference:
            raise RunRefused(f"{self.path} belongs to another configuration: {difference}")
