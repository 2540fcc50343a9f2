"""Saving a run and going on with it: everything that the rest of a run depends on, out and in again."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tensordict import TensorDict
from torchrl.envs import EnvBase

from torchrl_dceo.training.agent import Agent
from torchrl_dceo.training.checkpoint import Checkpoints
from torchrl_dceo.training.collection import Collection
from torchrl_dceo.training.fingerprint import describe_agent, describe_env, plain
from torchrl_dceo.training.loggers import CSVLog
from torchrl_dceo.training.metrics import RunMetrics, num_options
from torchrl_dceo.training.run_directory import RunDirectory
from torchrl_dceo.training.run_state import (
    Counters,
    copied,
    from_tensordict,
    get_generators,
    get_world,
    set_generators,
    set_world,
    to_tensordict,
)
from torchrl_dceo.training.train_config import TrainConfig

__all__ = ["Resumable"]


class Resumable(ABC):
    """The half of a :class:`~torchrl_dceo.training.Trainer` that saves and restores; the other half runs."""

    agent: Agent
    config: TrainConfig
    counters: Counters
    metrics: RunMetrics
    last_row: dict[str, float]
    unevaluated: dict[str, float] | None
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
    def world(self) -> EnvBase:
        """The environment of the current phase."""

    @abstractmethod
    def close(self) -> None:
        """Stops collecting and lets others write into the run directory."""

    def fingerprint(self) -> dict[str, Any]:
        """What the run is made of: agent, environments and every setting that its numbers depend on."""
        train = asdict(self.config)
        for free in (
            "total_frames",
            "checkpoint_period",
            "keep_checkpoints",
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
        # Last, what follows from the rest: a difference is better explained by its cause.
        modules = {name: agent.pop(name) for name in ("modules", "shapes")}
        settings = plain(self.settings)
        return {"settings": settings, "train": train, "agent": agent, "envs": envs, **modules}

    @property
    def holds_a_run(self) -> bool:
        """Whether a run was started in the run directory, which :meth:`resume` can go on with."""
        return self._directory is not None and self._directory.holds_a_run

    def resume(self) -> int:
        """Goes back to the newest whole checkpoint of the run directory, or to the start if there is none yet.

        :meth:`run` then goes on as if the run had never been interrupted: to the last bit, if agent, environments and
        seeds are made the same way. A directory whose run is made of something else is refused. No other run can use
        the directory until this one has ended or :meth:`close` is called.

        Returns:
            The frames that the run had done at that point.
        """
        if self._directory is None or self.checkpoints is None or self.log is None:
            raise ValueError("only a run with a run_dir can be resumed")
        self._directory.open()
        directory, own = self._directory, self.fingerprint()
        try:
            if self.checkpoints.steps():
                state = self.checkpoints.load_latest(
                    lambda state: directory.check(own, state["fingerprint"])
                )
                self.load_state(state)
            else:
                directory.check(own)
                self.log.truncate(0)
        except BaseException:
            self.close()
            raise
        self._started = True
        return self.counters.frames

    def _save(self) -> None:
        if self.checkpoints is None or self.log is None:
            return
        # The rows that the checkpoint counts must be on disk before it is.
        with self.log.path.open() as file:
            os.fsync(file.fileno())
        state = {"fingerprint": self.fingerprint(), **self.state(copy=False)}
        self.checkpoints.save(self.counters.frames, state)

    def state(self, *, copy: bool = True) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as nested dictionaries of tensors and plain values.

        Keyword Args:
            copy (bool, optional): ``False`` for what is to be written at once: tensors of networks and replay are not
                copied then. Default: ``True``.
        """
        carrier = self._collection.carrier
        carrier = self._carrier if carrier is None else carrier
        state = {
            "counters": vars(self.counters).copy(),
            "agent": dict(self.agent.state_dict()),
            "learning": self.agent.learning_state(),
            "replay": self.replay.state_dict(copy=False),
            **self._surroundings(),
            "carrier": None if carrier is None else from_tensordict(carrier),
            "log_rows": 0 if self.log is None else self.log.num_rows,
            "last_row": dict(self.last_row),
            "unevaluated": None if self.unevaluated is None else dict(self.unevaluated),
        }
        return copied(state) if copy else state

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes back to what :meth:`state` returned, in a trainer built the same way."""
        self._collection.stop()
        self.counters = Counters(**state["counters"])
        self.agent.load_state_dict(state["agent"])
        # Copied: an optimizer goes on with the very tensors that it is given.
        self.agent.load_learning_state(copied(state["learning"]))
        self.replay.load_state_dict(state["replay"])
        self.metrics = RunMetrics(num_options(self.agent))
        carrier = state["carrier"]
        self._carrier = None if carrier is None else to_tensordict(carrier, self.world.batch_size)
        self.last_row = dict(state["last_row"])
        self.unevaluated = state.get("unevaluated")  # not in the checkpoints of older versions
        if self.log is not None:
            self.log.truncate(state["log_rows"])
            if self.unevaluated is not None:
                self.log.write_again(self.unevaluated)  # without what the end of a run added
        self._set_surroundings(state)

    def _surroundings(self) -> dict[str, Any]:
        """What collecting changes besides the agent: worlds and random generators."""
        envs = {name: get_world(env) for name, env in self._envs().items()}
        return {"envs": envs, "generators": get_generators()}

    def _set_surroundings(self, state: dict[str, Any]) -> None:
        for name, env in self._envs().items():
            set_world(env, state["envs"][name])
        set_generators(state["generators"])

    def _envs(self) -> dict[str, EnvBase]:
        envs = {"train": self.env, "eval": self.eval_env, "discovery": self.discovery_env}
        return {name: env for name, env in envs.items() if env is not None}
