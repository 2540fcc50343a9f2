"""Exploration at ε = 1 with fixed option sets, in an environment without images."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torchrl.data import Unbounded
from torchrl.envs import Compose, InitTracker, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_dceo.analysis.diagnosis.tables import OptionTables
from torchrl_dceo.envs import TableEnv
from torchrl_dceo.modules import DirectedSelection, OptionExplorationModule
from torchrl_dceo.modules.termination import TopTermination, value_termination

__all__ = ["TableWalk", "explored"]


class TableWalk(TableEnv):
    """The states and moves of an environment, for any batch size, without images."""

    def __init__(self, table_env: TableEnv, batch_size: int, seed: int) -> None:
        super().__init__(
            table_env.next_state,
            table_env._starts.tolist(),
            table_env._is_goal.nonzero().flatten().tolist() or None,
            "observation",
            Unbounded((1,)),
            batch_size=[batch_size],
            slip=table_env.slip,
            max_steps=table_env.max_steps,
            seed=seed,
        )

    def observe(self, state_ids: Tensor) -> Tensor:
        """The observation: the index of the state."""
        return state_ids.unsqueeze(-1).float()


@torch.no_grad()
def explored(
    table_env: TableEnv,
    tables: Sequence[OptionTables],
    explorer: OptionExplorationModule,
    *,
    steps: int = 10_000,
    repeats: int = 10,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Explores an environment at ε = 1 with fixed option sets, all of them in one batch.

    Selection, termination, duration and the probability of options are those of ``explorer``, which is copied; a
    :class:`~torchrl_dceo.modules.DirectedSelection` becomes uniform, because it depends on the learned functions.

    Args:
        table_env (TableEnv): the environment; its batch size does not matter.
        tables (sequence of OptionTables): V option sets.
        explorer (OptionExplorationModule): the behaviour.

    Keyword Args:
        steps (int): of each walk. Default: 10,000.
        repeats (int): R, walks with each option set. Default: 10.
        seed (int): seed of the walks; the global generators are not changed. Default: 0.

    Returns:
        ``(goals, states)``, float64 ``[V, R]`` each: goals reached per 1,000 steps, and distinct states seen.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.diagnosis import OptionTables, explored
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> from torchrl_dceo.modules import OptionExplorationModule
        >>> table_env = GridWorldEnv("S...G", slip=0.0)
        >>> explorer = OptionExplorationModule(table_env.action_spec, num_options=1, option_prob=1.0)
        >>> right = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(5, 1, 4)
        >>> goals, states = explored(table_env, [OptionTables(right, torch.ones(5, 1, dtype=torch.bool))], explorer,
        ...     steps=40, repeats=1)
        >>> goals.tolist(), states.tolist()  # a goal every four steps
        ([[250.0]], [[5.0]])
    """
    for name, value in (("steps", steps), ("repeats", repeats)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    values = torch.stack([table.values for table in tables]).float().cpu()
    known = torch.stack([table.known for table in tables]).cpu()
    explorer = _at_eps_one(explorer)
    number = len(tables) * repeats
    which = torch.arange(len(tables)).repeat_interleave(repeats)
    each = torch.arange(number)
    walk = TableWalk(table_env, number, seed)
    env = TransformedEnv(walk, Compose(InitTracker(), explorer.make_tensordict_primer()))
    seen = torch.zeros(number, table_env.num_states, dtype=torch.bool)
    goals = torch.zeros(number, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]), set_exploration_type(ExplorationType.RANDOM):
        torch.manual_seed(seed)
        step = env.reset()
        for _ in range(steps):
            state = step.get("state_id")
            seen[each, state] = True
            shown = values[which, state]
            guess = torch.rand_like(shown)
            shown = torch.where(known[which, state].unsqueeze(-1), shown, guess)
            step.set(explorer.action_value_key, shown)
            # At ε = 1 no action of a main learner is used.
            step.set(explorer.action_key, torch.zeros_like(state))
            now, step = env.step_and_maybe_reset(explorer(step))
            seen[each, now.get(("next", "state_id"))] = True
            goals += now.get(("next", "reward")).squeeze(-1)
    shape = (len(tables), repeats)
    return (goals * 1000 / steps).view(shape), seen.sum(-1).double().view(shape)


def _at_eps_one(explorer: OptionExplorationModule) -> OptionExplorationModule:
    explorer = copy.deepcopy(explorer).cpu()
    explorer.eps.fill_(1.0)
    ends = explorer.termination
    if isinstance(ends, functools.partial) and ends.func is value_termination:
        # The tables contain gains already, so nothing is subtracted.
        explorer.termination = value_termination
    elif isinstance(ends, TopTermination):
        ends.reward = None
    if isinstance(explorer.selection, DirectedSelection):
        # Its probabilities belong to the learned functions; exact ones have other places and signs.
        explorer.selection.probabilities.fill_(1 / explorer.num_options)
    return explorer
