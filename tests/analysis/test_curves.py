from __future__ import annotations

import math

import pytest

from torchrl_dceo.analysis import draw_learning_curve, read_progress

LOG = """frames,phase,eps,train_return,eval_return,coverage,option_climb,option_climb_1
100,0,1.0,nan,,10,,
200,0,0.9,0.5,0.25,20,0.1,-0.2
300,1,0.8,1.0,,30,,
"""


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "progress.csv").write_text(LOG)
    return tmp_path


def lines(axes):
    return {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}


def test_the_log_is_read_as_numbers(run_dir):
    progress = read_progress(run_dir)
    assert progress["frames"] == [100, 200, 300] and progress["coverage"] == [10, 20, 30]
    assert math.isnan(progress["eval_return"][0]) and progress["eval_return"][1] == 0.25


def test_curves_have_the_points_of_the_log(run_dir):
    figure = draw_learning_curve(read_progress(run_dir), num_states=40)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Return", "Coverage", "Eigenfunctions and options", ""]  # last: ε's twin
    returns, coverage, learned, eps = figure.axes
    assert lines(returns)["evaluation"] == [[200, 0.25]]
    assert [[200, 0.5], [300, 1.0]] in lines(returns).values()  # as logged, behind the smoothed one
    assert [[100, 10], [200, 20], [300, 30]] in lines(coverage).values()
    assert coverage.texts[0].get_text() == "all 40 states"
    assert lines(learned)["options climb, random states"] == [[200, 0.1]]
    assert [[200, -0.2]] in lines(learned).values() and learned.get_ylim()[0] <= -0.2
    assert [[100, 1.0], [200, 0.9], [300, 0.8]] in lines(eps).values()
    assert eps.get_ylabel() == ""  # the legend names it
    assert "ε (right)" in [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_the_end_of_a_phase_is_marked(run_dir):
    returns = draw_learning_curve(read_progress(run_dir)).axes[0]
    assert [200, 200] in [list(line.get_xdata()) for line in returns.get_lines()]


def test_a_log_of_little_more_than_frames_is_drawn():
    figure = draw_learning_curve({"frames": [1.0, 2.0], "eps": [1.0, 1.0]})
    figure.canvas.draw()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Return", ""]


def test_negative_and_large_returns_stay_in_the_picture():
    figure = draw_learning_curve({"frames": [1.0, 2.0], "eval_return": [-3.0, 250.0]})
    low, high = figure.axes[0].get_ylim()
    assert low < -3 and high > 250


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not the log of a run"),
        ("name,age\nAda,36\n", "is not the log of a run"),
        ("frames,eps\n1,much\n", "holds 'much' in the column 'eps', which is no number"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, text, message):
    (tmp_path / "progress.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_progress(tmp_path)


def test_no_log_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no log at"):
        read_progress(tmp_path)
