from __future__ import annotations

import pytest

from torchrl_dceo.analysis import read_progress
from torchrl_dceo.analysis.statistics.comparison import collect_run, read_study

CONFIG = """total_frames: {total}
seed: {seed}
progress: {progress}
agent: {{name: dceo, lr: {lr}}}
env: {{name: NineRooms}}
"""


def make_run(folder, seed=0, rows=3, lr=0.0005, progress="true", total=3000):
    folder.mkdir(parents=True)
    folder.joinpath("config.yaml").write_text(
        CONFIG.format(seed=seed, lr=lr, progress=progress, total=total)
    )
    lines = ["frames,updates,train_return,eval_return,option_value,loss_main,seconds"]
    for i in range(1, rows + 1):
        greedy = "" if i % 2 else f"{i / 7}"
        lines.append(f"{1000 * i},{i},{i / rows},{greedy},0.123456789,{i / 3},{i}.25")
    folder.joinpath("progress.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_log_is_copied_with_the_columns_that_matter(tmp_path):
    path = collect_run(make_run(tmp_path / "run", seed=4), tmp_path / "study" / "NineRooms")
    assert path == tmp_path / "study" / "NineRooms" / "dceo" / "seed_4.csv"
    assert path.read_text().splitlines()[:3] == [
        "frames,updates,train_return,eval_return,loss_main,seconds",
        "1000,1,0.3333,,0.3333,1",
        "2000,2,0.6667,0.2857,0.6667,2",
    ]
    assert (path.parent / "config.yaml").is_file()


def test_a_long_log_is_merged_until_it_is_small(tmp_path):
    path = collect_run(make_run(tmp_path / "run", rows=5000), tmp_path / "study" / "w")
    assert path.stat().st_size <= 40_000
    merged = read_progress(path)
    step = int(merged["frames"][0] // 1000)
    assert step > 1 and merged["frames"][-1] == 5_000_000
    rows = range(1, step + 1)
    assert merged["train_return"][0] == pytest.approx(sum(rows) / step / 5000, rel=1e-3)
    last_even = step - step % 2
    assert merged["eval_return"][0] == pytest.approx(last_even / 7, rel=1e-3)


def test_runs_with_other_settings_are_not_mixed(tmp_path):
    out = tmp_path / "study" / "w"
    collect_run(make_run(tmp_path / "a", seed=0), out)
    collect_run(make_run(tmp_path / "b", seed=1, progress="false"), out)  # no other numbers
    other = make_run(tmp_path / "c", seed=2, lr=0.001)
    with pytest.raises(ValueError, match=r"agent.lr is 0.001 and was 0.0005; give it another"):
        collect_run(other, out)
    assert collect_run(other, out, "dceo_fast") == out / "dceo_fast" / "seed_2.csv"
    assert sorted(path.name for path in (out / "dceo").iterdir()) == [
        "config.yaml",
        "seed_0.csv",
        "seed_1.csv",
    ]


def test_a_study_is_read_by_environment_agent_and_seed(tmp_path):
    for env, seed in (("Maze", 0), ("NineRooms", 1), ("NineRooms", 10)):
        rows = 2 if seed == 1 else 3
        collect_run(make_run(tmp_path / f"{env}{seed}", seed, rows), tmp_path / "study" / env)
    (tmp_path / "study" / "NineRooms" / "dceo" / "seed_old.csv").write_text("not a seed")
    study = read_study(tmp_path / "study")
    assert list(study) == ["Maze", "NineRooms"]
    (agent,) = study["NineRooms"]
    assert agent.name == "dceo" and sorted(agent.seeds) == [1, 10]
    assert agent.total_frames == 3000 and list(agent.finished) == [10]
    assert agent.seeds[1]["frames"] == [1000, 2000]


def test_without_a_config_the_longest_run_is_the_whole_one(tmp_path):
    for seed, rows in ((0, 3), (1, 2)):
        path = collect_run(make_run(tmp_path / f"{seed}", seed, rows, total=9999), tmp_path / "s/w")
    path.with_name("config.yaml").unlink()
    assert list(read_study(tmp_path / "s")["w"][0].finished) == [0]


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.yaml"):
        collect_run(tmp_path, tmp_path / "study" / "w")
    (tmp_path / "config.yaml").write_text("- 1\n")
    with pytest.raises(ValueError, match="does not contain the agent and the seed"):
        collect_run(tmp_path, tmp_path / "study" / "w")
