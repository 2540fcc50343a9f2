from __future__ import annotations

import numpy as np
import pytest

from torchrl_dceo.analysis.statistics.comparison import AgentRuns
from torchrl_dceo.analysis.statistics.learning_speed import sample_efficiency


def run(values, frames=None):
    frames = frames or [10.0 * (i + 1) for i in range(len(values))]
    return {"frames": frames, "eval_return": values, "seconds": [f / 5 for f in frames]}


def test_agents_meet_on_one_grid():
    often = AgentRuns("dceo", {3: run([0.0, 0.2, 0.4, 0.6]), 7: run([0.0, 0.4, 0.8, 1.0])}, 40)
    seldom = AgentRuns("ddqn", {0: run([0.1, 0.3], [20.0, 40.0])}, 40)
    blind = AgentRuns("rnd", {0: {"frames": [10.0, 40.0]}}, 40)
    curves = sample_efficiency([often, seldom, blind], repetitions=500)
    assert curves.grid.tolist() == [20.0, 40.0] and list(curves.agents) == ["dceo", "ddqn"]
    dceo = curves.agents["dceo"]
    assert {seed: c.tolist() for seed, c in dceo.runs.items()} == {3: [0.2, 0.6], 7: [0.4, 1.0]}
    assert dceo.over_seeds.iqm.tolist() == pytest.approx([0.3, 0.8])
    assert dceo.over_seeds.low.tolist() == pytest.approx([0.2, 0.6])
    assert dceo.over_seeds.high.tolist() == pytest.approx([0.4, 1.0])
    assert dceo.over_seeds.std[1] == pytest.approx(np.sqrt(2 * 0.2**2))
    assert np.isnan(curves.agents["ddqn"].over_seeds.low).all()


def test_along_another_column_and_of_a_metric_that_nobody_has():
    agent = AgentRuns("dceo", {0: run([0.0, 1.0])}, 20)
    assert sample_efficiency([agent], x="seconds").grid.tolist() == [2.0, 4.0]
    nothing = sample_efficiency([agent], "coverage")
    assert not len(nothing.grid) and not nothing.agents


def test_an_unfinished_run_counts_as_far_as_it_has_come():
    agent = AgentRuns("dceo", {0: run([0.0, 0.5, 1.0]), 1: run([0.2])}, 30)
    over_seeds = sample_efficiency([agent], repetitions=50).agents["dceo"].over_seeds
    assert over_seeds.num_runs.tolist() == [2, 1, 1]
    assert over_seeds.iqm.tolist() == [0.1, 0.5, 1.0]
