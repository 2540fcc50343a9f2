from __future__ import annotations

import numpy as np
import pytest

from torchrl_dceo.analysis.statistics import (
    aggregate,
    common_grid,
    interquartile_mean,
    on_grid,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([3.0], 3.0),
        ([0.0, 0.0, 3.0], 1.0),  # a quarter of three is no run
        ([8.0, 1.0, 0.0, 3.0], 2.0),  # without 0 and 8
        ([0.0, 1.0, 2.0, 6.0, 50.0], 3.0),
        ([-9.0, -9.0, 1.0, 2.0, 3.0, 4.0, 70.0, 80.0], 2.5),  # two at either end
    ],
)
def test_interquartile_mean_by_hand(scores, expected):
    assert float(interquartile_mean(scores)) == expected


@pytest.mark.parametrize("num_runs", range(1, 14))
def test_interquartile_mean_is_that_of_rliable(num_runs):
    metrics = pytest.importorskip("rliable.metrics")
    scores = np.random.default_rng(num_runs).normal(size=(num_runs, 1))
    assert float(interquartile_mean(scores)[0]) == pytest.approx(metrics.aggregate_iqm(scores))


def test_mean_and_std_by_hand():
    result = aggregate([[1.0], [2.0], [6.0]], repetitions=50)
    assert result.mean[0] == 3 and result.std[0] == pytest.approx(np.sqrt((4 + 1 + 9) / 2))
    assert result.iqm[0] == 3 and result.num_runs[0] == 3


def test_the_interval_of_two_runs_by_hand():
    """Resampled means of {0, 1} are 0, ½, 1 with probabilities ¼, ½, ¼: any central 40 % is ½, any 95 % is all."""
    wide = aggregate([[0.0], [1.0]], repetitions=2000)
    assert (wide.low[0], wide.high[0]) == (0.0, 1.0)
    narrow = aggregate([[0.0], [1.0]], repetitions=2000, confidence=0.4)
    assert (narrow.low[0], narrow.high[0]) == (0.5, 0.5)


def test_the_interval_has_the_coverage_of_the_bootstrap():
    """For many normal runs it is the mean ± 1.96 standard errors, up to what trimming costs (about 9 %)."""
    scores = np.random.default_rng(0).normal(size=(200, 1))
    result = aggregate(scores, repetitions=2000)
    half = (result.high[0] - result.low[0]) / 2
    assert half == pytest.approx(1.96 * 1.09 / np.sqrt(200), rel=0.15)
    assert result.low[0] < result.iqm[0] < result.high[0]


def test_environments_are_strata():
    """Runs are drawn within each environment: two environments far apart, each without spread, give no spread."""
    scores = np.array([[0.0, 10.0]] * 4)[:, :, None]
    stratified = aggregate(scores, repetitions=200)
    assert (stratified.low[0], stratified.high[0]) == (5.0, 5.0)
    mixed = aggregate(scores.reshape(8, 1), repetitions=200)
    assert mixed.low[0] < 5.0 < mixed.high[0]


def test_points_are_of_the_runs_that_have_them():
    result = aggregate([[0.0, NAN, NAN], [1.0, 4.0, NAN], [2.0, 6.0, NAN]], repetitions=200)
    assert result.num_runs.tolist() == [3, 2, 0]
    assert result.iqm[:2].tolist() == [1.0, 5.0] and np.isnan(result.iqm[2])
    assert (result.low[1], result.high[1]) == (4.0, 6.0)


def test_one_run_has_no_interval():
    result = aggregate([[0.5]])
    assert result.iqm[0] == 0.5 and np.isnan([result.low[0], result.high[0], result.std[0]]).all()


def test_the_same_seed_draws_the_same_and_leaves_the_global_generator_alone():
    scores = np.random.default_rng(0).normal(size=(6, 3))
    np.random.seed(7)
    expected = np.random.rand()
    np.random.seed(7)
    first, second = aggregate(scores, repetitions=50), aggregate(scores, repetitions=50)
    assert np.random.rand() == expected
    assert first.low.tolist() == second.low.tolist()
    assert first.low.tolist() != aggregate(scores, repetitions=50, seed=1).low.tolist()


@pytest.mark.parametrize("scores", [[1.0, 2.0], np.zeros((0, 3)), [[[1.0], [NAN]]]])
def test_other_shapes_and_holes_are_refused(scores):
    with pytest.raises(ValueError, match="scores"):
        aggregate(scores)


def log(frames, **columns):
    return {"frames": [float(f) for f in frames], **columns}


def test_the_grid_has_the_step_of_the_rarest_rows_and_the_end_of_the_longest_run():
    every_row = log(range(5, 55, 5), eval_return=[0.0] * 10)
    every_other = log(range(5, 85, 5), eval_return=[NAN, 0.0] * 8)
    assert common_grid([every_row, every_other], "eval_return").tolist() == [
        10, 20, 30, 40, 50, 60, 70, 80
    ]  # fmt: skip
    # At most so many points, at multiples of the step.
    grid = common_grid([every_row, every_other], "eval_return", num_points=3)
    assert grid.tolist() == [30, 60, 90]
    assert len(common_grid([every_row], "coverage")) == 0


def test_metrics_are_interpolated_and_carried_to_the_end_of_the_run():
    run = log([10, 20, 30, 40, 50], eval_return=[NAN, 0.0, NAN, 1.0, NAN])
    grid = np.arange(10.0, 80.0, 10.0)
    curve = on_grid(run, "eval_return", grid)
    assert np.isnan(curve[0]) and curve[1:5].tolist() == [0.0, 0.5, 1.0, 1.0]
    assert np.isnan(curve[5:]).all()


def test_a_run_that_ends_within_half_a_cell_has_the_point():
    run = log([10, 20, 29], coverage=[1.0, 2.0, 3.0])
    assert on_grid(run, "coverage", np.array([10.0, 20.0, 30.0])).tolist() == [1.0, 2.0, 3.0]


def test_training_returns_are_averaged_over_cells_and_carried_over_empty_ones():
    run = log(
        [5, 10, 15, 20, 25, 30, 35, 40], train_return=[NAN, NAN, 1.0, 0.0, NAN, NAN, NAN, 0.75]
    )
    curve = on_grid(run, "train_return", np.array([10.0, 20.0, 30.0, 40.0, 50.0]))
    assert np.isnan(curve[0]) and curve[1:4].tolist() == [0.5, 0.5, 0.75] and np.isnan(curve[4])


def test_runs_that_log_at_different_rows_meet_on_the_grid():
    often = log(range(1, 41), coverage=[float(f) for f in range(1, 41)])
    seldom = log([8, 16, 24, 32, 40], coverage=[8.0, 16.0, 24.0, 32.0, 40.0])
    grid = common_grid([often, seldom], "coverage")
    assert on_grid(often, "coverage", grid).tolist() == on_grid(seldom, "coverage", grid).tolist()


def test_curves_along_another_column():
    run = log([10, 20], seconds=[1.0, 3.0], coverage=[5.0, 9.0])
    assert on_grid(run, "coverage", np.array([1.0, 2.0, 3.0]), "seconds").tolist() == [5, 7, 9]
