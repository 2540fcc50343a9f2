"""The training loop: collect, store, update, evaluate, log, save."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_dceo._fast import settled_objects
from torchrl_dceo.agents.agent import Agent, Phase
from torchrl_dceo.data import rows_for
from torchrl_dceo.envs import StateCounts, current_map, find_transform, follow_map, prepare_env
from torchrl_dceo.envs.transforms import RowTransform
from torchrl_dceo.training.checkpoint import Checkpoints
from torchrl_dceo.training.checkpoint.run_directory import RunDirectory
from torchrl_dceo.training.checkpoint.state import Counters, Resumable
from torchrl_dceo.training.collection import Batch, WorkerEnv, make_collection
from torchrl_dceo.training.collection.workers import with_transforms
from torchrl_dceo.training.config import CollectorConfig, TrainConfig
from torchrl_dceo.training.errors import (
    RunError,
    RunInterrupted,
    RunRefused,
    dead_worker,
    run_errors,
)
from torchrl_dceo.training.evaluation import evaluate
from torchrl_dceo.training.finite import FiniteGuard
from torchrl_dceo.training.interruption import Interruption
from torchrl_dceo.training.logging import CSVLog, Log
from torchrl_dceo.training.logging.metrics import ProgressLine, RunMetrics, num_options
from torchrl_dceo.training.run_settings import store_settings

__all__ = ["TrainConfig", "Trainer"]

Probe = Callable[["Trainer"], dict[str, float]]


class Trainer(Resumable):
    """Trains any :class:`~torchrl_dceo.training.Agent` on any environment; see :func:`~torchrl_dceo.training.train`.

    Args:
        agent (Agent): the agent.
        env (EnvBase): the environment; batched or not.
        config (TrainConfig): the settings of training.

    Keyword Args:
        eval_env (EnvBase, optional): a batch of environments for greedy evaluation, one episode each.
        discovery_env (EnvBase, optional): the environment without reward, for agents that have such a phase.
        run_dir (path-like, optional): directory of log and checkpoints. Default: none are written.
        settings (mapping, optional): settings of the run, e.g. a recipe's config: stored with the checkpoints
            and compared when the run is resumed, like the descriptions of agent and environments.
        probes (sequence of callables, optional): ``probe(trainer)`` returns further log columns at each evaluation.
        logs (sequence of Log, optional): further logs, which also get each row (``write(row)``).
        collection (CollectorConfig, optional): how transitions are collected. Default: this process.
        worker_env (callable, optional): builds the environments of a worker, ``worker_env(batch_size=…, seed=…)``, and
            with ``coverage=True`` those without reward: ``functools.partial(make_env, "NineRooms")``. Required with
            workers; ``env`` and ``discovery_env`` are then never stepped.
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
        settings: Mapping[str, Any] | None = None,
        probes: tuple[Probe, ...] = (),
        logs: Sequence[Log] = (),
        collection: CollectorConfig | None = None,
        worker_env: WorkerEnv | None = None,
    ) -> None:
        if any(phase.reward_free for phase in agent.phases) and discovery_env is None:
            raise ValueError(
                "this agent discovers options in an environment without reward: pass discovery_env, e.g. "
                "make_env(…, coverage=True)"
            )
        if config.stop_after_solved is not None and current_map(prepare_env(env)) is not None:
            raise ValueError(
                "stop_after_solved would end the run before the environment changes: leave it out"
            )
        if collection is not None and collection.uses_workers:
            # Raises errors before anything is started.
            collection.envs_per_worker(max(1, prepare_env(env).batch_size.numel()))
        self.agent = agent
        self.config = config
        self.counters = Counters()
        self.metrics = RunMetrics(num_options(agent))
        self.probes = probes
        self.last_row: dict[str, float] = {}
        self.unevaluated: dict[str, float] | None = None
        self.best_return: float | None = None
        self.settings = {} if settings is None else dict(settings)
        # The returned environment is used: one without transforms is wrapped in a new object.
        self.env = with_transforms(prepare_env(env), agent.transforms)
        self.eval_env, self.discovery_env = (
            None if other is None else with_transforms(prepare_env(other), agent.transforms)
            for other in (eval_env, discovery_env)
        )
        check_policy(agent, self.env)
        if self.discovery_env is not None:
            # Discovery happens before any change of the environment.
            follow_map(self.discovery_env, self.env)
        self.replay = agent.replay.make(
            self.env,
            self.replay_capacity,
            config.seed,
            storage=config.replay_storage,
            scratch_dir=config.replay_dir,
        )
        self._collection = make_collection(agent, config, collection, worker_env)
        self._interruption = Interruption(enabled=run_dir is not None)
        self._collection.interrupted = self._interruption.is_received
        self._guard = FiniteGuard(agent, self.env)
        self._batch_frames = 0  # of the last batch
        self._carrier: TensorDict | None = None
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._directory = None if self.run_dir is None else RunDirectory(self.run_dir)
        self._started = False
        self.log = None if self.run_dir is None else CSVLog(self.run_dir / "progress.csv")
        self.logs = [log for log in (self.log, *logs) if log is not None]
        self.checkpoints = (
            None
            if self.run_dir is None
            else Checkpoints(self.run_dir / "checkpoints", config.keep_checkpoints)
        )

    @property
    def replay_capacity(self) -> int:
        """Rows of the replay buffer: as configured, or enough for the whole run."""
        if self.config.replay_capacity is not None:
            return self.config.replay_capacity
        streams = max(1, self.env.batch_size.numel())
        # The last batch may exceed the end. Rows that stay empty, as most do with long episodes, need no memory.
        return rows_for(self.config.total_frames + 1000, num_streams=streams, frame_stack=16)

    @property
    def phase(self) -> Phase:
        """The current phase of the run."""
        return self.agent.phases[self.counters.phase]

    @property
    def current_env(self) -> EnvBase:
        """The environment of the current phase."""
        if self.phase.reward_free:
            assert self.discovery_env is not None
            return self.discovery_env
        return self.env

    @property
    def coverage(self) -> int | None:
        """The number of distinct states visited in training, if the environment counts them."""
        counts = [
            find_transform(env, StateCounts)
            for env in (self.env, self.discovery_env)
            if env is not None
        ]
        visited = [c.visited for c in counts if c is not None]
        return int(torch.stack(visited).any(0).sum()) if visited else None

    def run(self) -> dict[str, float]:
        """Trains to the end; returns the last row of the log.

        SIGTERM and SIGINT save a checkpoint first, if there is a run directory.

        Raises:
            RunError: if the run cannot continue.
        """
        with run_errors(self.run_dir), settled_objects(), self._interruption as interruption:
            try:
                self._start()
                self._run()
            except Exception as error:
                self._explain(error)
                raise
            finally:
                self.close()
            if interruption.received is not None:
                raise self._interrupted()
        return self.last_row

    def _start(self) -> None:
        self._warn_of_unsaved()
        if self._started:
            return
        if self._directory is not None:
            self._directory.start(self.fingerprint())
            store_settings(self._directory.path, self.agent)
        # Torch's generator was seeded before the agent was built.
        np.random.seed(self.config.seed % 2**32)
        random.seed(self.config.seed)
        self._started = True

    def _explain(self, error: Exception) -> None:
        """Raises the cause of an error, if it is a signal or a non-finite number."""
        if isinstance(error, RunError) and self._interruption.received is None:
            return
        if self._interruption.received is not None:
            raise self._interrupted() from error
        for env in self._envs().values():
            dead = dead_worker(env)
            if dead is not None:
                raise RunError(f"{dead}: resume the run") from error
        counters = self.counters
        # E.g. an index computed from NaN.
        self._guard.check_updates(self.metrics.first_non_finite(), counters.updates)
        self._guard.check_weights(counters.updates)

    def _interrupted(self) -> RunInterrupted:
        """Saves a checkpoint, unless there is one of this step."""
        received, frames = self._interruption.received, self.counters.frames
        assert received is not None and self.checkpoints is not None
        if frames not in self.checkpoints.steps():
            self._check_finite()
            self._save()
        name = received.name
        return RunInterrupted(
            f"stopped by {name} after {frames} frames, which are saved: resume the run", received
        )

    def close(self) -> None:
        """Stops collecting and releases the run directory; the environments stay open."""
        self._collection.close()
        for log in self.logs:
            log.close()
        if self.checkpoints is not None and self._started:
            with contextlib.suppress(OSError):
                self.checkpoints.remove_unfinished()
        if self._directory is not None:
            self._directory.lock.release()

    def _run(self) -> None:
        if self._directory is not None:
            self._directory.lock.acquire()
        bar = ProgressLine(
            self.config.total_frames,
            self.counters.frames,
            enabled=self.config.progress,
            label="" if self.run_dir is None else "/".join(self.run_dir.parts[-2:]),
        )
        began, before = time.monotonic(), self.counters.seconds
        while not self._is_over:
            while self._phase_is_over():
                self._next_phase()
            for data, streams in self._collect():
                self._take(data, streams)
                self.counters.seconds = before + time.monotonic() - began
                self._report(bar)
                if self._interruption.received is not None:
                    # Before the collection is stopped, so that the input of the next step is saved too.
                    raise self._interrupted()
                if self._phase_is_over() or self._is_over:
                    break
            self._collection.stop()
        self._evaluate_end()
        self._show(bar, force=True)
        bar.close()

    def _collect(self) -> Iterator[Batch]:
        resumed = None if self._carrier is None else self._surroundings()
        self._collection.start(
            self.current_env, reward_free=self.phase.reward_free, frames=self.counters.frames
        )
        if resumed is not None:
            # The new collector has reset its environment and called its policy once: a resumed run undoes
            # that and continues with its saved step.
            assert self._carrier is not None
            self._set_surroundings(resumed)
            self._collection.carry_on(self._carrier)
            self._carrier = None
        return iter(self._collection)

    def _take(self, data: TensorDictBase, streams: Sequence[int] | None) -> None:
        """Stores one batch of frames and makes its updates."""
        counters, frames = self.counters, data.numel()
        self._guard.check_batch(data, counters.frames, streams)
        self.replay.extend(data, streams=streams)
        self.agent.collected(data)
        self.metrics.collected(data, streams)
        updates_before = self._updates_due()
        self._batch_frames = frames
        counters.frames += frames
        counters.phase_frames += frames
        # A step can be sampled once the next step of its environment is stored: with more environments than
        # learning_starts the first batch may have none, and its updates are skipped.
        due = self._updates_due() - updates_before if len(self.replay) else 0
        for outputs in self.agent.updates(self.replay, self.phase, due):
            self.metrics.updated(outputs)
            counters.updates += 1
        self._collection.learned(counters.frames)

    def _updates_due(self) -> int:
        """The number of updates due for the frames of this phase."""
        return (
            max(0, self.counters.phase_frames - self.config.learning_starts)
            // self.config.update_period
        )

    @property
    def _is_over(self) -> bool:
        return self._is_solved or self.counters.frames >= self.config.total_frames

    @property
    def _is_solved(self) -> bool:
        """Whether the run ends early, see :class:`~torchrl_dceo.training.TrainConfig`."""
        enough = self.config.stop_after_solved
        return enough is not None and self.counters.solved >= enough

    def _phase_is_over(self) -> bool:
        return self.phase.frames is not None and self.counters.phase_frames >= self.phase.frames

    def _next_phase(self) -> None:
        self.counters.phase += 1
        self.counters.phase_frames = 0
        self._carrier = None
        self.replay.empty()

    def _crossed(self, period: int) -> bool:
        frames = self.counters.frames
        return frames // period > (frames - self._batch_frames) // period

    def _report(self, bar: ProgressLine) -> None:
        config, counters = self.config, self.counters
        if counters.frames >= config.total_frames or self._crossed(config.log_period):
            self._write_row(self._crossed(config.eval_period))
            self._keep_best()
            if self._is_over or (
                config.checkpoint_period and self._crossed(config.checkpoint_period)
            ):
                self._save()
        self._show(bar)

    def _keep_best(self) -> None:
        """Saves the state if this evaluation is the best so far."""
        if not self.config.keep_best or self.unevaluated is not None:
            return
        evaluated = self.last_row.get("eval_return")
        if evaluated is not None and (self.best_return is None or evaluated > self.best_return):
            self.best_return = evaluated
            self._save_best()

    def _show(self, bar: ProgressLine, force: bool = False) -> None:
        if not bar.is_due(force=force):
            return
        shown = {name: self.last_row[name] for name in _SHOWN if name in self.last_row}
        eps = float(self.agent.explorer.eps)
        bar.update(self.counters.frames, {"ε": eps, **shown}, force=force)

    def _write_row(self, evaluated: bool) -> None:
        row = self.metrics.row()
        self._check_finite()
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
        record = find_transform(self.current_env, RowTransform)
        if record is not None:
            row |= record.row()
        index = current_map(self.env)
        if index is not None:
            row["map"] = index
        if evaluated:
            row.update(self._evaluation())
            solved = row.get("eval_return", -math.inf) >= self.config.solved_return
            counters.solved = counters.solved + 1 if solved else 0
            if self._is_solved:
                row["stopped_early"] = 1
        row["seconds"] = round(counters.seconds, 3)
        self.unevaluated = None if evaluated else row
        self.last_row = {**self.last_row, **row}
        for log in self.logs:
            log.write(row)

    def _check_finite(self) -> None:
        """Checks that all numbers are finite, before a row is written or a checkpoint is saved."""
        found = self.metrics.non_finite or self.metrics.first_non_finite()
        self._guard.check_updates(found, self.counters.updates)
        self._guard.check_weights(self.counters.updates)

    def _evaluation(self) -> dict[str, float]:
        row = {}
        if self.eval_env is not None:
            follow_map(self.eval_env, self.env)
            # A separate generator for each evaluation: training does not depend on evaluations, and there is
            # nothing to save.
            seed = ((self.config.seed << 32) + self.counters.frames) % 2**63
            generator = torch.Generator().manual_seed(seed)
            found = evaluate(
                self.agent.policy, self.eval_env, eps=self.config.eval_eps, generator=generator
            )
            self._guard.check_evaluation(found, self.counters.frames)
            row["eval_return"] = found
        for probe in self.probes:
            row.update(probe(self))
        return row

    def _evaluate_end(self) -> None:
        """Evaluates at the last row too; the last checkpoint is from before, as with a later end."""
        if self.unevaluated is None:
            return
        row = {**self.unevaluated, **self._evaluation()}
        self.last_row = {**self.last_row, **row}
        for log in self.logs:
            log.write_again(row)


@torch.no_grad()
def check_policy(agent: Agent, env: EnvBase) -> None:
    """Raises an error for an agent that was built for other observations, before anything is collected.

    Args:
        agent (Agent): its policy is called once, without random numbers.
        env (EnvBase): with all transforms that the policy needs.
    """
    parameters = next(agent.policy.parameters(), None)
    observed = env.full_observation_spec.zero()
    if parameters is not None and parameters.device != observed.device:
        observed = observed.to(parameters.device)
    generators = torch.get_rng_state()
    try:
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            agent.policy(observed)
    except (RuntimeError, KeyError, ValueError) as error:
        batch = len(env.batch_size)
        shapes = {
            str(k): list(v.shape[batch:]) for k, v in env.full_observation_spec.items(True, True)
        }
        reason = str(error).strip().splitlines()[0]
        raise RunRefused(
            f"the agent does not fit the environment, whose observations are {shapes}: build it for this environment, "
            f"make_agent(name, env) ({reason})"
        ) from error
    finally:
        torch.set_rng_state(generators)


_SHOWN = ("train_return", "eval_return", "coverage")
