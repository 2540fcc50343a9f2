"""What a machine or an environment does to a run: one sentence, exit code 1."""

from __future__ import annotations

import errno
import os
import random
import signal
from functools import partial

import numpy as np
import pytest
import torch
from faulty_env import Faulty
from torchrl.envs import Compose, InitTracker, ParallelEnv, RewardSum, TransformedEnv
from training_runs import make_trainer

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer
from torchrl_dceo.training.checkpoint.state import seed_generators
from torchrl_dceo.training.errors import (
    RunError,
    RunInterrupted,
    dead_worker,
    exit_with_a_sentence,
    run_errors,
)


def ended(capsys, error: BaseException, run_dir=None) -> tuple[int, list[str]]:
    """Exit code and lines of a command that ends by an error."""
    with pytest.raises(SystemExit) as end, exit_with_a_sentence(run_dir):
        raise error
    return end.value.code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (RunError("the run cannot go on"), 1, "the run cannot go on"),
        (RunInterrupted("stopped", signal.SIGTERM), 143, "stopped"),
        (RunInterrupted("stopped", signal.SIGINT), 130, "stopped"),
        (KeyboardInterrupt(), 130, "stopped by SIGINT"),
        (ValueError("lr must be positive\nand more"), 1, "lr must be positive"),
        (OSError(errno.ENOSPC, "x"), 1, "is full (No space left on device): free some space"),
        (OSError(errno.EROFS, "x"), 1, "cannot be written (Read-only file system): choose"),
        (PermissionError(errno.EACCES, "x", "/a/b"), 1, "/a/b cannot be written (Permission"),
        (EOFError(), 1, "a process that steps environments has ended"),
        (ConnectionResetError(), 1, "a process that steps environments has ended"),
        (ZeroDivisionError("of mine"), 1, "ZeroDivisionError: of mine (traceback in "),
    ],
)
def test_errors_end_with_a_sentence(capsys, tmp_path, error, code, sentence):
    found, lines = ended(capsys, error, tmp_path)
    assert found == code and len(lines) == 1
    assert lines[0].startswith(f"{tmp_path}: ") and sentence in lines[0]
    if isinstance(error, ZeroDivisionError):
        assert "ZeroDivisionError: of mine" in (tmp_path / "error.txt").read_text()


def test_a_bug_without_a_run_directory_keeps_its_traceback(capsys, tmp_path):
    code, lines = ended(capsys, ZeroDivisionError("of mine"), tmp_path / "none")
    assert code == 1 and "Traceback (most recent call last):" in lines[0]
    assert lines[-1].endswith("ZeroDivisionError: of mine")


def test_what_is_no_error_of_the_machine_is_left_alone():
    with pytest.raises(KeyError), run_errors(None):
        raise KeyError("x")


def test_a_dead_process_of_a_parallel_environment_is_named(tmp_path):
    env = ParallelEnv(2, partial(make_env, "NineRooms", room_size=3))
    env = TransformedEnv(env, Compose(InitTracker(), RewardSum()))
    env.reset()
    assert dead_worker(env) is None
    trainer = Trainer(
        make_agent("ddqn", env, batch_size=8),
        env,
        TrainConfig(
            total_frames=2000,
            learning_starts=50,
            log_period=100,
            checkpoint_period=100,
            eval_period=100,
            progress=False,
        ),
        run_dir=tmp_path,
    )

    def kill(trainer_):
        if trainer_.counters.frames == 200:
            os.kill(env.base_env._workers[1].pid, signal.SIGKILL)
            env.base_env._workers[1].join()
        return {}

    trainer.probes = (kill,)
    with pytest.raises(RunError, match="worker 1 of the ParallelEnv has ended"):
        trainer.run()
    assert trainer.checkpoints.steps()[-1] >= 100


def test_an_error_of_an_environment_keeps_the_checkpoints(tmp_path):
    class Failing(Faulty):
        def _step(self, tensordict):
            if self._made == 60:
                raise OSError(5, "the simulator is gone")
            return super()._step(tensordict)

    env = Failing((4,))
    config = TrainConfig(
        total_frames=1000, learning_starts=50, log_period=40, checkpoint_period=40, progress=False
    )
    agent = make_agent("ddqn", env, batch_size=8, network="mlp")
    trainer = Trainer(agent, env, config, run_dir=tmp_path)
    with pytest.raises(OSError, match="the simulator is gone"):
        trainer.run()
    assert trainer.checkpoints.steps() == [200, 240]


def test_the_seed_reaches_all_generators(tmp_path):
    def drawn() -> list[float]:
        return [float(torch.rand(())), np.random.rand(), random.random()]

    seed_generators(5)
    first = drawn()
    seed_generators(5)
    assert drawn() == first
    # A run seeds Python's and NumPy's itself; torch's was seeded before its agent was built.
    seen = []

    def probe(trainer):
        seen.append((np.random.rand(), random.random()))
        return {}

    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        np.random.rand(), random.random()  # whatever was drawn before
        trainer = make_trainer(tmp_path / folder, frames=100)
        trainer.config.seed, trainer.config.eval_period = seed, 100
        trainer.probes = (probe,)
        trainer.run()
    assert seen[0] == seen[1] != seen[2]
