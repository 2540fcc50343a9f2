"""The files of a run: its directory and lock, and its checkpoints."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.envs import Compose, EnvBase, Transform, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.data.persistence import load_state, save_state

__all__ = [
    "Checkpoints",
    "RunDirectory",
    "RunLock",
    "describe_agent",
    "describe_env",
    "first_difference",
    "plain",
]

try:
    import fcntl
except ImportError:  # not on Windows, where two runs are not kept apart
    fcntl = None  # type: ignore[assignment]


class RunLock:
    """Keeps a second run out of a run directory while the first is alive.

    The kernel holds the lock and lets go of it when the process ends, however it ends. So the file that a killed run
    leaves behind bars nobody, and no process number is mistaken for another's. The number is in the file for the
    message.

    Args:
        path (path-like): the run directory.

    Examples:
        >>> import tempfile
        >>> from torchrl_dceo.training.checkpoint.files import RunLock
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
        """Takes the lock, or says who has it. Taking it twice is fine."""
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
                raise RuntimeError(
                    f"{self.path.parent} is being written by the run of process {holder}: wait for it or "
                    "choose another run_dir"
                ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Lets go of it. The file stays: removing it would race with who takes it next."""
        if self._file is not None:
            self._file.close()
            self._file = None


_PLAIN = (bool, int, float, str)


# Public attributes that change while a thing is used.
_CHANGING = {"training", "is_closed", "initialized", "counter"}


# Numbers that are settings although they are kept as buffers, among those that are learned or annealed.
_SETTING_BUFFERS = {"gamma", "lmbda", "eps_init", "eps_end"}


def _kind(thing: object) -> str:
    return type(thing).__name__


def _settings(thing: object) -> dict[str, Any]:
    """The public attributes that are plain values: what a constructor kept of its arguments."""
    return {
        name: value
        for name, value in vars(thing).items()
        if isinstance(value, _PLAIN) and not name.startswith("_") and name not in _CHANGING
    }


def _describe_module(module: nn.Module) -> dict[str, Any]:
    numbers = {
        name: float(f"{float(buffer):.6g}")  # 0.99, and not what single precision makes of it
        for name, buffer in module.named_buffers(recurse=False)
        if name in _SETTING_BUFFERS
    }
    return {"kind": _kind(module), **_settings(module), **numbers}


def describe_agent(agent: Agent) -> dict[str, Any]:
    """The networks' shapes and every plain setting of an agent; nothing that training changes.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.checkpoint.files import describe_agent
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
        "replay": plain(dataclasses.asdict(agent.replay)),
        "phases": [plain(dataclasses.asdict(phase)) for phase in agent.phases],
        "max_grad_norm": agent.max_grad_norm,
    }


def describe_env(env: EnvBase, ignored: tuple[type, ...] = ()) -> dict[str, Any]:
    """The world, what it shows, and its transforms.

    Args:
        env (EnvBase): any environment.
        ignored (tuple of types): transforms that do not count.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.checkpoint.files import describe_env
        >>> describe_env(make_env("NineRooms", slip=0.2))["world"]["slip"]
        0.2
    """
    base, transforms = env, []
    while isinstance(base, TransformedEnv):
        chain = [t for t in _chain(base.transform) if not isinstance(t, ignored)]
        transforms += [{"kind": _kind(t), **_settings(t)} for t in chain]
        base = base.base_env
    if isinstance(base, BatchedEnvBase):
        # Its workers may live in other processes, and some settings of its own depend on the machine.
        world: dict[str, Any] = {"workers": base.num_workers}
    else:
        # The tables that make a map or a cube; of other worlds, how they were made.
        made_from = getattr(base, "_constructor_kwargs", {})
        world = {**_settings(base), **plain(made_from), "tables": _checksum(base)}
    return {
        "kind": _kind(base),
        "batch_size": list(env.batch_size),
        "observation": {
            str(key): [list(spec.shape), str(spec.dtype)]
            for key, spec in base.full_observation_spec.items(True, True)
        },
        "actions": repr(env.full_action_spec[env.action_key].space),
        "world": world,
        "transforms": transforms,
    }


def _chain(transform: Transform) -> Iterator[Transform]:
    yield from transform.transforms if isinstance(transform, Compose) else (transform,)


def _checksum(module: nn.Module) -> int:
    checksum = 0
    for name, buffer in sorted(module.named_buffers()):
        data = buffer.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(data.data, zlib.crc32(name.encode(), checksum))
    return checksum


