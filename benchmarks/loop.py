"""Speed of the online DCEO loop on Nine Rooms, and the shares of collecting, storing, sampling and updating.

Prints the shares for one update every 4 frames and one per frame, with several environments (as in the recipes:
several frames are collected at once, then their updates follow) and with one. Then the times of sampling and storing
with a full and an almost empty replay buffer, which must not slow down as it fills, and the cost of the checks for
non-finite numbers.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer

warnings.filterwarnings("ignore")
TARGET = {4: 30, 1: 15}  # per cent outside the update


class Clock:
    """CPU seconds per part of the loop (one thread: wall time without that of other processes)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            result = function(*args, **kwargs)
            self.seconds[name] += time.process_time() - start
            self.calls[name] += 1
            return result

        return wrapper


def make_trainer(
    frames: int, period: int, num_envs: int = 1, capacity: int | None = None
) -> Trainer:
    torch.manual_seed(0)
    batch_size = [num_envs] if num_envs > 1 else []
    env = make_env("NineRooms", seed=0, visits="counts", batch_size=batch_size)
    config = TrainConfig(
        total_frames=frames,
        update_period=period,
        learning_starts=50,  # early, so that nearly all of the loop has updates
        replay_capacity=capacity,
        log_period=frames,
        eval_period=frames,
        checkpoint_period=None,
        progress=False,
    )
    return Trainer(make_agent("dceo", env), env, config)


def shares(frames: int, period: int, num_envs: int) -> None:
    trainer, clock = make_trainer(frames, period, num_envs), Clock()
    trainer.agent.update = clock.timed("updating", trainer.agent.update)
    trainer.replay.sample = clock.timed("sampling", trainer.replay.sample)
    trainer.replay.extend = clock.timed("storing", trainer.replay.extend)
    start = time.process_time()
    trainer.run()
    total = time.process_time() - start
    parts = dict(clock.seconds)
    parts["collecting and the rest"] = total - sum(parts.values())
    outside = 100 * (1 - parts["updating"] / total)
    print(
        f"one update per {period} frames, environments: {num_envs}, steps/s: {frames / total:.0f}"
    )
    for name, seconds in parts.items():
        each = f", {1e3 * seconds / clock.calls[name]:.2f} ms each" if name in clock.calls else ""
        print(f"  {name:24s} {100 * seconds / total:5.1f} %{each}")
    rest = parts["collecting and the rest"]
    print(f"  collecting takes {1e3 * rest / frames * num_envs:.2f} ms per step")
    print(f"  outside the update       {outside:5.1f} %   (target: at most {TARGET[period]} %)")


def filling(rows: int) -> None:
    """Storing and sampling with an almost empty buffer and with a full one."""
    medians: dict[str, list[float]] = {"storing": [], "sampling": []}
    trainer = make_trainer(rows, 4, capacity=rows)
    many = trainer.env.rollout(1000, break_when_any_done=False)
    data = many[:4].clone()
    for size in (2_000, rows):
        while len(trainer.replay) < 0.9 * size:
            trainer.replay.extend(many)
        for name, function in (
            ("storing", lambda: trainer.replay.extend(data)),
            ("sampling", trainer.replay.sample),
        ):
            times = []
            for _ in range(300):
                start = time.perf_counter()
                function()
                times.append(time.perf_counter() - start)
            medians[name].append(sorted(times)[150])
    for name, (few, full) in medians.items():
        print(
            f"{name:9s} with {rows} rows {1e6 * full:.0f} us, with 2,000 rows {1e6 * few:.0f} us: {full / few:.2f}x"
        )


def finite_checks(rows: int = 1000, period: int = 8) -> None:
    """The cost of checks for non-finite numbers: rewards of each batch, weights at each row of the log."""
    trainer = make_trainer(2 * rows, period)
    trainer.run()
    data = trainer.env.rollout(period, break_when_any_done=False)[..., :period]
    guard, phase = trainer._guard, trainer.phase

    def seconds(function: Callable[[], Any], repeats: int) -> float:
        function()
        start = time.process_time()
        for _ in range(repeats):
            function()
        return (time.process_time() - start) / repeats

    update = seconds(lambda: trainer.agent.learn(trainer.replay, phase), 50)
    batch = seconds(lambda: guard.check_batch(data, 0), 500)
    row = seconds(lambda: guard.check_weights(0), 50)
    cost = batch + row * period / rows
    print(
        f"finiteness: {1e6 * batch:.0f} us per batch, {1e6 * row:.0f} us per row of {rows // period} updates: "
        f"{100 * cost / update:.2f} % of an update of {1e3 * update:.2f} ms (target: under 1 %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=4_000)
    arguments = parser.parse_args()
    tune_process()
    make_trainer(100, 4).run()  # imports at first use are not part of the loop
    for period in (4, 1):
        for num_envs in (8, 4, 1):
            shares(arguments.frames // (1 if period == 4 else 3), period, num_envs)
    filling(300_000)
    finite_checks()


if __name__ == "__main__":
    main()
