"""Speed and memory of the replay buffer against TorchRL's own, which stores whole transitions.

    python benchmarks/replay.py [--rows 1000 100000 1000000] [--checkpoint-rows 200000]

Extends by 4 steps and samples 32 five-step transitions of 3x19x19 uint8 pixels, in one thread. The reference, measured
in the same run, is a ``TensorDictReplayBuffer`` with a ``RandomSampler`` that stores and samples one-step transitions:
it does less (no n-step return, no successor).

Then the cost of checkpoints of a replay of Nine Rooms while it fills: written in full each time, and in segments, where
unchanged ones are reused.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer

from torchrl_dceo.data import NStepReplayBuffer, SumTreeSampler, make_replay_buffer
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import Checkpoints

BATCH, STEPS, N = 32, 4, 5


def steps(count: int, shape: tuple[int, ...], end: float = 0.01) -> TensorDict:
    data = TensorDict({"pixels": torch.randint(256, (count, *shape), dtype=torch.uint8)}, [count])
    data["action"] = torch.randint(4, (count,))
    data["state_id"] = torch.randint(1000, (count,))
    done = torch.rand(count, 1) < end
    data["next"] = TensorDict(
        {
            "pixels": data["pixels"],
            "state_id": data["state_id"],
            "reward": torch.rand(count, 1),
            "done": done,
            "terminated": done,
            "truncated": torch.zeros_like(done),
        },
        [count],
    )
    return data


def microseconds(function: Callable[[], object], repeats: int = 400, rounds: int = 7) -> float:
    """The least of several rounds: other processes can only add time."""
    for _ in range(20):
        function()
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(repeats):
            function()
        best = min(best, (time.perf_counter() - begin) / repeats)
    return 1e6 * best


def speed(sizes: list[int]) -> None:
    shape = (3, 19, 19)
    few, many = steps(STEPS, shape), steps(1000, shape)
    reference = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100_000), sampler=RandomSampler(), batch_size=BATCH
    )
    for _ in range(20):
        reference.extend(many)
    extend = microseconds(partial(reference.extend, few))
    sample = microseconds(reference.sample)
    print(f"{'transitions held':34}{'extend 4 [us]':>22}{'sample 32 [us]':>22}")
    print(f"{'TorchRL, whole transitions, 20000':34}{extend:15.0f}  1.00x{sample:15.0f}  1.00x")
    for kind in ("uniform", "prioritized"):
        rb = make_replay_buffer(
            max(sizes), n_steps=N, state_keys=["state_id"], batch_size=BATCH, sampler=kind, seed=0
        )
        for size in sizes:
            while len(rb) < 0.95 * size:
                rb.extend(many if size - len(rb) > 1000 else many[:100])
            name = f"{kind}, n = {N}, {len(rb)}"
            drawn = microseconds(rb.sample)
            mine = microseconds(partial(rb.extend, few))
            print(
                f"{name:34}{mine:15.0f} {mine / extend:5.2f}x{drawn:15.0f} {drawn / sample:5.2f}x"
            )
        if kind == "prioritized":
            update = partial(rb.update_priority, rb.sample()["index"], torch.rand(BATCH))
            print(f"{'  update of 32 priorities [us]':34}{microseconds(update):15.0f}")


def sum_tree(rows: int) -> None:
    weights = torch.rand(rows)
    sampler = SumTreeSampler(rows, alpha=1.0, seed=0)
    sampler.extend(torch.arange(rows))
    sampler.update_priority(torch.arange(rows), weights)

    def naive() -> torch.Tensor:
        running = weights.double().cumsum(0)
        return torch.searchsorted(running, torch.rand(BATCH, dtype=torch.float64) * running[-1])

    slow = microseconds(naive, repeats=5)
    fast = microseconds(lambda: sampler.sample(None, BATCH))
    print(
        f"\nSumTreeSampler, batch of {BATCH} of {rows} rows: {fast / 1000:.3f} ms (aim: under 2 ms); "
        f"a running sum of all rows: {slow / 1000:.2f} ms, {slow / fast:.0f}x"
    )


# Shape of an observation, settings of the replay buffer in training, and the most bytes of a row.
HELD = {
    "grid, 3x19x19": ((3, 19, 19), {"n_steps": 5, "sampler": "distinct"}, 1_150),
    "3D, 3x60x80": ((3, 60, 80), {"n_steps": 5, "sampler": "uniform"}, 14_500),
    "Atari, 4x84x84": (
        (4, 84, 84),
        {"n_steps": 3, "sampler": "prioritized", "frame_stack": 4},
        7_200,
    ),
}


def memory(rows: int = 1000) -> None:
    """Bytes of a stored row, with flags, index and the sampler's state, against whole transitions."""
    print("\nbytes per transition:")
    for name, (shape, settings, aim) in HELD.items():
        data = steps(rows, shape)
        reference = TensorDictReplayBuffer(storage=LazyTensorStorage(rows), batch_size=BATCH)
        reference.extend(data[:100].clone())
        whole = sum(value.nbytes for value in reference.storage[:].values(True, True)) / 100
        rb = make_replay_buffer(rows, state_keys=["state_id"], **settings)
        for part in data.split(100):
            rb.extend(part)
        held = sum(value.nbytes for value in rb.writer.tensors.values())
        held += sum(value.nbytes for value in rb.writer.ring.state_dict().values())
        for value in rb.sampler.state_dict().values():
            kept = value if isinstance(value, list) else [value]
            held += sum(each.nbytes for each in kept if isinstance(each, torch.Tensor))
        print(
            f"  {name:16} {held / rows:7.0f} (aim: at most {aim}); TorchRL, whole transitions: {whole:7.0f}, "
            f"{rows * whole / held:.1f}x"
        )


