"""Agent steps per second of the Atari environments, relative to the bare emulator in the same run.

- The emulator: four frames per step, without observations.
- ``Console``: the same with sticky actions, the grey screens of two frames and their maximum.
- ``AtariEnv``: with the resized image, the stack, memory, and TorchRL.
- ``make_env``: with the transforms of the recipes (first step of an episode, return, clipping, counts of rooms).
- ALE's vector environment in one thread: bare, and as ``AtariVectorEnv``.

Times are CPU times of this process (all threads), in turns, and the share is the median over the turns, so that other
processes hardly matter.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv as ALEVector
from torchrl.envs import EnvBase

from torchrl_dceo.envs import make_env
from torchrl_dceo.envs.atari import Console, rom_path
from torchrl_dceo.envs.atari.env import AtariEnv
from torchrl_dceo.envs.atari.vector import AtariVectorEnv

GAME = "MontezumaRevenge"
Measure = Callable[[], float]


def timed(step: Callable[[int], None], steps: int, games: int = 1) -> Measure:
    """Agent steps of all games together, per second of CPU time."""

    def run() -> float:
        begin = time.process_time()
        for i in range(steps // games):
            step(i)
        return steps // games * games / (time.process_time() - begin)

    return run


def emulator(steps: int) -> Measure:
    ale = Console(rom_path(GAME)).ale
    ale.reset_game()

    def step(i: int) -> None:
        for _ in range(4):
            ale.act(i * 7 % 18)
        if ale.game_over():
            ale.reset_game()

    return timed(step, steps)


def console(steps: int) -> Measure:
    one = Console(rom_path(GAME), seed=0)
    one.reset()

    def step(i: int) -> None:
        if one.step(i * 7 % 18)[1]:
            one.reset()

    return timed(step, steps)


def environment(env: EnvBase, steps: int) -> Measure:
    actions = [torch.full(env.batch_size, i * 7 % 18) for i in range(18)]
    carrier = [env.reset()]

    def step(i: int) -> None:
        _, carrier[0] = env.step_and_maybe_reset(carrier[0].set("action", actions[i % 18]))

    return timed(step, steps, max(1, env.batch_size.numel()))


def bare_vector(steps: int, games: int) -> Measure:
    vector = ALEVector(
        rom_path(GAME).stem,
        games,
        num_threads=1,
        repeat_action_probability=0.25,
        autoreset_mode="SameStep",
        noop_max=0,
    )
    vector.reset(seed=0)
    return timed(lambda i: vector.step(np.full(games, i * 7 % 18)) and None, steps, games)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=800, help="agent steps per measurement")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--games", type=int, default=8, help="in a batch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    steps, games = options.steps, options.games
    measures = {
        "emulator alone": emulator(steps),
        "Console": console(steps),
        "AtariEnv": environment(AtariEnv(GAME, seed=0), steps),
        "make_env": environment(make_env(GAME, seed=0, visits="counts"), steps),
        f"AtariEnv, {games} games": environment(AtariEnv(GAME, batch_size=[games], seed=0), steps),
        f"ALE's vector, {games} games, 1 thread": bare_vector(steps, games),
        f"AtariVectorEnv, {games} games, 1 thread": environment(
            AtariVectorEnv(GAME, batch_size=[games], num_threads=1, seed=0), steps
        ),
    }
    rows: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(options.turns + 1):
        for name, measure in measures.items():
            speed = measure()
            if turn:  # the first one warms up
                rows[name].append(speed)
    reference = rows["emulator alone"]
    print(f"{'':<36}{'steps/s of CPU':>16}{'of the emulator':>18}")
    for name, speeds in rows.items():
        share = statistics.median(a / b for a, b in zip(speeds, reference, strict=True))
        print(f"{name:<36}{statistics.median(speeds):>16,.0f}{share:>17.0%}")


if __name__ == "__main__":
    main()
