from __future__ import annotations

import math

import numpy as np
import pytest

from torchrl_dceo.analysis.statistics.comparison import ALL_ENVIRONMENTS, AgentSummary
from torchrl_dceo.analysis.statistics.improvement import (
    improvements,
    pairwise_improvement,
    share_better,
)

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("scores", "others", "expected"),
    [
        ([1.0], [0.0], 1.0),
        ([0.0], [1.0], 0.0),
        ([0.5], [0.5], 0.5),
        ([1.0, 0.0], [0.5], 0.5),
        ([1.0, 1.0, 0.0], [1.0, 0.5], (0.5 + 1 + 0.5 + 1 + 0 + 0) / 6),
        ([-INF, -2.0], [-INF, -1.0], (0.5 + 0 + 1 + 0) / 4),  # never and never are a tie
    ],
)
def test_share_better_by_hand(scores, others, expected):
    assert float(share_better(scores, others)) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_probability_of_rliable(seed):
    """Over environments, with ties: scores are of a few values."""
    metrics = pytest.importorskip("rliable.metrics")
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 4, (5, 3)) / 3, rng.integers(0, 4, (7, 3)) / 3
    ours = pairwise_improvement(
        {
            "x": [environment[:, None] for environment in x.T],
            "y": [environment[:, None] for environment in y.T],
        },
        repetitions=10,
    )
    assert ours["x", "y"].value[0] == pytest.approx(metrics.probability_of_improvement(x, y))


def test_environments_count_the_same_whatever_their_runs():
    scores = {"a": [[[1.0]] * 2, [[0.0]] * 6], "b": [[[0.0]] * 2, [[1.0]] * 3]}
    assert pairwise_improvement(scores, repetitions=20)["a", "b"].value[0] == 0.5


def test_the_interval_by_hand():
    """{0, 2} against 1, 1: the drawn share is 0, ½, 1 with probabilities ¼, ½, ¼."""
    scores = {"a": [[[0.0], [2.0]]], "b": [[[1.0], [1.0]]]}
    wide = pairwise_improvement(scores)["a", "b"]
    assert (wide.value[0], wide.low[0], wide.high[0]) == (0.5, 0.0, 1.0)
    narrow = pairwise_improvement(scores, confidence=0.4)["a", "b"]
    assert (narrow.low[0], narrow.high[0]) == (0.5, 0.5)


def test_the_other_way_round_is_the_rest():
    rng = np.random.default_rng(0)
    scores = {name: [rng.normal(size=(6, 2))] for name in "abc"}
    pairs = pairwise_improvement(scores, repetitions=200)
    assert set(pairs) == {(a, b) for a in "abc" for b in "abc" if a != b}
    for (a, b), pair in pairs.items():
        back = pairs[b, a]
        assert pair.value.tolist() == pytest.approx((1 - back.value).tolist())
        assert pair.low.tolist() == pytest.approx((1 - back.high).tolist())
        assert (pair.low <= pair.value).all() and (pair.value <= pair.high).all()


def test_one_run_has_no_interval():
    scores = {"a": [[[1.0]]], "b": [[[0.0], [0.5]]], "c": [[[0.2], [0.3]]]}
    pairs = pairwise_improvement(scores, repetitions=20)
    assert pairs["a", "b"].value[0] == 1 and np.isnan(pairs["a", "b"].low[0])
    assert np.isfinite(pairs["b", "c"].low[0])


def summary(environment, agent, final, goal, area=None):
    measures = {
        "final_eval_return": final,
        "area_eval_return": area or final,
        "final_coverage": [10.0 * value for value in final],
        "area_coverage": [NAN] * len(final),
        "frames_to_goal": goal,
    }
    return AgentSummary(environment, agent, len(final), len(final), measures, {})


def test_a_study_is_compared_in_every_environment_and_over_all():
    summaries = [
        summary("one", "dceo", [1.0, 1.0], [10.0, 20.0]),
        summary("one", "ddqn", [0.0, 1.0], [15.0, INF]),
        summary("two", "dceo", [0.0, 0.0], [INF, INF]),
        summary("two", "ddqn", [0.5], [30.0]),
        summary("two", "rnd", [], []),
    ]
    pairs = improvements(summaries, ["eval_return", "coverage"], 50)
    found = {(p.environment, p.measure): p for p in pairs if (p.agent, p.over) == ("dceo", "ddqn")}
    assert found["one", "final_eval_return"].probability == 0.75  # a win and a tie
    assert found["one", "frames_to_goal"].probability == 0.75  # 20 is later than 15
    assert found["two", "frames_to_goal"].probability == 0.0
    assert found[ALL_ENVIRONMENTS, "final_eval_return"].probability == (0.75 + 0.0) / 2
    assert (
        found[ALL_ENVIRONMENTS, "final_eval_return"].runs,
        found["two", "final_coverage"].runs,
    ) == (
        4,
        2,
    )
    # A measure with holes is left out; states and frames of different environments do not mix; no runs, no rows.
    assert ("one", "area_coverage") not in found
    assert (ALL_ENVIRONMENTS, "final_coverage") not in found and (
        ALL_ENVIRONMENTS,
        "frames_to_goal",
    ) not in found
    assert all("rnd" not in (p.agent, p.over) for p in pairs)


def test_one_agent_has_nobody_to_beat():
    assert improvements([summary("one", "dceo", [1.0, 0.5], [3.0, 4.0])], ["eval_return"]) == []


def test_one_run_of_each_agent_is_no_probability():
    alone = [
        summary("one", "dceo", [1.0], [10.0]),
        summary("one", "ddqn", [0.0], [INF]),
    ]
    assert improvements(alone, ["eval_return"], 50) == []
    assert improvements(
        [*alone, summary("one", "rnd", [0.0, 1.0], [1.0, 2.0])], ["eval_return"], 50
    )
