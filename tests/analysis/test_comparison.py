from __future__ import annotations

import math

import numpy as np
import pytest

from torchrl_dceo.analysis.statistics.comparison import (
    ALL_ENVIRONMENTS,
    AgentRuns,
    area_under_curve,
    final_value,
    frames_to,
    summarize,
)

NAN = float("nan")


def run(eval_return, train_return=None, frames=None):
    frames = frames or [100.0 * (i + 1) for i in range(len(eval_return))]
    train_return = train_return or [0.0] * len(eval_return)
    return {"frames": frames, "eval_return": eval_return, "train_return": train_return}


def test_the_final_value_is_over_the_last_tenth():
    tail = run([0.0] * 17 + [5.0, 0.25, 0.75])  # 1800 is not later than 0.9 · 2000
    assert final_value(tail, "eval_return") == 0.5
    assert final_value(run([0.5, NAN, NAN]), "eval_return") == 0.5
    assert math.isnan(final_value(run([0.5]), "coverage"))


def test_the_area_is_by_trapezoids():
    # 0–100: 0 · 100; 100–300: 0.5 · 200; 300–400: 1 · 100.
    assert area_under_curve(run([0.0, NAN, 1.0, NAN]), "eval_return") == pytest.approx(200 / 400)


def test_frames_to_a_threshold():
    example = run([NAN, 0.5, 1.0], train_return=[NAN, 0.0, 0.1])
    assert frames_to(example, "eval_return", 0.5) == 200
    assert frames_to(example, "eval_return", 0.5, strict=True) == 300
    assert frames_to(example, "train_return", 0.0, strict=True) == 300
    assert frames_to(example, "coverage", 1.0) == math.inf


def test_a_summary_is_over_finished_runs():
    seeds = {
        0: run([0.0, 0.6], [0.0, 0.5]),
        1: run([0.0, 0.2]),
        2: run([1.0], [1.0]),  # not at its end
    }
    (summary,) = summarize({"Maze": [AgentRuns("dceo", seeds, 200)]}, ["eval_return"], 50)
    assert (summary.finished, summary.started) == (2, 3)
    assert summary.measures["final_eval_return"] == [0.6, 0.2]
    assert summary.aggregates["final_eval_return"].iqm[0] == pytest.approx(0.4)
    assert summary.measures["frames_to_goal"] == [200, math.inf]
    assert "frames_to_goal" not in summary.aggregates  # one never got there: no mean


def test_environments_are_put_together_where_they_have_equally_many_runs():
    def agents(*returns):
        seeds = {i: run([value]) for i, value in enumerate(returns)}
        return AgentRuns("dceo", seeds, 100)

    summaries = summarize({"a": [agents(0.0, 0.2)], "b": [agents(0.8, 1.0)]}, ["eval_return"], 50)
    assert [summary.environment for summary in summaries] == ["a", "b", ALL_ENVIRONMENTS]
    assert summaries[2].aggregates["final_eval_return"].iqm[0] == pytest.approx(0.5)
    assert summaries[2].finished == 4
    uneven = summarize({"a": [agents(0.0, 0.2)], "b": [agents(1.0)]}, ["eval_return"], 50)
    assert [summary.environment for summary in uneven] == ["a", "b"]


def test_an_agent_without_finished_runs_has_no_numbers():
    (summary,) = summarize({"w": [AgentRuns("dceo", {0: run([1.0])}, 500)]}, ["eval_return"])
    assert summary.finished == 0 and not summary.aggregates
    assert np.all([not values for values in summary.measures.values()])
