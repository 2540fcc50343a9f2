"""What is stored of a run, and the pictures drawn from it."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from torchrl_dceo.analysis import (
    RunAnalysis,
    draw_learning_curve,
    draw_run,
    load_analysis,
    read_progress,
    save_analysis,
    state_values,
)
from torchrl_dceo.analysis.figures.curves import option_starts
from torchrl_dceo.cli.runs import plot as main
from torchrl_dceo.envs import RubiksCubeEnv, make_env
from torchrl_dceo.modules import EigenReward, OptionQValueActor
from torchrl_dceo.modules.networks import MultiHeadNet, mlp_net

LOG = "frames,eps,eval_return,coverage\n100,1.0,0.0,5\n200,0.5,1.0,9\n"
ALL = [
    "learning_curve.png",
    "visits.png",
    "eigenfunctions.png",
    "options.png",
    "rollout.png",
    "rollout.gif",
]


@pytest.fixture
def env():
    return make_env("NineRooms", room_size=3, observation="xy", slip=0.1)


@pytest.fixture
def parts(env):
    torch.manual_seed(0)
    encoder = TensorDictModule(
        nn.Linear(2, 4), in_keys=["observation"], out_keys=["representation"]
    )
    net = MultiHeadNet(lambda out: mlp_net(2, out), num_heads=3, head_shape=4)
    spec = env.action_spec_unbatched
    actor = OptionQValueActor(net, num_options=3, in_keys=["observation"], spec=spec)
    return encoder, actor, torch.arange(93), EigenReward(encoder, 3)


@pytest.fixture
def run_dir(tmp_path, env, parts):
    encoder, actor, counts, reward = parts
    (tmp_path / "progress.csv").write_text(LOG)
    save_analysis(tmp_path, env, encoder, actor, counts, reward=reward)
    return tmp_path


def test_what_is_stored_comes_back(run_dir, env, parts):
    encoder, actor, counts, _ = parts
    stored = load_analysis(run_dir)
    assert torch.equal(stored.counts, counts)
    assert torch.equal(stored.representation, state_values(encoder, env))
    assert torch.equal(stored.option_values, state_values(actor, env))
    assert torch.equal(stored.followed, stored.representation[:, 1:])
    base = env.base_env
    assert stored.grid.layout == base.layout and torch.equal(
        stored.grid.next_state, base.next_state
    )
    assert torch.equal(
        stored.grid.transition_matrix().to_dense(), base.transition_matrix().to_dense()
    )
    assert sorted(path.name for path in run_dir.iterdir()) == ["analysis.npz", "progress.csv"]


def test_nothing_in_the_file_is_pickled(run_dir):
    with np.load(run_dir / "analysis.npz", allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)


def test_all_pictures_are_drawn_and_drawn_again_the_same(run_dir):
    drawn = draw_run(run_dir)
    assert [path.name for path in drawn] == ALL and all(path.parent == run_dir for path in drawn)
    first = {path: path.read_bytes() for path in drawn}
    for path in drawn:
        path.unlink()
    assert {path: path.read_bytes() for path in draw_run(run_dir)} == first


def test_an_agent_without_options_has_the_other_pictures(tmp_path, env, caplog):
    (tmp_path / "progress.csv").write_text(LOG)
    save_analysis(tmp_path, env, counts=torch.ones(93, dtype=torch.int64))
    with caplog.at_level(logging.INFO):
        assert [path.name for path in draw_run(tmp_path)] == ["learning_curve.png", "visits.png"]
    assert caplog.messages == [
        "no eigenfunctions: the agent learns no representation",
        "no options: the agent has none",
    ]


def test_options_that_climb_no_eigenfunction_are_drawn(tmp_path, env, parts):
    save_analysis(tmp_path, env, option_actor=parts[1])
    assert [path.name for path in draw_run(tmp_path)] == [
        "options.png",
        "rollout.png",
        "rollout.gif",
    ]


def test_the_cube_has_a_curve_and_its_arrays(tmp_path, caplog):
    encoder = TensorDictModule(nn.Linear(144, 4), in_keys=["observation"], out_keys=["f"])
    (tmp_path / "progress.csv").write_text(LOG)
    save_analysis(tmp_path, RubiksCubeEnv(max_depth=2), encoder)
    assert load_analysis(tmp_path).representation.shape == (64, 4)
    with caplog.at_level(logging.INFO):
        assert [path.name for path in draw_run(tmp_path)] == ["learning_curve.png"]
    assert caplog.messages == [
        "no state visitation: the environment did not count its visits",
        "no options: the agent has none",
    ]


def test_an_object_environment_stores_its_counts(tmp_path):
    env = make_env("EscapeRoom")
    save_analysis(tmp_path, env, counts=torch.ones(5, dtype=torch.int64))
    stored = load_analysis(tmp_path)
    assert stored.counts.tolist() == [1] * 5 and stored.grid is None
    assert [path.name for path in draw_run(tmp_path)] == ["visits.png"]


def test_a_changed_map_is_stored_as_it_is_now(tmp_path):
    env = make_env("NineRoomsTopologySwitch", room_size=3, switch_steps=2, observation="xy")
    env.rollout(5, break_when_any_done=False)
    encoder = TensorDictModule(nn.Linear(2, 4), in_keys=["observation"], out_keys=["f"])
    save_analysis(tmp_path, env, encoder, counts=torch.ones(93))
    assert load_analysis(tmp_path).grid.layout == env.base_env.layouts[1]
    assert [path.name for path in draw_run(tmp_path)] == ["visits.png", "eigenfunctions.png"]


def test_the_command_draws_and_names_the_pictures(run_dir, capsys):
    assert main([str(run_dir)]) == 0
    assert capsys.readouterr().out.split() == [str(run_dir / name) for name in ALL]
    assert main([str(run_dir), "--format", "pdf"]) == 0
    assert capsys.readouterr().out.split()[0] == str(run_dir / "learning_curve.pdf")


def test_the_command_runs_as_a_module(tmp_path):
    command = [
        sys.executable,
        "-W",
        "error::RuntimeWarning",
        "-m",
        "torchrl_dceo",
        "plot",
    ]
    result = subprocess.run([*command, str(tmp_path / "none")], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.strip() == f"there is no run directory at {tmp_path / 'none'}"


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            lambda p: p.write_bytes(p.read_bytes()[:-200]),
            "is damaged or was not written by save_analysis",
        ),
        (
            lambda p: p.write_bytes(b"nothing of the kind"),
            "is damaged or was not written by save_analysis",
        ),
        (lambda p: p.write_bytes(b""), "is damaged or was not written by save_analysis"),
        (_flip, "is damaged or was not written by save_analysis"),
        (lambda p: np.savez(p, other=np.ones(3)), "is damaged or was not written by save_analysis"),
        (
            lambda p: np.savez(p, env=np.array(json.dumps({"num_states": 4})), counts=np.ones(3)),
            "counts has 3 states, the environment 4",
        ),
    ],
)
def test_a_damaged_file_is_one_sentence(run_dir, capsys, spoil, sentence):
    spoil(run_dir / "analysis.npz")
    assert main([str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert sentence in error and "Traceback" not in error and error.count("\n") == 1


def test_a_foreign_directory_is_one_sentence(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("hello")
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"{tmp_path} is not the directory of a run: it holds neither progress.csv nor analysis.npz\n"
    )


def test_a_run_that_has_not_ended_has_its_curve(tmp_path, caplog):
    (tmp_path / "progress.csv").write_text(LOG)
    with caplog.at_level(logging.INFO):
        assert [path.name for path in draw_run(tmp_path)] == ["learning_curve.png"]
    assert "which a run writes when it ends" in caplog.messages[0]


def test_an_analysis_without_grid():
    assert RunAnalysis({"name": "Other"}).grid is None


@pytest.mark.parametrize("kind", ["pdf", "svg"])
def test_figures_that_can_be_scaled(kind, tmp_path):
    (tmp_path / "progress.csv").write_text(LOG)
    save_analysis(tmp_path, make_env("S..\n..G"), counts=torch.arange(6))
    drawn = draw_run(tmp_path, format=kind)
    assert [path.name for path in drawn] == [f"learning_curve.{kind}", f"visits.{kind}"]
    marks = {"pdf": b"%PDF", "svg": b"<svg"}
    assert all(marks[kind] in path.read_bytes()[:2000] for path in drawn)


def test_another_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"unknown format 'pgn' \(did you mean 'png'\?\)"):
        draw_run(tmp_path, format="pgn")


def test_an_environment_without_a_map_shows_how_its_options_are_used(tmp_path):
    (tmp_path / "progress.csv").write_text(
        "frames,train_return,option_starts_1,option_starts_2,option_starts_10\n1,0,3,1,0\n2,1,2,,4\n"
    )
    save_analysis(tmp_path, make_env("EscapeRoom"), counts=torch.tensor([4, 0, 9]))
    names = [path.name for path in draw_run(tmp_path)]
    assert names == ["learning_curve.png", "visits.png", "options.png"]
    assert option_starts(read_progress(tmp_path)) == [5, 1, 4]


def test_a_run_without_reward_has_no_empty_panel():
    log = {
        "frames": [1.0, 2.0],
        "eps": [1.0, 1.0],
        "train_return": [math.nan] * 2,
        "coverage": [1, 2],
    }
    figure = draw_learning_curve(log)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Coverage"]
