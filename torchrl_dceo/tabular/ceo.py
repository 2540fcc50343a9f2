"""Tabular covering eigenoptions: exactly solved options, and the cycle that discovers them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import TensorSpec

from torchrl_dceo.modules import OptionExplorationModule
from torchrl_dceo.modules.temporally_extended import NO_OPTION
from torchrl_dceo.tabular.graph import TransitionGraph, laplacian_eigenvectors

__all__ = [
    "OptionTable",
    "RODCycle",
    "TabularOptionExploration",
    "solve_options",
]

_SWEEPS_BETWEEN_CHECKS = 8


TOLERANCE = 1e-6


"""Precision of the values, and threshold below which a value counts as 0."""


def solve_options(
    probabilities: Tensor,
    successors: Tensor,
    eigenvectors: Tensor,
    *,
    gamma: float = 0.9,
    tolerance: float = TOLERANCE,
    max_sweeps: int = 10_000,
) -> Tensor:
    r"""Returns the optimal action values of options that follow eigenvectors, by value iteration.

    Option i has the reward :math:`r_i(s, s') = f_i(s') - f_i(s)` and may stop with value 0 (Machado et al. 2017,
    https://arxiv.org/abs/1703.00956), so

    .. math:: q_i(s, a) = \sum_{s'} \hat P(s' | s, a) \left[r_i(s, s') + \gamma \max\{0, \max_{a'} q_i(s', a')\}\right],

    and it stops where :math:`q_i(s, a) \le 0` for all a, at the (local) maxima of its value. An action that was never
    taken has value 0.

    Args:
        probabilities (Tensor): :math:`\hat P`, float64 ``[B, S, A, K]``, as from
            :meth:`~torchrl_dceo.tabular.TransitionGraph.model`.
        successors (Tensor): int64 ``[B, S, K]``.
        eigenvectors (Tensor): f, float64 ``[B, S, N]``.

    Keyword Args:
        gamma (float): the options' discount, below 1, so that every option stops. Default: 0.9.
        tolerance (float): precision of the values; smaller values count as 0. Default: 1e-6.
        max_sweeps (int): the maximum number of sweeps. Default: 10,000.

    Returns:
        q, float64 ``[B, N, S, A]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.tabular import solve_options
        >>> moves = torch.eye(2, dtype=torch.float64).expand(1, 3, 2, 2)  # action 0 to the left, action 1 to the right
        >>> neighbours = torch.tensor([[[0, 1], [0, 2], [1, 2]]])
        >>> climb = torch.tensor([-1.0, 0.0, 1.0]).double().view(1, 3, 1)
        >>> solve_options(moves, neighbours, climb)[0, 0].round(decimals=6).tolist()
        [[1.71, 1.9], [0.71, 1.0], [-0.1, 0.0]]
    """
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma must lie in [0, 1), got {gamma}")
    num_seeds, num_states, num_actions, slots = probabilities.shape
    num_options = eigenvectors.shape[-1]
    # All seeds as one large environment, restricted to states with at least one outgoing transition.
    offsets = torch.arange(num_seeds).view(-1, 1, 1) * num_states
    following = (successors + offsets).view(-1, slots)
    matrices = probabilities.reshape(-1, num_actions, slots)
    left = matrices.sum((1, 2)).nonzero().squeeze(-1)
    following, matrices = following[left].flatten(), matrices[left]
    f = eigenvectors.reshape(-1, num_options)

    def expected(values: Tensor) -> Tensor:  # [B·S, N] -> [left, A, N]
        return matrices @ values.index_select(0, following).view(-1, slots, num_options)

    reward = expected(f) - matrices.sum(-1, keepdim=True) * f[left].unsqueeze(1)
    values = torch.zeros_like(f)
    error = tolerance
    for sweep in range(1, max_sweeps + 1):
        best = (reward + gamma * expected(values)).amax(1).clamp_(min=0)
        if sweep % _SWEEPS_BETWEEN_CHECKS == 0:
            # A sweep that changes δ leaves an error of δ γ / (1 - γ) at most.
            error = float((best - values[left]).abs().max()) * gamma / (1 - gamma)
        values[left] = best
        if sweep % _SWEEPS_BETWEEN_CHECKS == 0 and error < tolerance:
            break
    else:
        raise RuntimeError(
            f"the options did not converge in {max_sweeps} sweeps (error {error:.2g}): lower gamma or raise tolerance"
        )
    solved = reward + gamma * expected(values)
    solved = torch.where(solved.abs() <= tolerance, 0.0, solved)
    result = solved.new_zeros(num_seeds * num_states, num_actions, num_options)
    result[left] = solved
    return result.view(num_seeds, num_states, num_actions, num_options).permute(0, 3, 1, 2)


class OptionTable(TensorDictModuleBase):
    """The action values of N options for a batch of seeds, each seed with its own options.

    Reads ``state_id`` ``[B]`` and writes ``option_action_value`` ``[B, N, A]``.

    Args:
        num_seeds (int): B.
        num_options (int): N.
        num_states (int): S.
        num_actions (int): A.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.tabular import OptionTable
        >>> options = OptionTable(2, num_options=3, num_states=5, num_actions=4)
        >>> options(TensorDict({"state_id": torch.tensor([0, 4])}, [2]))["option_action_value"].shape
        torch.Size([2, 3, 4])
    """

    table: Tensor
    in_keys = ["state_id"]
    out_keys = ["option_action_value"]

    def __init__(self, num_seeds: int, num_options: int, num_states: int, num_actions: int) -> None:
        super().__init__()
        if num_options < 1:
            raise ValueError(f"num_options must be at least 1, got {num_options}")
        shape = (num_seeds, num_states, num_options, num_actions)
        self.register_buffer("table", torch.zeros(shape, dtype=torch.float64))
        self.num_options = num_options
        self._each = torch.arange(num_seeds)

    def replace(self, seeds: Tensor, values: Tensor) -> None:
        """Replaces the options of the given seeds ``[b]`` by the solved action values ``[b, N, S, A]``."""
        self.table[seeds] = values.transpose(1, 2)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the values of all options."""
        return tensordict.set(
            self.out_keys[0], self.table[self._each, tensordict.get(self.in_keys[0])]
        )


