"""The training loop: collect, store, update, evaluate, log, save."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.envs import EnvBase

from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import StateCounts, find_transform, get_env_state, set_env_state
from torchrl_dceo.training.agent import Agent, Phase
from torchrl_dceo.training.checkpoint import Checkpoints
from torchrl_dceo.training.evaluation import evaluate
from torchrl_dceo.training.loggers import CSVLog
from torchrl_dceo.training.metrics import RunMetrics
from torchrl_dceo.training.progress import ProgressLine

__all__ = ["TrainConfig", "Trainer"]

Probe = Callable[["Trainer"], dict[str, float]]


@dataclass
class TrainConfig:
    """How long and how often; what the agent itself does is in the agent's config."""

    total_frames: int = 300_000
    update_period: int = 4  # frames per update; the authors' later research code
    learning_starts: int = 1000  # frames before the first update; the same
    replay_capacity: int | None = None  # rows; None: room for the whole run
    eval_period: int = 10_000  # frames between greedy evaluations
    log_period: int = 1000  # frames between rows of the log
    checkpoint_period: int | None = None  # frames between checkpoints; None: none but the last
    keep_checkpoints: int = 2  # how many are kept
    seed: int = 0  # of networks, exploration and replay; environments have their own
    progress: bool = True  # the line on the terminal

    def __post_init__(self) -> None:
        for name in (
            "total_frames",
            "update_period",
            "eval_period",
            "log_period",
            "keep_checkpoints",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.checkpoint_period is not None and self.checkpoint_period % self.log_period:
            raise ValueError(
                f"checkpoint_period must be a multiple of log_period ({self.log_period}), got "
                f"{self.checkpoint_period}: what was gathered for a row is not saved"
            )


@dataclass
class Counters:
    """How far a run is."""

    frames: int = 0
    updates: int = 0
    episodes: int = 0
    phase: int = 0
    phase_frames: int = 0
    seconds: float = 0.0


class Trainer:
    """Trains any :class:`~torchrl_dceo.training.Agent` on any environment; see :func:`~torchrl_dceo.training.train`.

    Args:
        agent (Agent): how it acts and what it learns.
        env (EnvBase): the world; batched or not.
        config (TrainConfig): how long and how often.

    Keyword Args:
        eval_env (EnvBase, optional): a batch of environments for greedy evaluation, one episode each.
        discovery_env (EnvBase, optional): the world without reward, for agents that have such a phase.
        run_dir (path-like, optional): where log and checkpoints go; nothing is written without it.
        probes (sequence of callables, optional): ``probe(trainer)`` returns further numbers at each evaluation.
    """

    def __init__(
        self,
        agent: Agent,
        env: EnvBase,
        config: TrainConfig,
        *,
        eval_env: EnvBase | None = None,
        discovery_env: EnvBase | None = None,
        run_dir: str | Path | None = None,
        probes: tuple[Probe, ...] = (),
    ) -> None:
        if any(phase.reward_free for phase in agent.phases) and discovery_env is None:
            raise ValueError(
                "this agent discovers options in a world without reward: pass discovery_env, e.g. "
                "make_env(…, coverage=True)"
            )
        self.agent = agent
        self.config = config
        self.counters = Counters()
        self.metrics = RunMetrics()
        self.probes = probes
        self.last_row: dict[str, float] = {}
        self.env = self._prepare(env)
        self.eval_env = None if eval_env is None else self._prepare(eval_env)
        self.discovery_env = None if discovery_env is None else self._prepare(discovery_env)
        self.replay = self._make_replay()
        self._collector: Collector | None = None
        self._carrier: TensorDict | None = None
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.log = None if self.run_dir is None else CSVLog(self.run_dir / "progress.csv")
        self.checkpoints = (
            None
            if self.run_dir is None
            else Checkpoints(self.run_dir / "checkpoints", config.keep_checkpoints)
        )

    def _prepare(self, env: EnvBase) -> EnvBase:
        for transform in self.agent.transforms:
            env.append_transform(transform.clone())
        return env

    def _make_replay(self) -> Any:
        settings, env = self.agent.replay, self.env
        observations = [
            key for key in ("pixels", "observation") if key in env.observation_spec.keys()
        ]
        # An episode's last observation takes a row of its own.
        capacity = (
            self.config.replay_capacity
            or self.config.total_frames + self.config.total_frames // 10 + 1000
        )
        return make_replay_buffer(
            capacity,
            n_steps=settings.n_steps,
            gamma=settings.gamma,
            batch_size=settings.batch_size,
            num_streams=max(1, env.batch_size.numel()),
            observation_keys=observations,
            state_keys=list(settings.state_keys),
            step_keys=list(settings.step_keys),
            window=settings.window,
            seed=self.config.seed,
        )

    @property
    def phase(self) -> Phase:
        """The stretch of the run that is on."""
        return self.agent.phases[self.counters.phase]

    @property
    def world(self) -> EnvBase:
        """The environment of the current phase."""
        if self.phase.reward_free:
            assert self.discovery_env is not None
            return self.discovery_env
        return self.env

    @property
    def coverage(self) -> int | None:
        """Distinct states visited so far in training, if the environment counts them."""
        counts = [
            find_transform(env, StateCounts)
            for env in (self.env, self.discovery_env)
            if env is not None
        ]
        visited = [c.visited for c in counts if c is not None]
        return int(torch.stack(visited).any(0).sum()) if visited else None

    def run(self) -> dict[str, float]:
        """Trains to the end; returns the last row of the log."""
        bar = ProgressLine(
            self.config.total_frames, self.counters.frames, enabled=self.config.progress
        )
        began, before = time.monotonic(), self.counters.seconds
        while self.counters.frames < self.config.total_frames:
            for data in self._collect():
                self._take(data)
                self.counters.seconds = before + time.monotonic() - began
                self._report(bar)
                if self._phase_is_over() or self.counters.frames >= self.config.total_frames:
                    break
            self._stop_collecting()
            if self._phase_is_over():
                self._next_phase()
        if self.checkpoints is not None:
            self._save()
        bar.close()
        return self.last_row

    def _frames_per_batch(self) -> int:
        envs = max(1, self.world.batch_size.numel())
        return -(-self.config.update_period // envs) * envs

    def _collect(self) -> Any:
        self._collector = Collector(
            self.world,
            self.agent.policy,
            frames_per_batch=self._frames_per_batch(),
            total_frames=-1,
            no_cuda_sync=True,
        )
        if self._carrier is not None:  # a resumed run takes the very step it was about to take
            self._collector._carrier = self._carrier
            self._carrier = None
        return iter(self._collector)

    def _stop_collecting(self) -> None:
        if self._collector is not None:
            self._collector.shutdown(close_env=False)
            self._collector = None

    def _take(self, data: TensorDict) -> None:
        """One batch of frames: stored, and learned from."""
        counters, frames = self.counters, data.numel()
        self.replay.extend(data)
        self.agent.explorer.step(frames)
        self.metrics.collected(data)
        updates_before = self._updates_due()
        counters.frames += frames
        counters.phase_frames += frames
        for _ in range(self._updates_due() - updates_before):
            self.metrics.updated(self.agent.update(self.replay.sample(), self.phase))
            counters.updates += 1

    def _updates_due(self) -> int:
        """How many updates the frames of this phase have earned."""
        return (
            max(0, self.counters.phase_frames - self.config.learning_starts)
            // self.config.update_period
        )

    def _phase_is_over(self) -> bool:
        return self.phase.frames is not None and self.counters.phase_frames >= self.phase.frames

    def _next_phase(self) -> None:
        self.counters.phase += 1
        self.counters.phase_frames = 0
        self.replay.empty()

    def _crossed(self, period: int) -> bool:
        frames = self.counters.frames
        return frames // period > (frames - self._frames_per_batch()) // period

    def _report(self, bar: ProgressLine) -> None:
        config, counters = self.config, self.counters
        last = counters.frames >= config.total_frames
        if last or self._crossed(config.log_period):
            evaluated = last or self._crossed(config.eval_period)
            self._write_row(evaluated)
            if (
                self.checkpoints is not None
                and config.checkpoint_period
                and self._crossed(config.checkpoint_period)
            ):
                self._save()
        shown = {name: self.last_row[name] for name in _SHOWN if name in self.last_row}
        bar.update(counters.frames, {"ε": float(self.agent.explorer.eps), **shown}, force=last)

    def _write_row(self, evaluated: bool) -> None:
        row = self.metrics.row()
        self.counters.episodes += int(row.pop("episodes", 0))
        counters = self.counters
        row = {
            "frames": counters.frames,
            "updates": counters.updates,
            "episodes": counters.episodes,
            "phase": counters.phase,
            "eps": float(self.agent.explorer.eps),
            **row,
        }
        if self.coverage is not None:
            row["coverage"] = self.coverage
        if evaluated:
            if self.eval_env is not None:
                row["eval_return"] = evaluate(self.agent.policy, self.eval_env)
            for probe in self.probes:
                row.update(probe(self))
        row["seconds"] = round(counters.seconds, 3)
        self.last_row = {**self.last_row, **row}
        if self.log is not None:
            self.log.write(row)

    # Saving and restoring

    def _save(self) -> None:
        assert self.checkpoints is not None
        self.checkpoints.save(self.counters.frames, self.state())

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as nested dictionaries of tensors and plain values."""
        carrier = None if self._collector is None else self._collector._carrier
        return {
            "counters": vars(self.counters).copy(),
            "agent": dict(self.agent.state_dict()),
            "learning": self.agent.learning_state(),
            "replay": self.replay.state_dict(),
            "envs": {name: _env_state(env) for name, env in self._envs().items()},
            "carrier": None if carrier is None else _nested(carrier),
            "rng": torch.get_rng_state(),
            "log_rows": 0 if self.log is None else self.log.num_rows,
            "last_row": dict(self.last_row),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes back to what :meth:`state` returned, in a trainer built the same way."""
        self.counters = Counters(**state["counters"])
        self.agent.load_state_dict(state["agent"])
        self.agent.load_learning_state(state["learning"])
        self.replay.load_state_dict(state["replay"])
        for name, env in self._envs().items():
            _load_env_state(env, state["envs"][name])
        if state["carrier"] is not None:
            self._carrier = _unnested(state["carrier"], self.world.batch_size)
        self.last_row = state["last_row"]
        if self.log is not None:
            self.log.truncate(state["log_rows"])
        torch.set_rng_state(state["rng"])

    def _envs(self) -> dict[str, EnvBase]:
        envs = {"train": self.env, "eval": self.eval_env, "discovery": self.discovery_env}
        return {name: env for name, env in envs.items() if env is not None}


_SHOWN = ("train_return", "eval_return", "coverage")


def _env_state(env: EnvBase) -> dict[str, Any]:
    return {"world": get_env_state(env), "transforms": dict(env.state_dict())}


def _load_env_state(env: EnvBase, state: dict[str, Any]) -> None:
    env.load_state_dict(state["transforms"])
    set_env_state(env, state["world"])


def _nested(tensordict: TensorDict) -> dict[str, Any]:
    return {
        key: _nested(value) if isinstance(value, TensorDict) else value.clone()
        for key, value in tensordict.items()
    }


def _unnested(state: dict[str, Any], batch_size: torch.Size) -> TensorDict:
    entries = {
        k: _unnested(v, batch_size) if isinstance(v, dict) else v.clone() for k, v in state.items()
    }
    return TensorDict(entries, batch_size=batch_size)
