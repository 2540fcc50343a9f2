from __future__ import annotations

import numpy as np
import pytest

from torchrl_dceo.analysis.statistics.comparison import ALL_ENVIRONMENTS, AgentSummary
from torchrl_dceo.analysis.statistics.improvement import performance_profile, profiles_of_study


def test_the_profile_by_hand():
    scores = [[0.2, 0.4, 0.4, 1.0]]
    profile = performance_profile(scores, [0.0, 0.2, 0.39, 0.4, 0.99, 1.0], repetitions=50)
    assert profile.value.tolist() == [1.0, 0.75, 0.75, 0.25, 0.25, 0.0]  # above, not at


def test_the_band_by_hand():
    """Of {0, 1} drawn twice, 0, 1 or 2 are above ½ with probabilities ¼, ½, ¼."""
    wide = performance_profile([[0.0, 1.0]], [0.5])
    assert (wide.low[0], wide.high[0]) == (0.0, 1.0)
    narrow = performance_profile([[0.0, 1.0]], [0.5], confidence=0.4)
    assert (narrow.low[0], narrow.high[0]) == (0.5, 0.5)


def test_it_is_the_profile_of_rliable():
    library = pytest.importorskip("rliable.library")
    scores = np.random.default_rng(0).uniform(size=(6, 3))
    levels = np.linspace(0, 1, 11)
    ours = performance_profile(list(scores.T), levels, repetitions=10)
    theirs, _ = library.create_performance_profile({"a": scores}, levels, reps=10)
    assert ours.value.tolist() == pytest.approx(theirs["a"].tolist())


def test_environments_are_strata_and_count_the_same():
    """Two environments without spread of their own leave none, however many runs each has."""
    profile = performance_profile([[0.0] * 2, [1.0] * 6], [0.5])
    assert (profile.value[0], profile.low[0], profile.high[0]) == (0.5, 0.5, 0.5)


def test_one_run_has_no_band():
    profile = performance_profile([[0.7], [0.1, 0.2]], [0.5])
    assert profile.value[0] == 0.5 and np.isnan([profile.low[0], profile.high[0]]).all()


def test_the_profiles_of_a_study():
    def summary(environment, agent, values):
        return AgentSummary(environment, agent, len(values), 9, {"final_eval_return": values}, {})

    summaries = [
        summary("one", "dceo", [1.0, 0.5]),
        summary("one", "ddqn", [0.0, 0.25]),
        summary("two", "dceo", [0.75, 2.0]),
        summary("two", "rnd", []),
        summary("two", "counts", [float("nan")]),
    ]
    found = profiles_of_study(summaries, "final_eval_return", 20)
    assert {environment: list(agents) for environment, (_, agents) in found.items()} == {
        "one": ["dceo", "ddqn"],
        "two": ["dceo"],
        ALL_ENVIRONMENTS: ["dceo"],
    }
    levels, agents = found["one"]
    assert levels.tolist() == [0.0, 0.25, 0.5, 1.0]  # where it falls
    assert agents["ddqn"].value.tolist() == [0.5, 0.0, 0.0, 0.0]
    levels, agents = found[ALL_ENVIRONMENTS]
    assert levels.tolist() == [0.0, 0.5, 0.75, 1.0, 2.0]
    assert agents["dceo"].value.tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert profiles_of_study(summaries, "final_coverage", 20) == {}