class TabularOptionExploration(OptionExplorationModule):
    """The behaviour of the paper's Algorithm 2: like Algorithm 1, but an option is only started where it can act.

    Where no action of an option has a positive value the option would end immediately, so it cannot be chosen
    there. If no option can start, a uniformly random action is taken.

    The arguments are those of :class:`~torchrl_dceo.modules.OptionExplorationModule`.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl_dceo.tabular import TabularOptionExploration
        >>> explore = TabularOptionExploration(Categorical(4), num_options=3, option_prob=1.0)
        >>> values = torch.zeros(2, 3, 4)
        >>> values[0, 2, 1] = 1.0  # in the first environment only the last option has somewhere to go
        >>> td = TensorDict({"action": torch.zeros(2, dtype=torch.int64), "option_action_value": values,
        ...     "option": torch.full((2,), -1), "is_init": torch.ones(2, 1, dtype=torch.bool)}, [2])
        >>> explore(td)["option"].tolist(), td["option_start"].tolist()
        ([2, -1], [True, False])
    """

    def __init__(self, spec: TensorSpec, **settings: Any) -> None:
        super().__init__(spec, **settings)

    def _start(self, tensordict: TensorDictBase) -> Tensor:
        available = tensordict.get(self.action_value_key).amax(-1) > 0
        draws = torch.rand(available.shape, device=available.device)
        option = draws.masked_fill_(~available, -1.0).argmax(-1)
        return torch.where(available.any(-1), option, NO_OPTION)

    def _write(self, tensordict: TensorDictBase, option: Tensor, starts: Tensor | None) -> None:
        super()._write(
            tensordict, option, None if starts is None else starts & (option != NO_OPTION)
        )


Signs = Literal["+", "-", "both", "rare"]


Weights = Literal["edges", "visits"]


_GROWTH = 50  # options are recomputed when this share of the data is new


