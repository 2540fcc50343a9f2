"""Compares exploration with learned options and with exact parts: options, representation, data and behaviour."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_dceo.analysis.diagnosis.figure import draw_diagnosis
from torchrl_dceo.analysis.diagnosis.result import PARTS, Diagnosis, read_diagnosis
from torchrl_dceo.analysis.diagnosis.tables import OptionTables, option_tables
from torchrl_dceo.analysis.diagnosis.walk import TableWalk, explored
from torchrl_dceo.analysis.spectra.options import reachable_states
from torchrl_dceo.envs import TableEnv
from torchrl_dceo.modules import EigenReward, OptionExplorationModule
from torchrl_dceo.tabular import TabularConfig, run_tabular

__all__ = [
    "PARTS",
    "Diagnosis",
    "OptionTables",
    "diagnose",
    "draw_diagnosis",
    "explored",
    "option_tables",
    "read_diagnosis",
]


def diagnose(
    table_env: TableEnv,
    explorer: OptionExplorationModule,
    reward: EigenReward,
    representation: Tensor,
    option_values: Tensor,
    visits: Tensor,
    *,
    gamma: float | None = None,
    reward_free: bool = False,
    weighted: bool = False,
    steps: int = 10_000,
    repeats: int = 10,
    seed: int = 0,
) -> Diagnosis:
    """Explores at ε = 1 with the learned options, and with parts replaced by exact ones, without further learning.

    In addition, tabular CEO explores for as many steps, from scratch, with its own settings
    (:class:`~torchrl_dceo.tabular.TabularConfig` at ε = 1).

    Args:
        table_env, reward, representation, option_values, visits: see :func:`option_tables`.
        explorer (OptionExplorationModule): the agent's behaviour.

    Keyword Args:
        gamma, reward_free, weighted: see :func:`option_tables`.
        steps, repeats, seed: see :func:`explored`.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.analysis import state_values, find_table_env
        >>> from torchrl_dceo.analysis.diagnosis import diagnose
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.probes import eigen_reward, option_actor
        >>> env = make_env("NineRooms", room_size=3, visits="counts")
        >>> agent, table_env = make_agent("dceo", env, num_options=2), find_table_env(env)
        >>> reward = eigen_reward(agent)
        >>> diagnosis = diagnose(table_env, agent.explorer, reward, state_values(reward.encoder, table_env),
        ...     state_values(option_actor(agent), table_env), visits=env.rollout(100)["state_id"].bincount(
        ...     minlength=table_env.num_states), steps=200, repeats=2)
        >>> list(diagnosis.states), diagnosis.states["exact"].shape
        (['random', 'learned', 'solved', 'visited', 'exact', 'ceo'], torch.Size([2]))
    """
    tables = option_tables(
        table_env,
        reward,
        representation,
        option_values,
        visits,
        gamma=gamma,
        reward_free=reward_free,
        weighted=weighted,
    )
    goals, states = explored(
        table_env, list(tables.values()), explorer, steps=steps, repeats=repeats, seed=seed
    )
    walk = TableWalk(table_env, repeats, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = TabularConfig(total_steps=steps, eps=1.0, log_period=steps, eval_period=steps)
        counts = run_tabular("ceo", walk, config).get("counts")
    # No episode starts at a goal, so the visits of a goal are the times that it was reached.
    reached = counts[:, walk._is_goal].sum(-1).double() * 1000 / steps
    return Diagnosis(
        goals={**dict(zip(tables, goals, strict=True)), "ceo": reached},
        states={**dict(zip(tables, states, strict=True)), "ceo": (counts > 0).sum(-1).double()},
        steps=steps,
        num_states=int(reachable_states(table_env.next_state, table_env._starts).sum()),
        num_visited=int((visits > 0).sum()),
    )
