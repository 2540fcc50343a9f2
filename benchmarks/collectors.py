"""Frames per second when collecting in this process, in worker processes or in Ray actors, as ratios to the first.

Each runs online DCEO on Nine Rooms, with updates as in the recipe and without updates. The start of the workers is not
timed. On small grids workers do not pay off: a step of eight environments takes less time than the communication with
another process.
"""

from __future__ import annotations

import argparse
import functools
import time
import warnings

import torch

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import CollectorConfig, TrainConfig, Trainer

warnings.filterwarnings("ignore")
KINDS = ("single", "multi_sync", "multi_async", "ray")


def frames_per_second(kind: str, frames: int, workers: int, learning: bool) -> float:
    torch.manual_seed(0)
    world = functools.partial(make_env, "NineRooms")
    env = world(batch_size=8, seed=0)
    config = TrainConfig(
        total_frames=frames,
        update_period=8,
        learning_starts=200 if learning else 10 * frames,
        log_period=frames,
        eval_period=frames,
        progress=False,
    )
    collection = CollectorConfig(kind, num_workers=workers)
    trainer = Trainer(make_agent("dceo", env), env, config, collection=collection, worker_env=world)
    marks: list[tuple[float, int]] = []
    take = trainer._take

    def timed(data: torch.Tensor, streams: range | None) -> None:
        take(data, streams)
        marks.append((time.perf_counter(), trainer.counters.frames))

    trainer._take = timed  # type: ignore[method-assign]
    trainer.run()
    # Without the first fifth, which includes the start.
    (begin, before), (end, after) = marks[len(marks) // 5], marks[-1]
    return (after - before) / (end - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=6_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    arguments = parser.parse_args()
    tune_process()
    for learning in (True, False):
        print("with updates" if learning else "without updates")
        single = None
        for kind in arguments.kinds:
            speed = frames_per_second(kind, arguments.frames, arguments.workers, learning)
            single = speed if single is None else single
            ratio = f"{speed / single:5.2f}x {arguments.kinds[0]}"
            print(f"  {kind:12s} {speed:6.0f} frames/s  {ratio}", flush=True)


if __name__ == "__main__":
    main()
