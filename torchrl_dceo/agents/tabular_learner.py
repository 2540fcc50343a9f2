"""A table in the place of an agent's main learner: deep options, tabular Q-learning, as the paper does on the cube."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.objectives import DQNLoss

from torchrl_dceo._fast.actors import GreedyActor
from torchrl_dceo.agents.configs import LearnerConfig
from torchrl_dceo.envs import num_states

__all__ = ["AdamWithTables", "StateTable", "TabularQLoss", "make_table_learner"]

_TIES = 1e-6


class StateTable(nn.Module):
    """Action values as a table over state ids, 0 at first.

    Values carry noise of a millionth, so that the largest of equal ones is a random one: where nothing was learned
    yet, a greedy walk is a random walk.

    Args:
        num_states (int): S.
        num_actions (int): A.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.agents.tabular_learner import StateTable
        >>> StateTable(5, 3)(torch.tensor([[0, 4]])).shape
        torch.Size([1, 2, 3])
    """

    def __init__(self, num_states: int, num_actions: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(num_states, num_actions))

    def forward(self, state_id: Tensor) -> Tensor:
        """Maps state ids ``[*]`` to values ``[*, A]``."""
        values = self.values[state_id]
        return values + _TIES * torch.rand_like(values)


class AdamWithTables(torch.optim.Adam):
    """Adam for networks, and plain steps for the parameter groups with ``table=True``: one optimizer for both.

    A table must only move where a batch has something to say: Adam's momentum would move all of it.

    Args:
        params: parameter groups; those of tables have ``table=True`` and the step size as ``lr``.
        kwargs: those of :class:`torch.optim.Adam`.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.agents.tabular_learner import AdamWithTables
        >>> net, table = torch.nn.Linear(2, 1), torch.nn.Parameter(torch.zeros(3))
        >>> groups = [{"params": net.parameters()}, {"params": [table], "table": True, "lr": 0.5}]
        >>> optimizer = AdamWithTables(groups, lr=1e-3)
        >>> (net(torch.ones(2)).sum() + 2 * table[1]).backward()
        >>> optimizer.step()
        >>> table.tolist()
        [0.0, -1.0, 0.0]
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Moves everything."""
        groups = self.param_groups
        tables = [group for group in groups if group.get("table", False)]
        self.param_groups = [group for group in groups if not group.get("table", False)]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in tables:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"])
        return loss


class TabularQLoss(DQNLoss):
    r"""Q-learning with step size α on each transition of a batch.

    :math:`q(s,a) \leftarrow q(s,a) + \alpha\,[R + \gamma^m \max_{a'} q(s',a') - q(s,a)]`, without a target table: a
    loss of squared errors, summed over the batch, of which a plain gradient step of α/2 is this update. So the training
    loop, checkpoints and resuming treat it as any other loss.

    Args:
        actor (GreedyActor): on a :class:`StateTable`.
        gamma (float): the discount.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> agent = make_agent("dceo", make_env("RubiksCube222", max_depth=2), main_learner="table")
        >>> agent.policy[0].in_keys, list(agent.objectives)
        (['state_id'], ['laplacian', 'reward', 'option', 'main'])
    """

    def __init__(self, actor: GreedyActor, *, gamma: float) -> None:
        super().__init__(
            actor, double_dqn=False, delay_value=False, loss_function="l2", reduction="sum"
        )
        self.make_value_estimator(gamma=gamma)


def make_table_learner(env: EnvBase, config: LearnerConfig) -> tuple[GreedyActor, TabularQLoss]:
    """The greedy actor on a table over ``state_id`` and its loss: the paper's main learner on the cube."""
    spec = env.action_spec_unbatched
    actor = GreedyActor(StateTable(num_states(env), spec.space.n), in_keys=["state_id"], spec=spec)
    return actor, TabularQLoss(actor, gamma=config.gamma)
