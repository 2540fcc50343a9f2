"""The representation-driven option discovery cycle: episode, representation, options, and again."""

from __future__ import annotations

from typing import Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_dceo.tabular.graph import TransitionGraph
from torchrl_dceo.tabular.option_solver import TOLERANCE, solve_options
from torchrl_dceo.tabular.option_table import OptionTable
from torchrl_dceo.tabular.spectrum import laplacian_eigenvectors

__all__ = ["RODCycle"]

Signs = Literal["+", "-", "both", "rare"]
Weights = Literal["edges", "visits"]

_GROWTH = 50  # options are made anew when this part of the experience is new


class RODCycle:
    r"""Covering eigenoptions: after each episode, the graph of what was seen gives a new set of options.

    The cycle of Machado, Barreto, Precup & Bowling (2021, https://arxiv.org/abs/2110.05740), with the graph
    Laplacian as the representation as in the paper's Algorithm 2, for a batch of seeds: transitions are counted
    (:class:`~torchrl_dceo.tabular.TransitionGraph`), the smoothest eigenvectors of the graph are computed
    (:func:`~torchrl_dceo.tabular.laplacian_eigenvectors`), an option is solved for each of them on the empirical model
    (:func:`~torchrl_dceo.tabular.solve_options`), and they take the place of the whole option set.

    A seed whose episode ended and that has seen no new edge since its options were made keeps them, unless its
    experience has grown by a fiftieth, which makes the empirical model better. So once the world is known the cycle
    costs little.

    Args:
        num_seeds (int): B.
        num_states (int): S.
        num_actions (int): A.
        num_options (int or Tensor): eigenvectors that are followed; a tensor ``[B]`` for a number of each seed's own.

    Keyword Args:
        signs (str): which end of an eigenvector an option climbs to; it has two, and its sign is arbitrary.

            - ``"rare"`` (default): the one that was visited less: the mean of f over all visits is negative;
            - ``"+"``: the one where the entry of largest magnitude is; ``"-"``: the other one;
            - ``"both"``: both, with two options for each eigenvector.
        weights (str): ``"visits"`` (default): an edge counts as often as it was walked, which makes the smoothest
            eigenvectors those that separate what is hard to get to; ``"edges"``: every edge seen counts the same.
        gamma (float): the options' discount; the smaller, the nearer are the tops that they stop at. Default: 0.9.
        prior (float): transitions that each action is credited with in the model besides those seen, see
            :meth:`TransitionGraph.model`. With none, an option insists on the one action that ever made a move, even
            by a slip, and never tries another. Default: 1.
        period (int): steps between two moments at which options are made, for all seeds whose episode has ended since:
            seeds whose episodes end at different steps are then solved together. Default: 1.

    Attributes:
        options (OptionTable): the options of now.
        graph (TransitionGraph): what was seen.
        eigenvectors (Tensor): float64 ``[B, S, num_options]``, signed as the options climb them.

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
        # Which of them each seed follows.
        self._followed = torch.arange(self.num_eigenvectors) < each.unsqueeze(-1)
        total = self.num_eigenvectors * (2 if signs == "both" else 1)
        self.graph = TransitionGraph(num_seeds, num_states, num_actions)
        self.options = OptionTable(num_seeds, total, num_states, num_actions)
        shape = (num_seeds, num_states, self.num_eigenvectors)
        self.eigenvectors = torch.zeros(shape, dtype=torch.float64)
        self._climbed = torch.zeros(num_seeds, num_states, total, dtype=torch.float64)
        self._each = torch.arange(num_seeds)
        self.num_solved = 0  # option sets made so far, over all seeds
        self._steps = 0
        self._ended = torch.zeros(num_seeds, dtype=torch.bool)
        self._steps_when_solved = torch.zeros(num_seeds, dtype=torch.int64)
        self._edges_when_solved = torch.zeros(num_seeds, dtype=torch.int64)

    def update(self, tensordict: TensorDictBase) -> Tensor:
        """Takes one step of every seed, and makes new options where an episode has ended.

        Reads what :meth:`TransitionGraph.update` reads and ``("next", "done")``.

        Returns:
            bool ``[B]``: whose options are new.
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
        """Replaces all options of the given seeds ``[b]`` by those of the graph that they have seen."""
        if not len(seeds):
            return
        graph = self.graph
        for seed in seeds.tolist():
            # While there is no new edge the eigenvectors stay as they are.
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
        """Brings the value of the pairs just tried up to date, with what they led to counted in.

        Options are solved at the end of an episode. Until then an option whose model of a move is wrong (the one time
        it was tried, the action slipped) would try it again and again.
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
