"""Speed of ``rainbow_dceo`` on Montezuma's Revenge: agent steps per second on one core, and the time of each part.

    python benchmarks/atari.py [--steps 400] [--turns 10]

One update per 4 steps, batch 32, five options, f in 20 dimensions, as in ``recipes/montezuma.py``. Then each
update alone: the main learner's, the Laplacian's (64 images), the options' with their rewards; and all three as in the
agent, with one backward pass and one optimizer step.

The reference, measured in the same run: the passes through the same networks that an update needs, on torch's own
layers.

Times are CPU times of the process: with one thread, wall time without that of other processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from _rounds import recipe_rate
from torch import nn

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules.networks import nature_net
from torchrl_dceo.training import Phase, TrainConfig, Trainer

warnings.filterwarnings("ignore")
BATCH, ACTIONS, ATOMS, OPTIONS, WIDTH = 32, 18, 51, 5, 20
PARTS = {
    "main learner": ("main",),
    "Laplacian": ("laplacian",),
    "options and their rewards": ("reward", "option"),
}


class Clock:
    """CPU seconds per part of the loop."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.seconds[name] += time.process_time() - start

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return wrapper


def make_trainer(steps: int, starts: int) -> Trainer:
    torch.manual_seed(0)
    env = make_env("MontezumaRevenge", seed=0, visits="counts", batch_size=1)
    config = TrainConfig(
        total_frames=starts + steps,
        learning_starts=starts,
        update_period=4,
        replay_capacity=10_000,
        log_period=starts + steps,
        eval_period=10**9,
        progress=False,
    )
    return Trainer(make_agent("rainbow_dceo", env), env, config)


def loop(steps: int) -> Trainer:
    """The whole loop, from the start of learning."""
    starts, clock = 200, Clock()
    trainer = make_trainer(steps, starts)
    trainer.agent.update = clock.timed("updates", trainer.agent.update)
    trainer.replay.sample = clock.timed("sampling", trainer.replay.sample)
    trainer.replay.update_tensordict_priority = clock.timed(
        "sampling", trainer.replay.update_tensordict_priority
    )
    trainer.replay.extend = clock.timed("storing", trainer.replay.extend)
    take, began = trainer._take, [0.0]

    def taken(data: Any, streams: Any) -> None:
        if trainer.counters.frames <= starts:
            clock.seconds.clear()
            began[0] = time.process_time()
        take(data, streams)

    trainer._take = taken
    trainer.run()
    total = time.process_time() - began[0]
    parts = dict(clock.seconds)
    parts["acting (networks, emulator) and the rest"] = total - sum(parts.values())
    rate = steps / total
    print(f"one update per 4 steps: {rate:.1f} steps/s")
    for name, seconds in parts.items():
        print(
            f"  {name:42s} {100 * seconds / total:5.1f} %  {1e3 * seconds / steps:6.2f} ms per step"
        )
    share = parts["sampling"] / parts["updates"]
    print(f"  sampling / update {100 * share:.1f} % (aim: below 5 %)")
    return trainer


def cpu_ms(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return 1e3 * (time.process_time() - start)


def bare_passes() -> Callable[[], None]:
    """Forward and backward passes of every network with a sum as loss: no softmax, targets or optimizer."""

    def network(outputs: int) -> nn.Module:
        net = nature_net((4, 84, 84), outputs)
        net.fused = False
        return net

    sizes = (ATOMS * (ACTIONS + 1), OPTIONS * ATOMS * (ACTIONS + 1))
    learners = [(network(size), network(size)) for size in sizes]  # online, target
    encoder = network(WIDTH)
    now, later = (torch.randint(256, (BATCH, 4, 84, 84), dtype=torch.uint8) for _ in range(2))

    def passes() -> None:
        total = encoder(torch.cat([now, later])).sum()
        with torch.no_grad():
            encoder(torch.cat([now, later]))  # the options' rewards, on another batch
        for online, target in learners:
            total = total + online(now).sum()
            with torch.no_grad():
                online(later)
                target(later)
        total.backward()
        for net in (encoder, *(online for online, _ in learners)):
            net.zero_grad()

    return passes


def updates(trainer: Trainer, turns: int) -> None:
    """Each update alone and all together, in turns."""
    agent, replay = trainer.agent, trainer.replay
    contenders: dict[str, Callable[[], object]] = {}
    for name, objectives in PARTS.items():
        phase = Phase(name, objectives=objectives)
        contenders[name] = lambda phase=phase: agent.update(replay.sample(), phase)
    contenders["all three"] = lambda: agent.update(replay.sample(), Phase("all"))
    contenders["bare passes through the networks"] = bare_passes()
    contenders["sampling"] = replay.sample
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for function in contenders.values():
        function()
    for _ in range(turns):
        for name, function in contenders.items():
            times[name].append(cpu_ms(function))
    print("updates alone, sampling included, each with an optimizer step:")
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, value in medians.items():
        print(f"  {name:42s} {value:7.1f} ms")
    whole = medians["all three"]
    bare = medians["bare passes through the networks"]
    print(f"ours / bare passes                 {whole / bare:.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="agent steps with updates")
    parser.add_argument("--turns", type=int, default=10, help="turns of every contender")
    arguments = parser.parse_args()
    tune_process()
    updates(loop(arguments.steps), arguments.turns)
    print("env=montezuma_laptop, the recipe for one core (aim: 250 steps/s):")
    for agent in ("rainbow_dceo", "rainbow"):
        rate = recipe_rate(
            ["env=montezuma_laptop", f"agent={agent}", "replay_capacity=20000"],
            2 * arguments.steps,
            warm_up=200,
        )
        print(f"  {agent:42s} {rate:5.0f} steps/s")


if __name__ == "__main__":
    main()