class RODCycle:
    r"""Covering eigenoptions: after each episode, a new set of options is computed from the visited graph.

    The cycle of Machado, Barreto, Precup & Bowling (2021, https://arxiv.org/abs/2110.05740), with the graph
    Laplacian as the representation as in the paper's Algorithm 2, for a batch of seeds: transitions are counted
    (:class:`~torchrl_dceo.tabular.TransitionGraph`), the smoothest eigenvectors of the graph are computed
    (:func:`~torchrl_dceo.tabular.laplacian_eigenvectors`), an option is solved for each of them on the empirical model
    (:func:`~torchrl_dceo.tabular.solve_options`), and they replace the whole option set.

    A seed that has seen no new edge since its options were computed keeps them, unless its
    experience has grown by 2%, which improves the empirical model. So once the environment is explored the
    cycle is cheap.

    Args:
        num_seeds (int): B.
        num_states (int): S.
        num_actions (int): A.
        num_options (int or Tensor): the number of eigenvectors; a tensor ``[B]`` for a different number per seed.

    Keyword Args:
        signs (str): the direction in which an option follows an eigenvector, whose sign is arbitrary.

            - ``"rare"`` (default): towards the end with fewer visits: the mean of f over all visits is negative;
            - ``"+"``: towards the entry of largest magnitude; ``"-"``: the opposite;
            - ``"both"``: both, with two options per eigenvector.
        weights (str): ``"visits"`` (default): edges are weighted by their traversals, so that the smoothest
            eigenvectors separate regions that are hard to reach; ``"edges"``: all seen edges have weight 1.
        gamma (float): the options' discount; with a smaller one they stop at closer maxima. Default: 0.9.
        prior (float): pseudo-counts added to each action in the model, see
            :meth:`TransitionGraph.model`. Without them, an option only tries the one action that ever made a move, even
            if by a slip. Default: 1.
        period (int): steps between two computations of options, for all seeds whose episode has ended since then:
            seeds whose episodes end at different steps are then solved together. Default: 1.

    Attributes:
        options (OptionTable): the current options.
        graph (TransitionGraph): the transitions seen so far.
        eigenvectors (Tensor): float64 ``[B, S, num_options]``, with the sign that the options use.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> from torchrl_dceo.tabular import RODCycle
        >>> env = GridWorldEnv("S....", batch_size=[2], max_steps=20, seed=0)
        >>> cycle = RODCycle(2, env.num_states, env.num_actions, num_options=1)
        >>> step = env.reset()
        >>> for _ in range(40):
        ...     now, step = env.step_and_maybe_reset(step.set("action", torch.ones(2, dtype=torch.int64)))
        ...     renewed = cycle.update(now)
        >>> cycle.graph.num_edges.tolist(), cycle.num_solved
        ([4, 4], 4)
    """

    def __init__(
        self,
        num_seeds: int,
        num_states: int,
        num_actions: int,
        num_options: int | Tensor,
        *,
        signs: Signs = "rare",
        weights: Weights = "visits",
        gamma: float = 0.9,
        prior: float = 1.0,
        period: int = 1,
    ) -> None:
        if weights not in ("edges", "visits"):
            raise ValueError(f"weights must be 'edges' or 'visits', got {weights!r}")
        if signs not in ("+", "-", "both", "rare"):
            raise ValueError(f"signs must be '+', '-', 'both' or 'rare', got {signs!r}")
        self.signs, self.weights = signs, weights
        self.gamma, self.prior, self.period = gamma, prior, period
        each = torch.as_tensor(num_options).expand(num_seeds)
        if int(each.min()) < 1:
            raise ValueError(f"num_options must be at least 1, got {int(each.min())}")
        self.num_eigenvectors = int(each.max())
        # Which of the options each seed uses.
        self._followed = torch.arange(self.num_eigenvectors) < each.unsqueeze(-1)
        total = self.num_eigenvectors * (2 if signs == "both" else 1)
        self.graph = TransitionGraph(num_seeds, num_states, num_actions)
        self.options = OptionTable(num_seeds, total, num_states, num_actions)
        shape = (num_seeds, num_states, self.num_eigenvectors)
        self.eigenvectors = torch.zeros(shape, dtype=torch.float64)
        self._climbed = torch.zeros(num_seeds, num_states, total, dtype=torch.float64)
        self._each = torch.arange(num_seeds)
        self.num_solved = 0  # option sets computed so far, over all seeds
        self._steps = 0
        self._ended = torch.zeros(num_seeds, dtype=torch.bool)
        self._steps_when_solved = torch.zeros(num_seeds, dtype=torch.int64)
        self._edges_when_solved = torch.zeros(num_seeds, dtype=torch.int64)

    def update(self, tensordict: TensorDictBase) -> Tensor:
        """Adds one step of every seed, and computes new options for seeds whose episode has ended.

        Reads the entries of :meth:`TransitionGraph.update` and ``("next", "done")``.

        Returns:
            bool ``[B]``: the seeds with new options.
        """
        self.graph.update(tensordict)
        if self.num_solved:
            self._back_up(tensordict.get("state_id"), tensordict.get("action"))
        self._steps += 1
        self._ended |= tensordict.get(("next", "done")).view(-1)
        if self._steps % self.period or not self._ended.any():
            return torch.zeros_like(self._ended)
        grown = _GROWTH * (self._steps - self._steps_when_solved) >= self._steps
        due = self._ended & (grown | (self.graph.num_edges > self._edges_when_solved))
        self._ended = torch.zeros_like(due)
        self.discover(due.nonzero().squeeze(-1))
        return due

    def discover(self, seeds: Tensor) -> None:
        """Recomputes all options of the given seeds ``[b]`` from their graphs."""
        if not len(seeds):
            return
        graph = self.graph
        for seed in seeds.tolist():
            # Without a new edge the eigenvectors do not change.
            if self.weights == "visits" or graph.num_edges[seed] > self._edges_when_solved[seed]:
                _, vectors = laplacian_eigenvectors(
                    graph.edges(seed),
                    graph.num_states,
                    self.num_eigenvectors,
                    weights=graph.edge_visits(seed) if self.weights == "visits" else None,
                )
                self.eigenvectors[seed] = vectors * self._followed[seed]
        self._orient(seeds)
        climbed = self.eigenvectors[seeds]
        if self.signs == "both":
            climbed = torch.cat([climbed, -climbed], -1)
        self._climbed[seeds] = climbed
        self.options.replace(
            seeds, solve_options(*graph.model(seeds, self.prior), climbed, gamma=self.gamma)
        )
        self._steps_when_solved[seeds] = self._steps
        self._edges_when_solved[seeds] = graph.num_edges[seeds]
        self.num_solved += len(seeds)

    def _back_up(self, state: Tensor, action: Tensor) -> None:
        """Updates the option values of the last state-action pairs.

        Options are solved at the end of an episode. Until then an option with a wrong model of a step, e.g. because
        the only try slipped, would repeat it.
        """
        table, each = self.options.table, self._each
        share, lists = self.graph.outcomes(state, action, self.prior)
        following = (each.unsqueeze(-1), lists)
        reached = self._climbed[following] - self._climbed[each, state].unsqueeze(1)  # [B, K, N]
        worth = table[following].amax(-1).clamp_(min=0)
        values = (share.unsqueeze(-1) * (reached + self.gamma * worth)).sum(1)
        table[each, state, :, action] = torch.where(values.abs() <= TOLERANCE, 0.0, values)

    def _orient(self, seeds: Tensor) -> None:
        vectors = self.eigenvectors[seeds]
        if self.signs == "rare":
            visits = self.graph.counts[seeds].sum((-2, -1)).double()
            mean = (vectors * visits.unsqueeze(-1)).sum(1, keepdim=True)
            flip = mean > 0
        else:
            largest = vectors.abs().argmax(1, keepdim=True)
            flip = (vectors.gather(1, largest) < 0) ^ (self.signs == "-")
        self.eigenvectors[seeds] = torch.where(flip, -vectors, vectors)
