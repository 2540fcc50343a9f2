"""The command, its figures and its tables."""

from __future__ import annotations

import csv

import pytest

from torchrl_dceo.analysis.figures import agent_colours
from torchrl_dceo.analysis.statistics.comparison import AgentRuns, read_study, summarize
from torchrl_dceo.analysis.statistics.figures import compare, draw_statistics
from torchrl_dceo.analysis.statistics.improvement import improvements
from torchrl_dceo.analysis.statistics.tables import draw_comparison
from torchrl_dceo.cli.runs import compare_runs as main


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["frames,phase,train_return,eval_return,coverage"]
    path.write_text("\n".join([*lines, *rows]) + "\n")


@pytest.fixture
def study(tmp_path):
    rows = ["10000,0,0.0,,5", "20000,0,nan,0.25,8", "30000,1,0.5,,9", "40000,1,0.5,{},9"]
    for seed, last in enumerate((0.75, 0.85, 0.95)):
        log = [row.format(last) for row in rows]
        write(tmp_path / "NineRooms" / "dceo_two_phase" / f"seed_{seed}.csv", log)
    zero = [f"{f},0,0.0,0.0,4" for f in (10000, 20000, 30000, 40000)]
    write(tmp_path / "NineRooms" / "ddqn" / "seed_0.csv", zero)
    write(tmp_path / "NineRooms" / "ddqn" / "seed_1.csv", zero[:2])
    write(tmp_path / "Maze" / "own" / "seed_0.csv", zero)
    return tmp_path


def test_the_command_writes_figures_and_tables(study, capsys):
    assert main([str(study), "--repetitions", "1000"]) == 0
    written = {path.name for path in study.iterdir() if path.is_file()}
    assert written == {
        "Maze.png", "NineRooms.png", "statistics.png",
        "summary.csv", "improvement.csv", "summary.md",
    }  # fmt: skip
    table = (study / "summary.md").read_text()
    assert (
        "| dceo_two_phase | 3 | 0.85 [0.75, 0.95] | 0.85 ± 0.10 | 0.40 [0.38, 0.42] "
        "| 30k (3/3) | 40k (3/3) | 9 |"
    ) in table
    assert (
        "| ddqn | 1 of 2 finished | 0.00 | 0.00 | 0.00 | never (0/1) | never (0/1) | 4 |" in table
    )
    assert table in capsys.readouterr().out
    with (study / "summary.csv").open() as file:
        rows = {(r["environment"], r["agent"], r["measure"]): r for r in csv.DictReader(file)}
    row = rows["NineRooms", "dceo_two_phase", "final_eval_return"]
    assert (row["runs"], row["iqm"], row["low"], row["high"], row["std"]) == (
        "3", "0.85", "0.75", "0.95", "0.1"
    )  # fmt: skip
    assert rows["NineRooms", "ddqn", "frames_to_half"]["reached"] == "0"


def test_probabilities_of_improvement_are_told(study):
    compare(study, repetitions=50)
    table = (study / "summary.md").read_text()
    assert "### Probability of improvement: NineRooms, final return" in table
    assert "| dceo_two_phase |  | 1.00 |" in table and "| ddqn | 0.00 |  |" in table
    with (study / "improvement.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["environment"] for row in rows} == {"NineRooms"}  # Maze has one agent
    (row,) = (r for r in rows if r["agent"] == "ddqn" and r["measure"] == "frames_to_goal")
    # ddqn has one finished run: no interval.
    assert [row[name] for name in ("over", "runs", "runs_over", "probability", "low", "high")] == [
        "dceo_two_phase", "1", "3", "0", "", ""
    ]  # fmt: skip


def test_the_statistics_figure_has_a_row_an_environment(study):
    agents = read_study(study)
    summaries = summarize(agents, ["eval_return"], 50)
    pairs = improvements(summaries, ["eval_return"], 50)
    colours = agent_colours(["dceo_two_phase", "ddqn", "own"])
    figure = draw_statistics(summaries, pairs, "eval_return", 50, colours)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        "Maze: final return", "Maze: mean return over the run", "",
        "NineRooms: final return", "NineRooms: mean return over the run", "NineRooms: improvement",
    ]  # fmt: skip
    profile = {line.get_label(): line for line in figure.axes[3].get_lines()}["dceo_two_phase"]
    assert profile.get_xydata().tolist() == [
        [0, 1], [0.75, pytest.approx(2 / 3)], [0.85, pytest.approx(1 / 3)], [0.95, 0], [1, 0]
    ]  # fmt: skip
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["dceo_two_phase", "ddqn", "own"]


