"""Q-learning with one table a seed (Watkins & Dayan 1992)."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

__all__ = ["QLearning", "QTable", "argmax_random_tie"]


def argmax_random_tie(values: Tensor) -> Tensor:
    """Returns the index of the largest entry along the last dimension, drawn uniformly among equals.

    A table starts with equal values: always the first of them would be a walk into one wall.

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
    # Draws lie in [0, 1): an entry that is not among the best must lie below every draw.
    return torch.rand(values.shape, device=values.device).masked_fill_(~best, -1.0).argmax(-1)


class QTable(TensorDictModuleBase):
    """The greedy actor of a batch of seeds, each with a table of its own.

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

    There is no value after a terminal step, and there is one after a truncated one.

    Args:
        actor (QTable): whose table learns.

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
        """Moves the table; writes the error of each seed."""
        state, action, following, reward, terminated = map(tensordict.get, self.in_keys)
        table, each = self.actor.table, self._each
        value = table[each, following].amax(-1).masked_fill(terminated.view(-1), 0.0)
        error = reward.view(-1) + self.gamma * value - table[each, state, action]
        table[each, state, action] += self.step_size * error
        return tensordict.set("td_error", error)
