"""Tabular Q-learning and its metrics."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_dceo.envs import TableEnv

__all__ = [
    "QLearning",
    "QTable",
    "TabularMeasures",
    "argmax_random_tie",
    "evaluate_greedy",
]


def argmax_random_tie(values: Tensor) -> Tensor:
    """Returns the index of the largest entry along the last dimension, with ties broken at random.

    A table starts with equal values: always taking the first action would get stuck at a wall.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.tabular.q_learning import argmax_random_tie
        >>> argmax_random_tie(torch.tensor([0.0, 3.0, 1.0]))
        tensor(1)
        >>> draws = argmax_random_tie(torch.tensor([2.0, 1.0, 2.0]).expand(100, 3))
        >>> sorted(set(draws.tolist()))
        [0, 2]
    """
    best = values == values.amax(-1, keepdim=True)
    # Random numbers lie in [0, 1): entries that are not among the best must be below all of them.
    return torch.rand(values.shape, device=values.device).masked_fill_(~best, -1.0).argmax(-1)


class QTable(TensorDictModuleBase):
    """The greedy actor of a batch of seeds, each with its own table.

    Reads ``state_id`` ``[B, *]`` and writes ``action_value`` ``[B, *, A]`` and ``action`` ``[B, *]``, ties broken at
    random.

    Args:
        num_seeds (int): B.
        num_states (int): S.
        num_actions (int): A.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.tabular import QTable
        >>> actor = QTable(2, num_states=5, num_actions=3)
        >>> actor.table[1, 4] = torch.tensor([0.0, 0.5, 0.2])
        >>> actor(TensorDict({"state_id": torch.tensor([4, 4])}, [2]))["action"][1]
        tensor(1)
    """

    table: Tensor
    in_keys = ["state_id"]
    out_keys = ["action_value", "action"]

    def __init__(self, num_seeds: int, num_states: int, num_actions: int) -> None:
        super().__init__()
        self.register_buffer(
            "table", torch.zeros(num_seeds, num_states, num_actions, dtype=torch.float64)
        )

    def values(self, state: Tensor) -> Tensor:
        """Returns the action values ``[B, *, A]`` of states ``[B, *]``."""
        each = torch.arange(len(self.table)).view(-1, *[1] * (state.ndim - 1))
        return self.table[each, state]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the values and a greedy action."""
        values = self.values(tensordict.get("state_id"))
        tensordict.set("action_value", values)
        return tensordict.set("action", argmax_random_tie(values))


class QLearning(TensorDictModuleBase):
    r"""One step of Q-learning for every seed.

    .. math:: q(s, a) \leftarrow q(s, a) + \alpha \left[r + \gamma \max_{a'} q(s', a') - q(s, a)\right]

    Targets bootstrap after truncation, but not after termination.

    Args:
        actor (QTable): the actor to train.

    Keyword Args:
        step_size (float): α. Default: 0.1, the paper's.
        gamma (float): the discount. Default: 0.99.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.tabular import QLearning, QTable
        >>> actor = QTable(1, num_states=2, num_actions=2)
        >>> learn = QLearning(actor, step_size=0.5)
        >>> step = TensorDict({"state_id": [0], "action": [1], "next": {"state_id": [1], "reward": [[1.0]],
        ...     "terminated": [[True]]}}, [1])
        >>> learn(step)["td_error"], actor.table[0, 0].tolist()
        (tensor([1.], dtype=torch.float64), [0.0, 0.5])
    """

    in_keys = [
        "state_id",
        "action",
        ("next", "state_id"),
        ("next", "reward"),
        ("next", "terminated"),
    ]
    out_keys = ["td_error"]

    def __init__(self, actor: QTable, *, step_size: float = 0.1, gamma: float = 0.99) -> None:
        super().__init__()
        if not 0 < step_size <= 1:
            raise ValueError(f"step_size must lie in (0, 1], got {step_size}")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1], got {gamma}")
        self.actor = actor
        self.step_size, self.gamma = step_size, gamma
        self._each = torch.arange(len(actor.table))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Updates the table; writes the TD error of each seed."""
        state, action, following, reward, terminated = map(tensordict.get, self.in_keys)
        table, each = self.actor.table, self._each
        value = table[each, following].amax(-1).masked_fill(terminated.view(-1), 0.0)
        error = reward.view(-1) + self.gamma * value - table[each, state, action]
        table[each, state, action] += self.step_size * error
        return tensordict.set("td_error", error)


class TabularMeasures:
    """Records visits and returns of a batch of seeds in rows.

    The names are those of the deep agents' log. A visit is the next state of a step or the first of an episode, as in
    :class:`~torchrl_dceo.envs.StateCounts`.

    Args:
        num_seeds (int): B.
        num_states (int): S.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> from torchrl_dceo.tabular.q_learning import TabularMeasures
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
        self._return = torch.zeros(num_seeds, dtype=torch.float64)  # of the current episode
        self._rows: list[dict[str, Tensor]] = []
        self._clear()

    def _clear(self) -> None:
        self._returns = torch.zeros_like(self._return)
        self._episodes = torch.zeros_like(self._return)
        self._in_option = torch.zeros_like(self._return)
        self._steps = 0

    def started(self, state: Tensor) -> None:
        """Adds the first states ``[B]`` of the first episodes."""
        self._visit(state, torch.ones_like(state))

    def stepped(
        self, tensordict: TensorDictBase, following: TensorDictBase, num_steps: int
    ) -> None:
        """Adds a step and the following root state, which after the end of an episode is the next start."""
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
        """Adds a row with everything since the last one."""
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
        >>> from torchrl_dceo.tabular.q_learning import evaluate_greedy
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
