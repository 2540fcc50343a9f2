"""Saving and restoring the state of a run."""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch.nn.parameter import UninitializedBuffer
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.data.persistence import copied
from torchrl_dceo.envs import env_recipe, get_env_state, saves_state, set_env_state
from torchrl_dceo.training.checkpoint import Checkpoints
from torchrl_dceo.training.checkpoint.run_directory import (
    RunDirectory,
    describe_agent,
    describe_env,
    plain,
)
from torchrl_dceo.training.collection import Collection
from torchrl_dceo.training.config import TrainConfig
from torchrl_dceo.training.errors import NoRun, RunRefused, run_errors
from torchrl_dceo.training.logging import CSVLog
from torchrl_dceo.training.logging.metrics import RunMetrics, num_options

__all__ = [
    "Counters",
    "Resumable",
    "from_tensordict",
    "get_generators",
    "restore_env",
    "save_env",
    "seed_generators",
    "set_generators",
    "to_tensordict",
]

_log = logging.getLogger(__name__)


@dataclass
class Counters:
    """The progress of a run."""

    frames: int = 0
    updates: int = 0
    episodes: int = 0
    phase: int = 0
    phase_frames: int = 0
    seconds: float = 0.0
    solved: int = 0  # consecutive evaluations with a return that counts as solved


def save_env(env: EnvBase) -> dict[str, Any]:
    """The state of an environment and of its transforms.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.checkpoint.state import save_env, restore_env
        >>> env = make_env("NineRooms", seed=0, slip=1.0)
        >>> saved = save_env(env)
        >>> first = env.rollout(20)["state_id"]
        >>> restore_env(env, saved)
        >>> bool((env.rollout(20)["state_id"] == first).all())
        True
    """
    saved = get_env_state(env) if saves_state(env) else None
    return {"env": saved, "transforms": dict(env.state_dict())}


def restore_env(env: EnvBase, state: dict[str, Any]) -> None:
    """Restores a state of :func:`save_env`."""
    if any(isinstance(buffer, UninitializedBuffer) for buffer in env.buffers()):
        env.reset()  # some transforms, such as CatFrames, create their buffers at the first reset
    env.load_state_dict(state["transforms"])
    if state["env"] is not None:
        set_env_state(env, state["env"])


def get_generators() -> dict[str, Any]:
    """The global random generators: torch's (of every device), and those of NumPy and Python.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.training.checkpoint.state import get_generators, set_generators
        >>> saved = get_generators()
        >>> x = torch.rand(3)
        >>> set_generators(saved)
        >>> bool((torch.rand(3) == x).all())
        True
    """
    numpy: Any = np.random.get_state(legacy=False)
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "numpy": {
            "key": torch.from_numpy(numpy["state"]["key"].astype(np.int64)),
            "pos": int(numpy["state"]["pos"]),
            "has_gauss": int(numpy["has_gauss"]),
            "gauss": float(numpy["gauss"]),
        },
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
    }


def set_generators(state: dict[str, Any]) -> None:
    """Restores the states of :func:`get_generators`."""
    numpy, python = state["numpy"], state["python"]
    key = numpy["key"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, numpy["pos"], numpy["has_gauss"], numpy["gauss"]))
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    torch.set_rng_state(state["torch"])
    if state.get("cuda"):  # not in the checkpoints of older versions, nor of runs on the CPU
        torch.cuda.set_rng_state_all(state["cuda"])


def seed_generators(seed: int) -> None:
    """Seeds the global generators of torch, NumPy and Python.

    Args:
        seed (int): at least 0.

    Examples:
        >>> import random
        >>> from torchrl_dceo.training.checkpoint.state import seed_generators
        >>> seed_generators(3)
        >>> first = random.random()
        >>> seed_generators(3)
        >>> random.random() == first
        True
    """
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def from_tensordict(tensordict: TensorDictBase) -> dict[str, Any]:
    """A tensordict as nested dictionaries of copies.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.training.checkpoint.state import from_tensordict, to_tensordict
        >>> data = TensorDict({"a": torch.zeros(2), "b": {"c": torch.ones(2, 1)}}, [2])
        >>> bool((to_tensordict(from_tensordict(data), torch.Size([2])) == data).all())
        True
    """
    return {
        key: from_tensordict(value) if isinstance(value, TensorDictBase) else value.clone()
        for key, value in tensordict.items()
    }


