"""What is measured while a run collects, and its line on the terminal."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor

if TYPE_CHECKING:
    from torchrl_dceo.agents.agent import Agent
import multiprocessing
import sys
import time
from typing import TextIO

__all__ = [
    "ProgressLine",
    "RunMetrics",
    "num_options",
]

_COLLECTED = (("next", "done"), ("next", "episode_reward"), "option", "option_start")


def num_options(agent: Agent) -> int:
    """How many options the agent's explorer can start; 0 if it has none.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.logging.metrics import num_options
        >>> env = make_env("NineRooms", room_size=3)
        >>> [num_options(make_agent(name, env)) for name in ("dceo", "ez_greedy", "ddqn")]
        [10, 4, 0]
    """
    explorer = agent.explorer
    # εz-greedy's options are its actions.
    return int(getattr(explorer, "num_options", getattr(explorer, "num_actions", 0)))


class RunMetrics:
    """Gathers what collecting and updating give, and turns it into one row of numbers.

    Nothing is computed while it gathers: entries are kept as they are and reduced when a row is asked for, so the
    loop pays a few list appends a step and no synchronisation.

    Args:
        num_options (int, optional): how many options there are, for ``option_starts_1``, …: how often each began.
            Default: 0, none of these columns.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.training.logging.metrics import RunMetrics
        >>> metrics = RunMetrics()
        >>> metrics.updated({"loss_main": torch.tensor(1.0)})
        >>> metrics.updated({"loss_main": torch.tensor(3.0)})
        >>> metrics.row()
        {'loss_main': 2.0}
        >>> metrics.row()
        {}
    """

    def __init__(self, num_options: int = 0) -> None:
        self.num_options = num_options
        self._clear()

    def _clear(self) -> None:
        self._collected: dict[str | tuple[str, ...], list[Tensor]] = defaultdict(list)
        self._updates: dict[str, list[Tensor]] = defaultdict(list)

    def collected(self, data: TensorDictBase) -> None:
        """Takes a batch of collected steps."""
        for key in _COLLECTED:
            value = data.get(key, None)
            if value is not None:
                self._collected[key].append(value.reshape(-1))

    def updated(self, outputs: dict[str, Tensor]) -> None:
        """Takes the outputs of an update."""
        for key, value in outputs.items():
            self._updates[key].append(value)

    def row(self) -> dict[str, float]:
        """Reduces what was gathered since the last row, and forgets it."""
        row: dict[str, float] = {}
        collected = {key: torch.cat(values) for key, values in self._collected.items()}
        done = collected.get(("next", "done"))
        if done is not None:
            returns = collected.get(("next", "episode_reward"), done.float())[done]
            row["episodes"] = float(done.sum())
            row["train_return"] = float(returns.mean()) if len(returns) else float("nan")
        option = collected.get("option")
        if option is not None:
            row["option_share"] = float((option >= 0).float().mean())
            starts = option[collected["option_start"]]
            row["option_starts"] = float(len(starts))
            row["options_used"] = float(len(starts.unique()))
            each = torch.bincount(starts, minlength=self.num_options)[: self.num_options]
            row |= {f"option_starts_{i}": float(n) for i, n in enumerate(each, start=1)}
        for key, values in self._updates.items():
            row[key] = float(torch.stack(values).float().mean())
        self._clear()
        return row


class ProgressLine:
    """One line on a terminal that is written over: how far, how fast, how long still, and a few numbers.

    On anything but a terminal (a log file, a pipe), and in a process that shares its terminal with others (the worker
    of a sweep), it prints a plain line once a minute instead.

    Args:
        total (int): frames of the whole run.
        start (int, optional): frames done before, when a run is resumed.
        stream (text stream, optional): default: standard error.
        enabled (bool, optional): ``False`` for silence.
        label (str, optional): names the run in the plain lines of a worker, among those of others.

    Examples:
        >>> import io
        >>> from torchrl_dceo.training.logging.metrics import ProgressLine
        >>> out = io.StringIO()
        >>> line = ProgressLine(100, stream=out)
        >>> line.update(50, {"coverage": 12.0}, force=True)
        >>> "50/100" in out.getvalue() and "coverage 12" in out.getvalue()
        True
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        stream: TextIO | None = None,
        enabled: bool = True,
        label: str = "",
    ) -> None:
        self.total = total
        self.start = start
        self.stream = sys.stderr if stream is None else stream
        self.enabled = enabled
        self._began = time.monotonic()
        self._last = self._began
        alone = multiprocessing.parent_process() is None
        self.label = "" if alone else label
        self._live = alone and self.stream.isatty()

    def update(self, frames: int, numbers: dict[str, float], *, force: bool = False) -> None:
        """Shows the state of the run, at most ten times a second on a terminal."""
        now = time.monotonic()
        if not self.enabled or (not force and now - self._last < (0.1 if self._live else 60.0)):
            return
        self._last = now
        rate = (frames - self.start) / max(now - self._began, 1e-9)
        left = (self.total - frames) / rate if rate > 0 else float("nan")
        filled = round(24 * frames / max(self.total, 1))
        parts = [
            *([self.label] if self.label else []),
            f"[{'█' * filled}{'·' * (24 - filled)}] {frames}/{self.total}",
            f"{rate:.0f} steps/s",
            f"{_clock(left)} left",
            *(f"{name} {value:.4g}" for name, value in numbers.items() if value == value),
        ]
        text = "  ".join(parts)
        self.stream.write(f"\r\x1b[2K{text}" if self._live else f"{text}\n")
        self.stream.flush()

    def close(self) -> None:
        """Leaves the line on the terminal."""
        if self.enabled and self._live:
            self.stream.write("\n")


def _clock(seconds: float) -> str:
    if seconds != seconds:
        return "?"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
