"""Speed of the 3D environments: bare, through TorchRL, and with learning, on one core and on two.

``python benchmarks/miniworld.py`` prints steps per second and their ratio to the package's own FourRooms with its
default settings. Where MiniWorld cannot render, it prints the reason and exits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from _rounds import recipe_rate

# This file has the name of the package, and Python searches a script's own folder first.
sys.path = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).parent]

from torchrl_dceo.envs.miniworld_headless import why_not  # noqa: E402

WORLD = "MiniWorldFourRooms"
# Half of the package's, as in the longer runs of docs/environments/miniworld.md.
SMALL = {"obs_width": 40, "obs_height": 30, "samples": 1}
# In a separate process, without the settings that our import makes for pyglet and Mesa.
PACKAGE = """
import os, time
os.environ["PYGLET_HEADLESS"] = "1"
from miniworld.envs.fourrooms import FourRooms
env = FourRooms()
env.reset(seed=0)
actions = [0, 2, 2, 1]
for k in range(20): env.step(actions[k % 4])
cpu, wall = time.process_time(), time.perf_counter()
for k in range({steps}):
    _, _, terminated, truncated, _ = env.step(actions[k % 4])
    if terminated or truncated: env.reset()
print("RATES", {steps} / (time.process_time() - cpu), {steps} / (time.perf_counter() - wall))
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--learning-steps", type=int, default=400)
    return parser.parse_args()


def package(steps: int) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-c", PACKAGE.format(steps=steps)],
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("RATES"))
    cpu, wall = map(float, line.split()[1:])
    return cpu, wall


class Timed:
    """Steps per second of this process's CPU time and of wall time."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __enter__(self) -> Timed:
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.rates = (
            self.steps / (time.process_time() - self._cpu),
            self.steps / (time.perf_counter() - self._wall),
        )


def raw(steps: int, **settings: int) -> tuple[float, float]:
    from torchrl_dceo.envs.miniworld import MiniWorldFourRooms

    env = MiniWorldFourRooms(**settings)
    env.reset(seed=0)
    actions = [0, 2, 2, 1]
    for k in range(20):
        env.step(actions[k % 4])
    with Timed(steps) as timed:
        for k in range(steps):
            _, _, terminated, truncated, _ = env.step(actions[k % 4])
            if terminated or truncated:
                env.reset()
    return timed.rates


def through_torchrl(steps: int, batch: int | tuple[()], **settings: bool) -> tuple[float, float]:
    from torchrl_dceo.envs import make_env

    env = make_env(WORLD, batch_size=batch, seed=0, **settings)
    env.rollout(5, break_when_any_done=False)
    count = max(1, env.batch_size.numel())
    with Timed(steps) as timed:
        env.rollout(max(1, steps // count), break_when_any_done=False)
    env.close()
    return timed.rates


def end_to_end(agent: str, steps: int, **settings: int) -> tuple[float, float]:
    from torchrl_dceo.agents import make_agent
    from torchrl_dceo.envs import make_env
    from torchrl_dceo.training import TrainConfig, Trainer

    env = make_env(WORLD, batch_size=4, seed=0, **settings)
    options = {"num_options": 5} if agent == "dceo" else {}
    learner = make_agent(agent, env, network="nature", **options)
    config = TrainConfig(
        total_frames=steps, learning_starts=40, update_period=4, eval_period=10**9, progress=False
    )
    trainer = Trainer(learner, env, config)
    with Timed(steps) as timed:
        trainer.run()
    env.close()
    return timed.rates


def main() -> None:
    missing = why_not()
    if missing is not None:
        print(f"left out: {missing}")
        return
    import torch

    options = arguments()
    steps = options.steps
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    reference = package(steps)
    print(
        f"{cores} cores; Mesa renders in the calling thread; steps/s of CPU time, of wall time, ratio"
    )

    def show(name: str, rates: tuple[float, float], by_wall: bool = False) -> None:
        # With worker processes the work is not in this process: wall time counts.
        ratio = rates[1] / reference[1] if by_wall else rates[0] / reference[0]
        cpu = "     -" if by_wall else f"{rates[0]:6.0f}"
        print(f"{name:54s} {cpu} {rates[1]:6.0f}  {ratio:5.2f} x")

    show("the package, one environment", reference)
    show("ours, raw", raw(steps))
    show("ours, raw, one sample per pixel", raw(steps, samples=1))
    show("ours, raw, 40 x 30, one sample", raw(steps, **SMALL))
    show("ours, raw, 40 x 30, four views", raw(steps, views=4, **SMALL))
    show("through TorchRL, one", through_torchrl(steps, ()))
    show("through TorchRL, four in this process", through_torchrl(steps, 4))
    if cores > 1:
        show(
            "through TorchRL, four in worker processes",
            through_torchrl(steps, 4, parallel=True),
            by_wall=True,
        )
    print("the recipes, frames/s of CPU time while they learn (aim for dceo: 600)")
    for agent in ("dceo", "ddqn", "rnd"):
        for env in ("miniworld_four_rooms", "miniworld_my_way_home"):
            rate = recipe_rate([f"env={env}", f"agent={agent}"], 10 * options.learning_steps)
            print(f"{agent:5s} env={env:44s} {rate:6.0f}")
    for agent in ("ddqn", "dceo"):
        name = f"{agent}, an update per 4 steps, four"
        show(f"{name} in this process", end_to_end(agent, options.learning_steps))
        show(f"{name}, 40 x 30", end_to_end(agent, options.learning_steps, **SMALL))
        if cores > 1:
            show(
                f"{name} in worker processes",
                end_to_end(agent, options.learning_steps, parallel=True),
                by_wall=True,
            )


if __name__ == "__main__":
    main()
