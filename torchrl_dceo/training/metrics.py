"""What a run reports: returns, coverage, how options are used, and the losses."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor

if TYPE_CHECKING:
    from torchrl_dceo.training.agent import Agent

__all__ = ["RunMetrics", "num_options"]

_COLLECTED = (("next", "done"), ("next", "episode_reward"), "option", "option_start")


def num_options(agent: Agent) -> int:
    """How many options the agent's explorer can start; 0 if it has none.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.metrics import num_options
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
        >>> from torchrl_dceo.training.metrics import RunMetrics
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
