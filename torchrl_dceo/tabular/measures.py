"""What a tabular run reports, for each seed: coverage, returns, how much of the time options act."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from torchrl_dceo.envs import TableEnv
from torchrl_dceo.tabular.q_learning import QTable

__all__ = ["TabularMeasures", "evaluate_greedy"]


class TabularMeasures:
    """Counts visits and returns of a batch of seeds, and keeps a row of them now and then.

    The names are those of the deep agents' log. A visit is a state that a step leads to or an episode starts in, as in
    :class:`~torchrl_dceo.envs.StateCounts`.

    Args:
        num_seeds (int): B.
        num_states (int): S.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> from torchrl_dceo.tabular.measures import TabularMeasures
        >>> env, measures = GridWorldEnv("S....", batch_size=[2], slip=0.0), TabularMeasures(2, 5)
        >>> step = env.reset()
        >>> measures.started(step["state_id"])
        >>> now, step = env.step_and_maybe_reset(step.set("action", torch.tensor([1, 0])))
        >>> measures.stepped(now, step, 1)
        >>> measures.row(1)
        >>> measures.result()["coverage"].tolist()
        [[2, 1]]
    """

    def __init__(self, num_seeds: int, num_states: int) -> None:
        self.counts = torch.zeros(num_seeds, num_states, dtype=torch.int64)
        self.covered_at = torch.full((num_seeds,), -1)
        self.coverage = torch.zeros(num_seeds, dtype=torch.int64)
        self._each = torch.arange(num_seeds)
        self._return = torch.zeros(num_seeds, dtype=torch.float64)  # of the episode that is on
        self._rows: list[dict[str, Tensor]] = []
        self._clear()

    def _clear(self) -> None:
        self._returns = torch.zeros_like(self._return)
        self._episodes = torch.zeros_like(self._return)
        self._in_option = torch.zeros_like(self._return)
        self._steps = 0

    def started(self, state: Tensor) -> None:
        """Takes the states ``[B]`` that the first episodes start in."""
        self._visit(state, torch.ones_like(state))

    def stepped(
        self, tensordict: TensorDictBase, following: TensorDictBase, num_steps: int
    ) -> None:
        """Takes a step, and what comes after it: after an episode's end that is the next one's start."""
        nexts = tensordict.get("next")
        done = nexts.get("done").view(-1)
        self._visit(nexts.get("state_id"), torch.ones_like(self.coverage))
        self._return += nexts.get("reward").view(-1)
        if done.any():
            self._visit(following.get("state_id"), done.long())
            self._returns += torch.where(done, self._return, 0.0)
            self._episodes += done
            self._return.masked_fill_(done, 0.0)
        option = tensordict.get("option", None)
        if option is not None:
            self._in_option += option >= 0
        self._steps += 1
        finished = (self.coverage == self.counts.shape[1]) & (self.covered_at < 0)
        self.covered_at.masked_fill_(finished, num_steps)

    def _visit(self, state: Tensor, times: Tensor) -> None:
        before = self.counts[self._each, state]
        self.counts[self._each, state] = before + times
        self.coverage += (before == 0) & (times > 0)

    def count_of(self, state: Tensor) -> Tensor:
        """Returns n(s) of each seed's state, float64 ``[B]``."""
        return self.counts[self._each, state].double()

    def row(self, num_steps: int, eval_return: Tensor | None = None) -> None:
        """Keeps a row: what happened since the last one."""
        self._rows.append(
            {
                "frames": torch.tensor(num_steps),
                "coverage": self.coverage.clone(),
                "train_return": self._returns / self._episodes,  # NaN without an episode
                "option_share": self._in_option / max(1, self._steps),
                "eval_return": torch.full_like(self._return, torch.nan)
                if eval_return is None
                else eval_return,
            }
        )
        self._clear()

    @property
    def last_row(self) -> dict[str, Tensor]:
        """The newest row, empty before the first."""
        return self._rows[-1] if self._rows else {}

    def result(self) -> TensorDict:
        """Returns the rows ``[T, B]``, the counts ``[B, S]`` and ``covered_at`` ``[B]``."""
        names = self._rows[0] if self._rows else {}
        rows = {name: torch.stack([row[name] for row in self._rows]) for name in names}
        return TensorDict({**rows, "counts": self.counts, "covered_at": self.covered_at})


def evaluate_greedy(actor: QTable, env: TableEnv) -> Tensor:
    """Mean return of one episode in each environment of the batch ``[B, episodes]``, under the greedy policy.

    Returns:
        float64 ``[B]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> from torchrl_dceo.tabular import QTable
        >>> from torchrl_dceo.tabular.measures import evaluate_greedy
        >>> actor = QTable(2, num_states=3, num_actions=4)
        >>> actor.table[1, :, 1] = 1.0  # the second seed always goes right
        >>> evaluate_greedy(actor, GridWorldEnv("S.G", batch_size=[2, 5], slip=0.0, max_steps=2))[1]
        tensor(1., dtype=torch.float64)
    """
    step = env.reset()
    total = torch.zeros(env.batch_size, dtype=torch.float64)
    running = torch.ones(env.batch_size, dtype=torch.bool)
    while bool(running.any()):
        now, step = env.step_and_maybe_reset(actor(step))
        nexts = now.get("next")
        total += torch.where(running, nexts.get("reward").squeeze(-1), 0.0)
        running &= ~nexts.get("done").squeeze(-1)
    return total.mean(-1)
