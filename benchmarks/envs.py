"""Speed of the environments, as ratios to references measured in the same run.

- ``GridWorldEnv`` (Nine Rooms, pixels) at batch 1 and 64 against its MiniGrid twin under TorchRL, in a loop of given
  actions and ``step_and_maybe_reset``. Targets: 2x and 50x.
- The same two through a ``Collector`` with a random policy. At batch 1 the Collector and the
  policy take three quarters of the time in both, so that the gain is small (no target).
- MiniGrid environments with cached tiles against MiniGrid's own ``RGBImgObsWrapper``, both with tiles of
  8 x 8 pixels. Target: 10x.

Times are CPU times of this process, in turns of ours and the reference, and the ratio is the median over the turns, so
that other processes hardly matter.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import gymnasium as gym
import torch
from minigrid.wrappers import RGBImgObsWrapper
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, GymWrapper

from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
from torchrl_dceo.envs.grid.maps import nine_rooms
from torchrl_dceo.envs.minigrid import ENVIRONMENTS, env_id


def loop(env: EnvBase, steps: int) -> Callable[[], float]:
    """Frames per second of the bare environment loop."""
    frames = steps * max(1, env.batch_size.numel())
    actions = [env.action_spec.rand() for _ in range(16)]
    carrier = [env.reset()]

    def run() -> float:
        tensordict = carrier[0]
        begin = time.process_time()
        for i in range(steps):
            tensordict.set("action", actions[i % 16])
            _, tensordict = env.step_and_maybe_reset(tensordict)
        carrier[0] = tensordict
        return frames / (time.process_time() - begin)

    return run


def collector(env: EnvBase, steps: int) -> Callable[[], float]:
    """Frames per second of a Collector with a random policy."""
    per_batch = 50 * max(1, env.batch_size.numel())
    batches = iter(Collector(env, None, frames_per_batch=per_batch, total_frames=-1))
    rounds = max(1, steps // 50)

    def run() -> float:
        begin = time.process_time()
        for _ in range(rounds):
            next(batches)
        return rounds * per_batch / (time.process_time() - begin)

    return run


def gym_loop(env: gym.Env, steps: int) -> Callable[[], float]:
    """Frames per second of a bare gymnasium environment."""
    env.reset(seed=0)
    actions = torch.randint(4, (steps,), generator=torch.Generator().manual_seed(0)).tolist()

    def run() -> float:
        begin = time.process_time()
        for action in actions:
            *_, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return steps / (time.process_time() - begin)

    return run


def compare(
    label: str, ours: Callable[[], float], reference: Callable[[], float], target: float | None
) -> None:
    ours(), reference()  # warm up
    pairs = [(ours(), reference()) for _ in range(7)]
    fast, slow = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    aim = "" if target is None else f"   (target {target:g}x)"
    print(f"{label:<52}{fast:>12,.0f}{slow:>12,.0f}{ratio:>9.1f}x{aim}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="environment steps per measurement")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")

    print(f"{'frames/s':<52}{'ours':>12}{'reference':>12}{'ratio':>10}")
    targets: dict[tuple[int, ...], tuple[float, float | None]] = {
        (): (2, None),
        (1,): (2, None),
        (64,): (50, 50),
    }
    for i, (name, measure) in enumerate((("loop", loop), ("Collector", collector))):
        for batch_size, target in targets.items():
            grid = GridWorldEnv(nine_rooms(), batch_size=batch_size, seed=0)
            twin = GymWrapper(gym.make(env_id("NineRooms")))
            compare(
                f"GridWorldEnv batch {list(batch_size)} / MiniGrid twin, {name}",
                measure(grid, steps),
                measure(twin, steps),
                target[i],
            )
    for name in ENVIRONMENTS:
        compare(
            f"{name}, cached tiles / RGBImgObsWrapper",
            gym_loop(gym.make(env_id(name), tile_size=8), steps),
            gym_loop(RGBImgObsWrapper(gym.make(env_id(name), observation="minigrid")), steps // 10),
            10,
        )


if __name__ == "__main__":
    main()
