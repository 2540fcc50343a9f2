"""The metrics of a run, and the progress line on the terminal."""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TextIO

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_dceo.agents.agent import Agent

__all__ = [
    "ProgressLine",
    "RunMetrics",
    "num_options",
]

_RETURN = ("next", "episode_reward")
_COLLECTED = (("next", "done"), _RETURN, "option", "option_start")


def num_options(agent: Agent) -> int:
    """The number of options of the agent's explorer; 0 if it has none.

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
    """Accumulates the results of collecting and updating, and reduces them to one row of the log.

    Nothing is computed while accumulating: entries are stored and reduced when a row is requested, so the
    loop costs a few list appends per step and no synchronisation.

    Args:
        num_options (int, optional): the number of options, for the columns ``option_starts_1``, … (starts of each).
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
        self.non_finite: tuple[str, int, float] | None = None
        # The return so far of each environment's episode, if there is no RewardSum.
        self._so_far = torch.zeros(0, dtype=torch.float64)
        self._clear()

    def _clear(self) -> None:
        self._collected: dict[str | tuple[str, ...], list[Tensor]] = defaultdict(list)
        self._updates: dict[str, list[Tensor]] = defaultdict(list)
        # Rewards, ends and starts [3, E, T] of complete batches, and of batches of single workers with their streams.
        self._steps: list[tuple[Sequence[int] | None, Tensor]] = []

    def collected(self, data: TensorDictBase, streams: Sequence[int] | None = None) -> None:
        """Adds a batch of collected steps ``[*E, T]``, of all environments or of ``streams``."""
        for key in _COLLECTED:
            value = data.get(key, None)
            if value is not None:
                self._collected[key].append(value.reshape(-1))
        if data.get(_RETURN, None) is None:
            self._gather_steps(data, streams)

    def _gather_steps(self, data: TensorDictBase, streams: Sequence[int] | None) -> None:
        reward, done = data.get(("next", "reward"), None), data.get(("next", "done"), None)
        if reward is None or done is None or reward.numel() != data.numel():
            return  # there is no single return with several rewards per step
        begins = data.get("is_init", None)
        begins = torch.zeros_like(done) if begins is None else begins
        shape = (data.numel() // data.shape[-1], data.shape[-1])
        steps = [value.reshape(shape).double() for value in (reward, done, begins)]
        self._steps.append((streams, torch.stack(steps)))

    def updated(self, outputs: dict[str, Tensor]) -> None:
        """Adds the outputs of an update."""
        for key, value in outputs.items():
            self._updates[key].append(value)

    def row(self) -> dict[str, float]:
        """Reduces everything since the last row, and clears it.

        :attr:`non_finite` is then the first non-finite loss or gradient: its name, the number of updates
        since then, and its value; ``None`` if there was none.
        """
        row: dict[str, float] = {}
        collected = {key: torch.cat(values) for key, values in self._collected.items()}
        done = collected.get(("next", "done"))
        if done is not None:
            sums = collected.get(_RETURN)
            returns = self._returns() if sums is None else sums[done]
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
        self.non_finite = self.first_non_finite(row)
        self._clear()
        return row

    def first_non_finite(
        self, row: dict[str, float] | None = None
    ) -> tuple[str, int, float] | None:
        """The first non-finite loss or gradient norm since the last row, in the format of :meth:`row`.

        Args:
            row (dict, optional): the means, if known: entries with a finite mean are skipped.
        """
        found = []
        for key, values in self._updates.items():
            watched = key.startswith("loss") or key == "grad_norm"
            if not watched or (row is not None and math.isfinite(row[key])):
                continue
            stacked = torch.stack(values).float()
            bad = (~stacked.isfinite()).nonzero()
            if len(bad):
                place = int(bad[0])
                found.append((len(values) - 1 - place, key, float(stacked[place])))
        # The earliest; of several in one update the first objective's, which may have caused the others.
        before, key, value = max(found, key=lambda item: item[0], default=(0, "", 0.0))
        return (key, before, value) if found else None

    def _returns(self) -> Tensor:
        """The returns of the finished episodes, from their rewards."""
        whole = [steps for streams, steps in self._steps if streams is None]
        parts: list[tuple[Any, Tensor]] = [(s, t) for s, t in self._steps if s is not None]
        if whole:
            parts.append((slice(None), torch.cat(whole, -1)))
        returns = [torch.zeros(0, dtype=torch.float64)]
        for streams, steps in parts:
            reward, done, begins = steps.cpu()
            rows = len(reward) if isinstance(streams, slice) else max(streams) + 1
            if rows > len(self._so_far):
                new = self._so_far.new_zeros(rows - len(self._so_far))
                self._so_far = torch.cat([self._so_far, new])
            streams = streams if isinstance(streams, slice) else list(streams)
            totals = _episode_totals(reward, done > 0, begins > 0, self._so_far[streams])
            self._so_far[streams] = torch.where(done[:, -1] > 0, 0.0, totals[:, -1])
            returns.append(totals[done > 0])
        return torch.cat(returns)

    def state(self) -> dict[str, Any]:
        """The values since the last row, and the returns of unfinished episodes, for a checkpoint."""
        whole = [steps for streams, steps in self._steps if streams is None]
        return {
            "collected": {_name(key): torch.cat(values) for key, values in self._collected.items()},
            "updates": {key: torch.stack(values) for key, values in self._updates.items()},
            "steps": torch.cat(whole, -1) if whole else None,
            "so_far": self._so_far,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores a state of :meth:`state`."""
        self._clear()
        names = {_name(key): key for key in _COLLECTED}
        for name, values in state["collected"].items():
            self._collected[names[name]].append(values.clone())
        for key, values in state["updates"].items():
            self._updates[key] = list(values.clone().unbind())
        if state["steps"] is not None:
            self._steps.append((None, state["steps"].clone()))
        self._so_far = state["so_far"].clone()


def _name(key: str | tuple[str, ...]) -> str:
    return key if isinstance(key, str) else ".".join(key)


def _episode_totals(reward: Tensor, done: Tensor, begins: Tensor, so_far: Tensor) -> Tensor:
    """The cumulative reward of each step's episode, ``[E, T]``.

    An episode starts after one that is done, and at steps marked as starts (after a worker was replaced).
    """
    begins = begins.clone()
    begins[:, 1:] |= done[:, :-1]
    total = reward.cumsum(-1)
    before = total - reward
    steps = torch.arange(reward.shape[-1], device=reward.device).expand_as(reward)
    first = torch.where(begins, steps, -1).cummax(-1).values
    base = torch.where(first >= 0, before.gather(-1, first.clamp(min=0)), -so_far.unsqueeze(-1))
    return total - base


class ProgressLine:
    """A progress line on the terminal: progress, speed, remaining time, and a few metrics.

    If the stream is not a terminal (a log file, a pipe), and in a process that shares its terminal (the worker
    of a sweep), it prints a plain line once per minute instead.

    Args:
        total (int): frames of the whole run.
        start (int, optional): the frames before a resumed run continues.
        stream (text stream, optional): default: standard error.
        enabled (bool, optional): ``False`` prints nothing.
        label (str, optional): name of the run in the plain lines of a worker.

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

    def is_due(self, *, force: bool = False) -> bool:
        """Whether an update would print now; reading its metrics from an accelerator would be a synchronisation."""
        wait = 0.1 if self._live else 60.0
        return self.enabled and (force or time.monotonic() - self._last >= wait)

    def update(self, frames: int, numbers: dict[str, float], *, force: bool = False) -> None:
        """Shows the state of the run, at most ten times a second on a terminal."""
        if not self.is_due(force=force):
            return
        now = self._last = time.monotonic()
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
        """Ends the line on the terminal."""
        if self.enabled and self._live:
            self.stream.write("\n")


def _clock(seconds: float) -> str:
    if seconds != seconds:
        return "?"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
