"""A run that is solved may end before its time, and is resumed and compared as what it is."""

from __future__ import annotations

import csv
import math

import pytest
import torch
import yaml

from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis.statistics.comparison import collect_run, read_study, summarize
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer, train

FRAMES = {
    "learning_starts": 20,
    "log_period": 20,
    "eval_period": 40,
    "checkpoint_period": 40,
    "total_frames": 400,
    "replay_capacity": 1000,
    "progress": False,
    "draw": False,
}


def run(run_dir, returns=(), **settings):
    """A run whose evaluations are given, the last one again and again."""
    torch.manual_seed(0)
    env = make_env("S..G", seed=0)
    given = list(returns)

    class Script(Trainer):
        def _evaluation(self):
            place = self.counters.frames // 40 - 1
            return {"eval_return": given[min(place, len(given) - 1)]}

    config = {**FRAMES, **settings}
    config.pop("draw")
    resume = config.pop("resume", False)
    trainer = Script(
        make_agent("ddqn", env, batch_size=4), env, TrainConfig(**config), run_dir=run_dir
    )
    if resume:
        trainer.resume()
    return trainer.run()


def log(run_dir):
    with (run_dir / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_ends_after_so_many_evaluations_in_a_row(tmp_path):
    row = run(tmp_path / "run", [1.0, 0.5, 1.0, 1.0, 1.0], stop_after_solved=2)
    assert row["frames"] == 160  # at 120 and 160; the first one was not followed by another
    rows = log(tmp_path / "run")
    assert [r["stopped_early"] for r in rows if r["stopped_early"]] == ["1"] and rows[-1][
        "stopped_early"
    ]


def test_it_runs_to_its_end_without_the_setting_and_where_it_is_not_solved(tmp_path):
    assert run(tmp_path / "a", [1.0])["frames"] == 400
    assert run(tmp_path / "b", [0.9], stop_after_solved=1)["frames"] == 400
    assert run(tmp_path / "c", [0.9], stop_after_solved=1, solved_return=0.9)["frames"] == 40
    assert "stopped_early" not in log(tmp_path / "a")[0]


def test_a_resumed_run_counts_on(tmp_path):
    """Cut after one of three evaluations, it ends where the whole one does; a stopped one stays stopped, or goes on."""
    run(tmp_path / "cut", [1.0], stop_after_solved=3, total_frames=60)
    row = run(tmp_path / "cut", [1.0], stop_after_solved=3, resume=True)
    whole = run(tmp_path / "whole", [1.0], stop_after_solved=3)
    assert row["frames"] == whole["frames"] == 120
    assert row["loss_main"] == whole["loss_main"]
    assert run(tmp_path / "cut", [1.0], stop_after_solved=3, resume=True)["frames"] == 120
    assert len(log(tmp_path / "cut")) == 6
    # Without the setting it is the run that was never stopped.
    row = run(tmp_path / "cut", [1.0], resume=True)
    assert row["frames"] == 400
    assert row["loss_main"] == run(tmp_path / "plain", [1.0])["loss_main"]


def test_a_changing_environment_is_refused():
    env = make_env("NineRoomsGoalSwitch", room_size=3, seed=0)
    with pytest.raises(ValueError, match="before the environment changes: leave it out"):
        train(make_agent("ddqn", env), env, stop_after_solved=3, **FRAMES)


def stored(folder, seed, rows, **config):
    """A run directory with a log."""
    folder.mkdir(parents=True)
    settings = {"agent": {"name": "ddqn"}, "seed": seed, "total_frames": 400, **config}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    with (folder / "progress.csv").open("w", newline="") as file:
        writer = csv.DictWriter(
            file, ["frames", "updates", "eval_return", "train_return", "coverage", "stopped_early"]
        )
        writer.writeheader()
        writer.writerows(rows)


def test_seeds_of_an_environment_with_the_seed_of_its_run_are_compared(tmp_path):
    """3D Four Rooms draws its start from the seed of the run; another start is another environment."""
    rows = [{"frames": 400, "updates": 9, "eval_return": 1.0, "train_return": 1.0, "coverage": 3}]
    for name, seed, start_seed in (("a", 1, 1), ("b", 2, 2), ("c", 3, 1)):
        stored(tmp_path / name, seed, rows, env={"name": "3D", "start_seed": start_seed})
    for name in "ab":
        collect_run(tmp_path / name, tmp_path / "study" / "rooms")
    assert sorted(read_study(tmp_path / "study")["rooms"][0].seeds) == [1, 2]
    with pytest.raises(ValueError, match=r"env.start_seed is 1 and was 'the seed of the run'"):
        collect_run(tmp_path / "c", tmp_path / "study" / "rooms")


def test_comparisons_hold_a_stopped_run_at_its_last_value(tmp_path):
    """Against the run that it would have been, had it gone on as it was."""
    curve = [(40 * i, 0.0 if i < 3 else 1.0) for i in range(1, 11)]
    rows = [
        {"frames": f, "updates": f, "eval_return": r, "train_return": r, "coverage": 3}
        for f, r in curve
    ]
    stored(tmp_path / "runs" / "whole", 0, rows)
    short = [dict(row) for row in rows[:5]]
    short[-1]["stopped_early"] = 1
    stored(tmp_path / "runs" / "stopped", 1, short)
    stored(tmp_path / "runs" / "killed", 2, rows[:5])
    for name in ("whole", "stopped", "killed"):
        collect_run(tmp_path / "runs" / name, tmp_path / "study" / "maze")
    (agent,) = read_study(tmp_path / "study")["maze"]
    assert sorted(agent.finished) == [0, 1]
    whole, stopped = agent.seeds[0], agent.seeds[1]
    assert stopped["frames"] == whole["frames"]
    for column in ("eval_return", "train_return", "coverage"):
        assert stopped[column] == whole[column]
    assert stopped["updates"][-1] == 200  # no more were made
    (summary,) = summarize(
        {"maze": [agent]}, ("eval_return", "train_return", "coverage"), repetitions=10
    )
    for name, values in summary.measures.items():
        assert values[0] == values[1] or all(map(math.isnan, values)), name
    assert (summary.finished, summary.started) == (2, 3)