def plain(value: Any) -> Any:
    """Nested plain values as they come back from a checkpoint; anything else becomes its text.

    Examples:
        >>> from torchrl_dceo.training.checkpoint.files import plain
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


def first_difference(saved: Any, own: Any, name: str = "") -> str | None:
    """Says where two descriptions differ first, or returns ``None``.

    Examples:
        >>> from torchrl_dceo.training.checkpoint.files import first_difference
        >>> first_difference({"env": {"slip": 0.0}}, {"env": {"slip": 0.15}})
        'env.slip is 0.0 there and 0.15 here'
    """
    if isinstance(saved, dict) and isinstance(own, dict):
        for key in [*own, *(key for key in saved if key not in own)]:
            inner = f"{name}.{key}" if name else key
            found = first_difference(saved.get(key, "missing"), own.get(key, "missing"), inner)
            if found:
                return found
        return None
    if isinstance(saved, list) and isinstance(own, list) and len(saved) == len(own):
        pairs = enumerate(zip(saved, own, strict=True))
        found_in = (first_difference(a, b, f"{name}[{i}]") for i, (a, b) in pairs)
        return next((found for found in found_in if found), None)
    return None if saved == own else f"{name} is {_short(saved)} there and {_short(own)} here"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class RunDirectory:
    """Marks a directory as one run's with a file ``run.json``, which says what the run is made of.

    Args:
        path (path-like): the directory; made by :meth:`start`.

    Examples:
        >>> import tempfile
        >>> from torchrl_dceo.training.checkpoint.files import RunDirectory
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
        return (self.path / "run.json").exists() or (self.path / "progress.csv").exists()

    def start(self, fingerprint: dict[str, Any]) -> None:
        """Takes the directory for a new run."""
        self.lock.acquire()
        if self.holds_a_run:
            self.lock.release()
            raise FileExistsError(
                f"{self.path} already holds a run: resume it, or choose another run_dir"
            )
        temporary = self.path / "run.json.tmp"
        temporary.write_text(json.dumps(fingerprint, indent=1))
        temporary.replace(self.path / "run.json")

    def open(self) -> None:
        """Takes the directory to go on with the run in it."""
        if not self.holds_a_run:
            raise FileNotFoundError(f"there is no run to resume in {self.path}")
        self.lock.acquire()

    def check(self, fingerprint: dict[str, Any], saved: dict[str, Any] | None = None) -> None:
        """Refuses a run that is made of something else than the one that was started here.

        Args:
            fingerprint (dict): what the run is made of.
            saved (dict, optional): what a checkpoint says. Default: what ``run.json`` says.
        """
        if saved is None:
            try:
                saved = json.loads((self.path / "run.json").read_text())
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"{self.path / 'run.json'} cannot be read and there is no checkpoint: start anew in "
                    f"another run_dir ({error})"
                ) from None
        # As it comes back from JSON.
        difference = first_difference(saved, json.loads(json.dumps(fingerprint)))
        if difference:
            raise ValueError(f"{self.path} belongs to another configuration: {difference}")


_log = logging.getLogger(__name__)


State = dict[str, Any]


class Checkpoints:
    """The last few checkpoints of a run, each a directory of tensors and JSON with a checksum for every file.

    A checkpoint counts once its index is written, which happens last and in one step: a run killed while saving has
    the one before. A damaged one is refused with a warning that names the file, and the one before is used. That is
    why
    checkpoints share no files, although most of a replay does not change between two of them: one damaged byte never
    costs more than one checkpoint.

    On disk are at most ``keep`` of them, and one more while it is being written; large tensors that shrink well are
    compressed.

    Args:
        path (path-like): the directory that holds them.
        keep (int, optional): how many are kept. Default: 2.

    Examples:
        >>> import tempfile, torch
        >>> from torchrl_dceo.training.checkpoint.files import Checkpoints
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder)
        ...     for step in (100, 200, 300):
        ...         checkpoints.save(step, {"weight": torch.full((2,), step)})
        ...     checkpoints.steps(), checkpoints.load_latest()["weight"].tolist()
        ([200, 300], [300, 300])
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.path = Path(path)
        self.keep = keep

    def _folder(self, step: int) -> Path:
        return self.path / f"{step:012d}"

    def _folders(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        return sorted(folder for folder in self.path.iterdir() if folder.name.isdigit())

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are there, whole or damaged, oldest first."""
        return [int(folder.name) for folder in self._folders() if (folder / "state.json").exists()]

    def nbytes(self) -> int:
        """The bytes on disk of all that is kept."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def save(self, step: int, state: State) -> None:
        """Saves a state, then removes what is too old to keep, unfinished, or from after this step."""
        save_state(self._folder(step), state, compress=True)
        # Later ones are what a resumed run refused, or left behind by going further back than it had to.
        kept = [self._folder(s) for s in self.steps() if s <= step][-self.keep :]
        for folder in self._folders():
            if folder not in kept:
                # The index first: from then on it is no checkpoint.
                (folder / "state.json").unlink(missing_ok=True)
                shutil.rmtree(folder)

    def load_latest(self, check: Callable[[State], None] | None = None) -> State:
        """Loads the newest checkpoint that is whole.

        Args:
            check (callable, optional): raises a ``ValueError`` at a state that is not wanted; the one before is tried.
        """
        refused: list[str] = []
        for step in reversed(self.steps()):
            try:
                state = load_state(self._folder(step))
                if check is not None:
                    check(state)
            except (ValueError, FileNotFoundError) as error:
                refused.append(str(error))
                _log.warning("checkpoint %s is not used: %s", self._folder(step), error)
            else:
                return state
        if refused:
            raise ValueError(f"no checkpoint in {self.path} can be used: {refused[0]}")
        raise FileNotFoundError(f"no checkpoint in {self.path}")