def test_without_finished_runs_there_are_no_statistics():
    assert draw_statistics([], [], "eval_return", 50, {}) is None


def test_the_figure_shows_mean_band_runs_and_the_end_of_discovery(study):
    agents = read_study(study)["NineRooms"]
    figure = draw_comparison(
        "NineRooms", agents, ["eval_return", "coverage", "missing"], "frames", 50
    )
    greedy, coverage = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Greedy return", "Coverage"]
    lines = {line.get_label(): line for line in greedy.get_lines()}
    # In the rows of the log that has them least often.
    assert lines["dceo_two_phase (3 seeds)"].get_xydata().tolist() == [[20000, 0.25], [40000, 0.85]]
    colour = agent_colours(["dceo_two_phase"])["dceo_two_phase"]
    own = [line for line in greedy.get_lines() if line.get_color() == colour]
    assert len(own) == 3 + 1 + 1  # runs, mean, the tick
    assert [list(line.get_xdata()) for line in own if line.get_marker() == "^"] == [[20000]]
    assert len(greedy.collections) == 2 and len(coverage.collections) == 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "dceo_two_phase (3 seeds)", "ddqn (2 seeds)", "end of discovery"
    ]  # fmt: skip


def test_the_figure_says_how_large_the_environment_was(tmp_path):
    for agent in ("dceo", "ddqn"):
        folder = tmp_path / "small" / agent
        folder.mkdir(parents=True)
        (folder / "seed_0.csv").write_text("frames,eval_return\n10,0.5\n20,1.0\n")
        (folder / "config.yaml").write_text(
            f"agent: {{name: {agent}}}\nseed: 0\ntotal_frames: 20\n"
            "env: {name: NineRooms, room_size: 3, slip: 0.15, goal_visible: true, max_steps: 100}\n"
        )
    agents = read_study(tmp_path)["small"]
    figure = draw_comparison("small", agents, ["eval_return"], repetitions=20)
    assert figure.get_suptitle() == "small\nNineRooms, room_size 3, max_steps 100"


def test_a_figure_of_nothing_is_refused():
    agent = AgentRuns("dceo", {0: {"frames": [1.0]}}, 1)
    with pytest.raises(ValueError, match="no run in Maze has any of eval_return along frames"):
        draw_comparison("Maze", [agent], ["eval_return"])


def test_colours_are_those_of_the_agents():
    alone = agent_colours(["ddqn"])
    together = agent_colours(["mine", "ddqn", "dceo", "yours"])
    assert together["ddqn"] == alone["ddqn"] and list(together)[:2] == ["dceo", "ddqn"]
    assert len(set(together.values())) == 4


def test_runs_are_collected(tmp_path, capsys):
    for seed in (0, 1):
        run = tmp_path / f"run_{seed}"
        write(run / "progress.csv", ["1000,0,0.0,0.5,3"])
        (run / "config.yaml").write_text(
            f"agent: {{name: dceo}}\nseed: {seed}\ntotal_frames: 1000\n"
        )
    runs, out = [str(tmp_path / "run_0"), str(tmp_path / "run_1")], str(tmp_path / "study" / "Maze")
    assert main(["collect", *runs, runs[0], "--out", out]) == 2
    assert "run_0 are of one agent and seed" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()
    assert main(["collect", *runs, "--out", out]) == 0
    assert [path.name for path in compare(tmp_path / "study", repetitions=50)] == [
        "Maze.png", "statistics.png", "summary.csv", "summary.md"
    ]  # fmt: skip
    (agent,) = read_study(tmp_path / "study")["Maze"]
    assert list(agent.finished) == [0, 1]


def test_what_cannot_be_read_is_said_in_one_sentence(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "holds no logs as" in capsys.readouterr().err


def test_a_study_of_coverage_is_named_so_and_its_legend_fits(study):
    compare(study, metrics=["coverage"], repetitions=50)
    table = (study / "summary.md").read_text()
    assert "Probability of improvement: NineRooms, final coverage" in table
    assert "final return" not in table.split("### Probability")[1]
    first = read_study(study)["NineRooms"][0]
    agents = [
        AgentRuns(name, first.seeds, first.total_frames)
        for name in ("dceo", "counts", "ez_greedy", "random_walk")
    ]
    figure = draw_comparison("NineRooms", agents, ["coverage"], repetitions=50)
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width
