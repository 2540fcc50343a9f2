"""Shared by the benchmarks that compare contenders: turns, medians with quartiles, ratios within a round."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Contenders = Mapping[str, Callable[[int], object]]


def cpu_seconds(function: Callable[[int], object], repeats: int) -> float:
    """CPU seconds of one repeat: with one thread, wall time without that of other processes."""
    start = time.process_time()
    function(repeats)
    return (time.process_time() - start) / repeats


def interleaved(
    contenders: Contenders, rounds: int, repeats: int, *, warm_up: int = 2
) -> dict[str, list[float]]:
    """Seconds of one repeat, one value per round, of alternating contenders.

    A temporary slowdown of the machine affects all of them; the first is the last in the next round.

    Args:
        contenders (mapping of str to callable): ``contender(repeats)`` repeats its work and returns when it is
            finished.
        rounds (int): turns of every contender.
        repeats (int): repeats per turn.

    Keyword Args:
        warm_up (int, optional): repeats before the first turn, not timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for function in contenders.values():
        function(warm_up)
    order = list(contenders)
    for _ in range(rounds):
        for name in order:
            seconds[name].append(cpu_seconds(contenders[name], repeats))
        order.append(order.pop(0))
    return seconds


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratios(above: list[float], below: list[float]) -> list[float]:
    """The ratio in every round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def shown(values: list[float], scale: float = 1.0, digits: int = 2) -> str:
    """``median [quartile, quartile]``."""
    low, middle, high = (f"{scale * value:.{digits}f}" for value in quartiles(values))
    return f"{middle} [{low}, {high}]"


def recipe_rate(overrides: Sequence[str], frames: int, *, warm_up: int = 400) -> float:
    """Frames per second of CPU time of ``dceo train`` with these overrides, while it learns.

    Args:
        overrides (sequence of str): such as ``["env=miniworld_four_rooms", "agent=dceo"]``.
        frames (int): timed frames, with updates.

    Keyword Args:
        warm_up (int, optional): frames before the first update, and again before timing starts.
    """
    from torchrl_dceo.cli.config import compose
    from torchrl_dceo.cli.train import build

    length = f"total_frames={2 * warm_up + frames}"
    rest = ["eval_episodes=0", "checkpoint_period=null", "log_period=1000000000", "progress=false"]
    settings = compose([*overrides, length, f"learning_starts={warm_up}", *rest])
    with tempfile.TemporaryDirectory() as folder:
        trainer = build(settings, Path(folder))
        take, began = trainer._take, [0.0, 0.0]

        def taken(*batch: object) -> None:
            if trainer.counters.frames <= 2 * warm_up:
                began[:] = time.process_time(), trainer.counters.frames
            take(*batch)  # type: ignore[arg-type]

        trainer._take = taken  # type: ignore[method-assign]
        # Without the last evaluation, checkpoint and row, which are not part of the loop.
        trainer._report = lambda bar: None  # type: ignore[method-assign]
        trainer._evaluate_end = lambda: None  # type: ignore[method-assign]
        trainer.run()
        return (trainer.counters.frames - began[1]) / (time.process_time() - began[0])
