"""Sample-efficiency curves: agents over seeds, along frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchrl_dceo.analysis.aggregates import Aggregate, aggregate, common_grid, on_grid
from torchrl_dceo.analysis.study_folder import AgentRuns

__all__ = ["AgentCurve", "SampleEfficiency", "sample_efficiency"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AgentCurve:
    """The curves of one agent.

    Attributes:
        runs (dict of int to ndarray): of each seed, ``[P]``; NaN where it does not have the point.
        over_seeds (Aggregate): interquartile mean with its interval, mean and standard deviation, ``[P]`` each.
    """

    runs: dict[int, Array]
    over_seeds: Aggregate


@dataclass(frozen=True)
class SampleEfficiency:
    """What :func:`sample_efficiency` returns.

    Attributes:
        grid (ndarray): the points, ``[P]``; none if no run has the metric.
        agents (dict of str to AgentCurve): each agent of which a run has the metric.
    """

    grid: Array
    agents: dict[str, AgentCurve]


def sample_efficiency(
    agents: Sequence[AgentRuns],
    metric: str = "eval_return",
    x: str = "frames",
    *,
    num_points: int = 60,
    repetitions: int = 2000,
) -> SampleEfficiency:
    """Puts the runs of several agents in a world on one grid and aggregates them over seeds at each point.

    Unfinished runs count as far as they have come.

    Args:
        agents (sequence of AgentRuns): from :func:`~torchrl_dceo.analysis.study_folder.read_study`.
        metric (str, optional): a column of the logs. Default: ``"eval_return"``.
        x (str, optional): the column along which. Default: ``"frames"``.

    Keyword Args:
        num_points (int, optional): how many points the grid has at most. Default: ``60``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.

    Examples:
        >>> from torchrl_dceo.analysis.sample_efficiency import sample_efficiency
        >>> from torchrl_dceo.analysis.study_folder import AgentRuns
        >>> seeds = {k: {"frames": [10.0, 20.0], "eval_return": [0.0, 0.5 + k / 4]} for k in (0, 1)}
        >>> curves = sample_efficiency([AgentRuns("dceo", seeds, 20)], repetitions=200)
        >>> curves.grid.tolist(), curves.agents["dceo"].over_seeds.iqm.tolist()
        ([10.0, 20.0], [0.0, 0.625])
    """
    logs = [run for agent in agents for run in agent.seeds.values()]
    grid = common_grid(logs, metric, x, num_points)
    curves = {}
    for agent in agents:
        runs = {seed: on_grid(run, metric, grid, x) for seed, run in agent.seeds.items()}
        if any(np.isfinite(curve).any() for curve in runs.values()):
            over_seeds = aggregate(np.array(list(runs.values())), repetitions=repetitions)
            curves[agent.name] = AgentCurve(runs, over_seeds)
    return SampleEfficiency(grid, curves)