def to_tensordict(state: dict[str, Any], batch_size: torch.Size) -> TensorDict:
    """The inverse of :func:`from_tensordict`."""
    entries = {
        key: to_tensordict(value, batch_size) if isinstance(value, dict) else value.clone()
        for key, value in state.items()
    }
    return TensorDict(entries, batch_size=batch_size)


def _name(env: EnvBase) -> str:
    recipe = env_recipe(env)
    if recipe is not None:
        made_from = recipe.made_from
        return str(made_from.get("id") or made_from.get("entry_point") or made_from["name"])
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return type(env).__name__


class Resumable(ABC):
    """Base class of :class:`~torchrl_dceo.training.Trainer` with save and restore."""

    agent: Agent
    config: TrainConfig
    counters: Counters
    metrics: RunMetrics
    last_row: dict[str, float]
    unevaluated: dict[str, float] | None
    best_return: float | None
    settings: Mapping[str, Any]
    env: EnvBase
    eval_env: EnvBase | None
    discovery_env: EnvBase | None
    replay: Any
    log: CSVLog | None
    checkpoints: Checkpoints | None
    _collection: Collection
    _carrier: TensorDict | None
    _directory: RunDirectory | None
    _started: bool

    @property
    @abstractmethod
    def replay_capacity(self) -> int:
        """Rows of the replay buffer."""

    @property
    @abstractmethod
    def current_env(self) -> EnvBase:
        """The environment of the current phase."""

    @abstractmethod
    def close(self) -> None:
        """Stops collecting and releases the run directory."""

    def fingerprint(self) -> dict[str, Any]:
        """The description of the run: agent, environments and every setting that affects its numbers."""
        train = asdict(self.config)
        for free in (
            "total_frames",
            "checkpoint_period",
            "keep_checkpoints",
            "keep_best",
            "stop_after_solved",
            "solved_return",
            "progress",
            "replay_storage",
            "replay_dir",
        ):
            del train[free]
        if not self.config.eval_eps:
            del train["eval_eps"]  # not in the checkpoints of older versions
        train["replay_capacity"] = self.replay_capacity
        # Those of the agent are described with it.
        own = tuple(type(transform) for transform in self.agent.transforms)
        envs = {name: describe_env(env, own) for name, env in self._envs().items()}
        agent = describe_agent(self.agent)
        # Derived entries last, so that a difference is reported by its cause.
        modules = {name: agent.pop(name) for name in ("modules", "shapes")}
        settings = plain(self.settings)
        return {"settings": settings, "train": train, "agent": agent, "envs": envs, **modules}

    @property
    def holds_a_run(self) -> bool:
        """Whether the run directory has a run that :meth:`resume` can resume."""
        return self._directory is not None and self._directory.holds_a_run

    def resume(self) -> int:
        """Restores the newest valid checkpoint of the run directory, or the initial state if there is none yet.

        :meth:`run` then continues bit for bit as without the interruption, if agent, environments and
        seeds are built in the same way. The directory of a different run raises an error. No other run can use
        the directory until this one has ended or :meth:`close` is called.

        Returns:
            The frames of the run at that point.
        """
        if self._directory is None or self.checkpoints is None or self.log is None:
            raise ValueError("only a run with a run_dir can be resumed")
        with run_errors(self._directory.path):
            self._directory.open()
            try:
                self._restore(self._directory, self.checkpoints, self.log)
            except BaseException:
                self.close()
                raise
        self._started = True
        return self.counters.frames

    def _restore(self, directory: RunDirectory, checkpoints: Checkpoints, log: CSVLog) -> None:
        own = self.fingerprint()

        def use(state: dict[str, Any]) -> None:
            directory.check(own, state["fingerprint"])
            self._load(state)

        try:
            state = checkpoints.load_latest(use)
        except NoRun:
            # Killed before its first checkpoint, or all checkpoints were deleted.
            directory.check(own)
            directory.refuse_lost_checkpoints(bool(log.read_bytes()))
            log.truncate(0)
        else:
            self._check_end(state)
            self._restore_log(state)
        directory.resumed(own, self.counters.frames)

    def _check_end(self, state: dict[str, Any]) -> None:
        """Checks that the run is not longer than ``total_frames``; the last batch may exceed it."""
        has, end = state["counters"]["frames"], self.config.total_frames
        if end < min(has, state.get("total_frames", has)):
            raise RunRefused(
                f"total_frames={end} is less than the {has} frames that the run has: give {has} or more"
            )

    def _save(self) -> None:
        if self.checkpoints is None or self._directory is None:
            return
        fingerprint, step = self.fingerprint(), self.counters.frames
        self.checkpoints.save(step, {"fingerprint": fingerprint, **self.state(copy=False)})
        self._directory.saved(fingerprint, step)

    def _save_best(self) -> None:
        if self.checkpoints is not None:
            state = {"fingerprint": self.fingerprint(), **self.state(copy=False)}
            self.checkpoints.save_best(state)

    def state(self, *, copy: bool = True) -> dict[str, Any]:
        """The complete state of the run, as nested dictionaries of tensors and plain values.

        Keyword Args:
            copy (bool, optional): ``False`` if the state is written immediately: tensors of networks and replay are not
                copied then. Default: ``True``.
        """
        carrier = self._collection.carrier
        carrier = self._carrier if carrier is None else carrier
        state: dict[str, Any] = {
            "counters": vars(self.counters).copy(),
            "agent": dict(self.agent.state_dict()),
            "learning": self.agent.learning_state(),
            "replay": self.replay.state_dict(copy=False, segments=True),
            **self._surroundings(),
            "carrier": None if carrier is None else from_tensordict(carrier),
            "total_frames": self.config.total_frames,
            "metrics": self.metrics.state(),
            "best_return": self.best_return,
            # The rows of the log, so that a damaged file can be restored.
            "log": b"" if self.log is None else self.log.read_bytes(),
            "last_row": dict(self.last_row),
            "unevaluated": None if self.unevaluated is None else dict(self.unevaluated),
        }
        log = np.frombuffer(state["log"], dtype=np.uint8).copy()
        state["log"] = torch.from_numpy(log)
        return copied(state) if copy else state

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores a state of :meth:`state`, in a trainer built with the same arguments."""
        self._load(state)
        self._restore_log(state)

    def _load(self, state: dict[str, Any]) -> None:
        self._collection.stop()
        self.counters = Counters(**state["counters"])
        self.agent.load_state_dict(state["agent"])
        # Copied, because an optimizer keeps the given tensors.
        self.agent.load_learning_state(copied(state["learning"]))
        self.replay.load_state_dict(state["replay"])
        self.metrics = RunMetrics(num_options(self.agent))
        if "metrics" in state:  # not in the checkpoints of older versions
            self.metrics.load_state(state["metrics"])
        self.best_return = state.get("best_return")
        # If the environment could not be saved, the next step is the first of a new episode.
        carrier = state["carrier"] if saves_state(self.current_env) else None
        self._carrier = (
            None if carrier is None else to_tensordict(carrier, self.current_env.batch_size)
        )
        self.last_row = dict(state["last_row"])
        self.unevaluated = state.get("unevaluated")  # not in the checkpoints of older versions
        self._set_surroundings(state)

    def _restore_log(self, state: dict[str, Any]) -> None:
        if self.log is None:
            return
        if "log" in state:
            self.log.restore(state["log"].numpy().tobytes())
        else:  # a checkpoint of an older version
            self.log.truncate(state["log_rows"])
            if self.unevaluated is not None:
                self.log.write_again(self.unevaluated)  # without what the end of a run added

    def _warn_of_unsaved(self) -> None:
        """Logs a warning that names the environment that cannot be saved."""
        if self.checkpoints is not None and not saves_state(self.env):
            _log.warning(
                "%s cannot be saved in mid-episode (it has no get_env_state and set_env_state): checkpoints leave its "
                "state out, and a run that is resumed resumes at the next episode",
                _name(self.env),
            )

    def _surroundings(self) -> dict[str, Any]:
        """The state of environments and random generators."""
        envs = {name: save_env(env) for name, env in self._envs().items()}
        return {"envs": envs, "generators": get_generators()}

    def _set_surroundings(self, state: dict[str, Any]) -> None:
        for name, env in self._envs().items():
            restore_env(env, state["envs"][name])
        set_generators(state["generators"])

    def _envs(self) -> dict[str, EnvBase]:
        envs = {"train": self.env, "eval": self.eval_env, "discovery": self.discovery_env}
        return {name: env for name, env in envs.items() if env is not None}
