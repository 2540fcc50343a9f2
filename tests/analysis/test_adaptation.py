"""Adaptation to a change, on logs made by hand."""

from __future__ import annotations

import csv
import math

import pytest

from torchrl_dceo.analysis import adaptations, draw_learning_curve, read_progress
from torchrl_dceo.analysis.statistics.comparison import read_study
from torchrl_dceo.analysis.statistics.figures import compare

NAN = math.nan


def run(returns, maps, **columns):
    """A log with a row every 10 frames."""
    frames = [10.0 * (i + 1) for i in range(len(returns))]
    return {"frames": frames, "map": [float(m) for m in maps], "eval_return": returns, **columns}


def test_a_run_that_recovers():
    # The row at the frame of the change (50) is the last of the old stretch.
    returns = [0.0, 0.2, 0.6, 0.7, 0.9, 0.0, 0.2, 0.4, 0.5, 0.6]
    train = [0.0, 0.1, 0.5, 0.5, 0.5, 0.0, 0.0, 0.1, 0.5, 0.5]
    (change,) = adaptations(run(returns, [0] * 5 + [1] * 5, train_return=train))
    assert change.switch == 50
    assert change.before == 0.9  # after frame 40: one row
    assert change.after == 0.6
    assert change.recovery == 40  # 0.5 at frame 90 is the first at least 0.45
    assert change.goal_again == 30
    assert change.train_after == 0.5
    assert change.area_after == pytest.approx((0.1 + 0.3 + 0.45 + 0.55) / 4)
    assert math.isnan(change.overlap) and math.isnan(change.reused)


def test_exactly_half_counts_and_less_does_not():
    (change,) = adaptations(run([0.8, 0.8, 0.3, 0.4], [0, 0, 1, 1]))
    assert change.recovery == 20
    (change,) = adaptations(run([0.8, 0.8, 0.3, 0.39], [0, 0, 1, 1]))
    assert change.recovery == math.inf


@pytest.mark.parametrize("before", [0.0, -0.5])
def test_nothing_to_recover(before):
    (change,) = adaptations(run([before] * 2 + [1.0] * 2, [0, 0, 1, 1]))
    assert math.isnan(change.recovery) and change.after == 1.0


def test_rows_without_an_evaluation_are_passed_over():
    (change,) = adaptations(run([NAN, 0.4, 0.8, NAN, NAN, 0.5], [0, 0, 0, 1, 1, 1]))
    # No evaluation in the last fifth of the stretch: the last one before it.
    assert (change.switch, change.before, change.recovery) == (30, 0.8, 30)
    assert change.area_after == 0.5


def test_two_changes_are_measured_each_in_its_own_stretch():
    first, second = adaptations(run([1.0, 1.0, 0.0, 0.6, 0.0, 0.4], [0, 0, 1, 1, 2, 2]))
    assert (first.switch, first.before, first.after, first.recovery) == (20, 1.0, 0.6, 20)
    assert (second.switch, second.before, second.recovery) == (40, 0.6, 20)


def test_a_run_without_a_change():
    assert adaptations(run([0.0, 1.0], [0, 0])) == []
    assert adaptations({"frames": [10.0], "eval_return": [1.0]}) == []


def test_options_used_before_and_after():
    starts = {
        "option_starts_1": [2.0, 2.0, 4.0, 0.0],
        "option_starts_2": [2.0, 2.0, 0.0, 0.0],
        "option_starts_3": [0.0, 0.0, 2.0, 2.0],
        "option_starts": [9.0] * 4,  # the sum is no option
    }
    (change,) = adaptations(run([1.0] * 4, [0, 0, 1, 1], **starts))
    assert change.overlap == 0.5  # (1/2, 1/2, 0) and (1/2, 0, 1/2)
    assert change.reused == 0.5  # of options 1 and 2, the first


def write(path, progress):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(progress)
        writer.writerows(zip(*progress.values(), strict=True))


def test_the_comparison_has_the_table_and_the_line(tmp_path):
    """A study of two agents, of which only one comes back."""
    maps = [0] * 4 + [1] * 4
    train = {"train_return": [0.0, 0.5, 0.5, 0.5, 0.0, 0.5, 0.5, 0.5]}
    back, lost = [0.0, 1.0, 1.0, 1.0, 0.0, 0.5, 0.9, 0.9], [0.0, 0.0, 0.8, 0.8] + [0.0] * 4
    for seed in range(2):
        write(tmp_path / "environment" / "dceo" / f"seed_{seed}.csv", run(back, maps, **train))
        write(tmp_path / "environment" / "ddqn" / f"seed_{seed}.csv", run(lost, maps, **train))
    assert read_study(tmp_path)["environment"][0].seeds[0]["map"] == [float(m) for m in maps]
    paths = {path.name: path for path in compare(tmp_path, repetitions=20)}
    summary = paths["summary.md"].read_text()
    assert "| dceo | 1.00 | 0.90 | 0.62 | 0.50 | 0k (2/2) | 0k (2/2) | – | – |" in summary
    assert "| ddqn | 0.80 | 0.00 | 0.00 | 0.50 | never (0/2) | 0k (2/2) | – | – |" in summary
    rows = list(csv.DictReader(paths["summary.csv"].open()))
    recovery = {row["agent"]: row for row in rows if row["measure"] == "switch_recovery"}
    assert recovery["dceo"]["iqm"] == "20" and recovery["dceo"]["reached"] == "2"
    assert recovery["ddqn"]["iqm"] == "" and recovery["ddqn"]["reached"] == "0"


@pytest.mark.parametrize(("maps", "places"), [([0, 0, 1], [20.0]), ([0, 0, 0], [])])
def test_the_learning_curve_marks_the_switch(tmp_path, maps, places):
    write(tmp_path / "progress.csv", run([0.0, 1.0, 0.5], maps))
    figure = draw_learning_curve(read_progress(tmp_path))
    (axes,) = figure.axes
    upright = [line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1]
    assert upright == places
    assert [text.get_text() for text in axes.texts] == ["switch"] * len(places)


def test_the_training_curve_is_not_smoothed_across_a_switch(tmp_path):
    train = [1.0] * 20 + [0.0] * 20
    write(tmp_path / "progress.csv", run(train, [0] * 20 + [1] * 20, train_return=train))
    (axes,) = draw_learning_curve(read_progress(tmp_path)).axes
    (smooth,) = [line for line in axes.lines if line.get_label() == "training"]
    assert list(smooth.get_ydata()) == train