def checkpoints(rows: int, number: int = 20) -> None:
    """Seconds and bytes of the checkpoints of a run, all of them and the last one."""
    streams = 8
    env = make_env("NineRooms", batch_size=streams, seed=0)
    period = rows // number // streams
    data = env.rollout(max(2, period), break_when_any_done=False)
    print(f"\n{number} checkpoints (2 kept) of a replay of {rows} rows of Nine Rooms as it fills:")
    totals = []
    for name in ("in full", "in segments"):
        rb = make_replay_buffer(2 * rows, num_streams=streams, state_keys=["state_id"], seed=0)
        with tempfile.TemporaryDirectory() as folder:
            kept, costs = Checkpoints(folder), []
            for step in range(number):
                rb.extend(data)
                if name == "in full":
                    kept = Checkpoints(folder)  # a new one reuses nothing
                costs.append(_cost(kept, step, rb))
        whole = [sum(column) for column in zip(*costs, strict=True)]
        totals.append(whole)
        for label, (used, passed, size) in (("all", whole), ("the last", costs[-1])):
            print(
                f"  {name:12} {label:9} {used:7.2f} s of CPU time, {passed:7.2f} s in all, {size / 1e6:8.2f} MB written"
            )
    ratios = [before / max(after, 1e-9) for before, after in zip(*totals, strict=True)]
    print(f"  in full / in segments: {ratios[0]:.1f}x CPU time, {ratios[2]:.1f}x bytes")


def _cost(kept: Checkpoints, step: int, rb: NStepReplayBuffer) -> tuple[float, float, int]:
    before = _files(kept.path)
    begin, used = time.perf_counter(), time.process_time()
    kept.save(step, {"replay": rb.state_dict(copy=False, segments=True)})
    spent = time.process_time() - used, time.perf_counter() - begin
    new = _files(kept.path)
    return *spent, sum(size for inode, size in new.items() if inode not in before)


def _files(folder: Path) -> dict[tuple[int, int], int]:
    found = [path.stat() for path in folder.rglob("*") if path.is_file()]
    # A new file may get the inode of a removed one.
    return {(stat.st_ino, stat.st_mtime_ns): stat.st_size for stat in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--checkpoint-rows", type=int, default=200_000)
    arguments = parser.parse_args()
    sizes = sorted(arguments.rows)
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    speed(sizes)
    sum_tree(max(sizes))
    memory()
    checkpoints(arguments.checkpoint_rows)


if __name__ == "__main__":
    main()
