"""Training runs in processes of their own, and the comparison of what they leave behind."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from torchrl_dceo.agents import make_agent
from torchrl_dceo.data.persistence import copied, load_state
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer


class Runs:
    """Starts, kills and awaits runs; see training/runner.py."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).parent / "training" / "runner.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RL_LOGGING_LEVEL": "ERROR"},
        )

    def close(self) -> None:
        """Ends the server."""
        self.server.stdin.close()
        self.server.wait()

    def start(self, **spec: Any) -> int:
        """Starts a run and returns its process number."""
        print(
            json.dumps({k: str(v) if isinstance(v, Path) else v for k, v in spec.items()}),
            file=self.server.stdin,
            flush=True,
        )
        return int(self.server.stdout.readline())

    def wait(self) -> int:
        """Waits for the run to end; returns its exit code, negative if a signal killed it."""
        return int(self.server.stdout.readline())

    def run(self, **spec: Any) -> None:
        """Runs to the end."""
        self.start(**spec)
        assert self.wait() == 0

    def run_until(self, condition, signal_number: int, delay: float, **spec: Any) -> int:
        """Runs until the condition holds and a little longer, then sends the signal; returns the exit code."""
        process = self.start(**spec)
        deadline = time.monotonic() + 120
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(delay)
        os.kill(process, signal_number)
        return self.wait()


def logged_frames(run_dir: Path) -> int:
    """How far a run is, by the rows on disk."""
    path = run_dir / "progress.csv"
    return 0 if not path.exists() else 100 * (path.read_bytes().count(b"\n") - 1)


def rows(run_dir: Path) -> list[dict[str, str]]:
    """The log without its column of time."""
    with (run_dir / "progress.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def final_state(run_dir: Path) -> dict[str, Any]:
    """The newest checkpoint without its times."""
    # Copied: large tensors are mapped from files, which tests damage.
    state = copied(load_state(max((run_dir / "checkpoints").glob("[0-9]*"))))
    del state["log"]  # with its times; see rows
    for part in ("counters", "last_row", "unevaluated"):
        if state[part] is not None:
            del state[part]["seconds"]
    return state


def difference(a: Any, b: Any, name: str = "state") -> str | None:
    """Where two states differ by so much as a bit, or None."""
    if type(a) is not type(b):
        return f"{name}: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape
        raw = [x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
        return None if same and torch.equal(*raw) else name
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{name}: {list(a)} and {list(b)}"
        found = (difference(a[key], b[key], f"{name}.{key}") for key in a)
    elif isinstance(a, list):
        if len(a) != len(b):
            return f"{name}: {len(a)} and {len(b)} entries"
        found = (
            difference(x, y, f"{name}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))
        )
    else:
        return None if a == b or (a != a and b != b) else f"{name}: {a} and {b}"
    return next((f for f in found if f), None)


def make_trainer(run_dir, frames: int = 300) -> Trainer:
    """A small run with a checkpoint at every row."""
    torch.manual_seed(0)
    env = make_env("NineRooms", room_size=3, batch_size=5, seed=0, visits="counts")
    agent = make_agent(
        "dceo", env, num_options=2, dimensions=3, batch_size=8, target_tau=None, target_period=3
    )
    config = TrainConfig(
        total_frames=frames,
        update_period=20,
        learning_starts=50,
        replay_capacity=1000,
        log_period=100,
        checkpoint_period=100,
        progress=False,
    )
    return Trainer(agent, env, config, run_dir=run_dir)
