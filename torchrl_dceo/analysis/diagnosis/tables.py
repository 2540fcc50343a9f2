"""The compared option sets as tables: learned, and with more and more exact parts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchrl_dceo.analysis.spectra.exact import exact_eigenfunctions
from torchrl_dceo.analysis.spectra.options import (
    followed_eigenfunctions,
    reachable_states,
    solved_option_values,
)
from torchrl_dceo.envs import TableEnv
from torchrl_dceo.modules import EigenReward

__all__ = ["OptionTables", "option_tables"]


class OptionTables(NamedTuple):
    """An option set as tables over all states of an environment.

    Attributes:
        values (Tensor): the options' action values, ``[S, N, A]``.
        known (Tensor): bool ``[S, N]``; if false the option takes a uniformly random action.
    """

    values: Tensor
    known: Tensor


@torch.no_grad()
def option_tables(
    table_env: TableEnv,
    reward: EigenReward,
    representation: Tensor,
    option_values: Tensor,
    visits: Tensor,
    *,
    gamma: float | None = None,
    reward_free: bool = False,
    weighted: bool = False,
) -> dict[str, OptionTables]:
    r"""Returns the compared option sets: learned, and with more and more exact parts.

    Exact options are solved on the true dynamics, slips included, for single steps, with the agent's discount and the
    reward :math:`f_i(s') - f_i(s)`; the modes ``"telescoped"`` and ``"potential"`` have the same policies. Where
    options learn over n steps, these are the options of the same reward for single steps. Reaching a goal
    ends them, unless they were learned without reward.

    The visited graph consists of the states with ``visits > 0``: a move out of it counts as staying, and in a state
    outside an option takes a uniformly random action.

    Args:
        table_env (TableEnv): the environment.
        reward (EigenReward): the agent's reward, which defines the eigenfunctions of the options and their discount.
        representation (Tensor): the learned f, ``[S, d]``.
        option_values (Tensor): the learned values, ``[S, N, A]``.
        visits (Tensor): the number of visits of each state, ``[S]``.

    Keyword Args:
        gamma (float, optional): the options' discount. Default: that of ``reward``.
        reward_free (bool): options were learned without reward, so goals do not end them. Default: ``False``.
        weighted (bool): weight the states by their visits in (c), instead of uniformly. Default:
            ``False``.

    Returns:
        The tables of ``random``, ``learned``, ``solved``, ``visited`` and ``exact``, in this order.

    Examples:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.analysis.diagnosis import option_tables
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> from torchrl_dceo.modules import EigenReward
        >>> table_env = GridWorldEnv("S...G")
        >>> encoder = TensorDictModule(torch.nn.Identity(), in_keys=["observation"], out_keys=["representation"])
        >>> reward = EigenReward(encoder, num_options=1, gamma=0.9)
        >>> visits = torch.tensor([5, 3, 1, 0, 0])
        >>> tables = option_tables(table_env, reward, torch.randn(5, 2), torch.randn(5, 1, 4), visits)
        >>> list(tables), tables["visited"].known.flatten().tolist()
        (['random', 'learned', 'solved', 'visited', 'exact'], [True, True, True, False, False])
    """
    gamma = reward.gamma if gamma is None else gamma
    moves, kept = table_env.next_state, reachable_states(table_env.next_state, table_env._starts)
    terminal = torch.zeros_like(table_env._is_goal) if reward_free else table_env._is_goal
    seen = visits.to(moves.device) > 0
    followed = followed_eigenfunctions(reward, representation).double()
    # Values Q + f(s): the gain of an action is Q.
    offset = followed.unsqueeze(-1) if reward.mode == "potential" else 0.0
    known = torch.ones_like(followed, dtype=torch.bool)

    def solved(f: Tensor, inside: Tensor) -> OptionTables:
        own = torch.arange(len(moves), device=moves.device).unsqueeze(-1)
        within = torch.where(inside[moves], moves, own)
        values = solved_option_values(
            f, within, gamma=gamma, slip=table_env.slip, terminal=terminal
        )
        # The graph has fewer eigenfunctions than options.
        return OptionTables(values, inside.unsqueeze(-1) & (f != 0).any(0))

    def exact(inside: Tensor, weights: Tensor) -> OptionTables:
        rho = torch.where(inside, weights, torch.zeros_like(weights)).double()
        width = reward.num_options + int(reward.skip_first)
        d = min(width, int((rho > 0).sum()))
        _, functions = exact_eigenfunctions(table_env, d, rho=rho)
        f = functions.new_zeros(len(moves), width)
        f[:, :d] = functions
        return solved(followed_eigenfunctions(reward, f), inside)

    alike = torch.ones_like(visits)
    everywhere = torch.ones_like(seen)
    return {
        "random": OptionTables(torch.zeros_like(option_values).double(), ~known),
        "learned": OptionTables(option_values.double() - offset, known),
        "solved": solved(followed, everywhere),
        "visited": exact(seen & kept, visits if weighted else alike),
        "exact": exact(kept, alike),
    }
