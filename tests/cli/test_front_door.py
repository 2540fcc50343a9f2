"""``train()`` and ``dceo train`` are one front door: the same numbers, each other's runs, the same sentences."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from forked import forked
from torchrl.envs import GymEnv
from training_runs import rows

import torchrl_dceo.training
from torchrl_dceo.agents import make_agent
from torchrl_dceo.cli import train as command
from torchrl_dceo.cli.config import compose, parse
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import train
from torchrl_dceo.training.config import RunConfig
from torchrl_dceo.training.train import make_trainer, warnings_of

ROOT = Path(__file__).parents[2]
SHORT = {
    "learning_starts": 100,
    "update_period": 20,
    "log_period": 100,
    "eval_period": 200,
    "eval_episodes": 2,
    "progress": False,
}
WORDS = [f"{key}={str(value).lower()}" for key, value in SHORT.items()]


def by_python(run_dir, frames: int, **kwargs):
    torch.manual_seed(3)
    env = make_env("NineRooms", room_size=3, batch_size=4, seed=3, visits="counts")
    agent = make_agent("dceo", env, num_options=2)
    given = {**SHORT, "total_frames": frames, "seed": 3, **kwargs}
    return train(agent, env, run_dir=run_dir, **given)


def by_command(run_dir, frames: int, *words: str, resume: bool = False):
    where = [f"resume={run_dir}"] if resume else [f"run_dir={run_dir}"]
    same = ["agent=dceo", "seed=3", "num_envs=4", "env.room_size=3", "agent.num_options=2", *WORDS]
    given = [f"total_frames={frames}", *where, *words] + ([] if resume else same)
    return run_command("train", *given, cwd=run_dir.parent)


def run_command(*words: str, cwd=None):
    return forked(["-m", "torchrl_dceo", *words], cwd=cwd)


def test_each_resumes_the_runs_of_the_other(tmp_path):
    by_python(tmp_path / "python", 600)
    first = by_command(tmp_path / "command", 300)
    assert first.returncode == 0, first.stderr
    # With `progress=false` nothing but the closing line.
    assert first.stderr == ""
    assert first.stdout.splitlines() == [f"{tmp_path / 'command'}: 300 frames, greedy return 0"]
    assert by_python(tmp_path / "command", 600, resume=True)["frames"] == 600
    by_python(tmp_path / "halves", 300)
    second = by_command(tmp_path / "halves", 600, resume=True)
    assert second.returncode == 0, second.stderr
    expected = rows(tmp_path / "python")
    assert len(expected) == 6 and "cosine_similarity" in expected[-1]
    assert rows(tmp_path / "command") == expected
    assert rows(tmp_path / "halves") == expected
    names = [{path.name for path in (tmp_path / name).iterdir()} for name in ("python", "command")]
    assert names[1] - names[0] <= {".hydra", "train.log"} and names[0] <= names[1]
    assert {"options.png", "visits.png", "config.yaml"} <= names[0]
    assert not (tmp_path / "runs").exists()  # Hydra writes into the run's own directory


def test_the_stored_settings_are_the_same_and_have_no_interpolation(tmp_path):
    by_python(tmp_path / "python", 100, draw=False)
    settings = compose(["env=nine_rooms", "agent=dceo", "env.room_size=3", "agent.num_options=2"])
    text = (tmp_path / "python" / "config.yaml").read_text()
    assert "${" not in text and "???" not in text
    stored = yaml.safe_load(text)
    assert stored["agent"] == settings["agent"] and stored["env"] == settings["env"]
    assert set(stored) <= {*settings, "recipe"}
    parse(stored)


@pytest.fixture(scope="module")
def run_by_command(tmp_path_factory):
    """A run of 100 frames, for those that leave it as it is."""
    folder = tmp_path_factory.mktemp("by_command") / "run"
    assert by_command(folder, 100).returncode == 0
    return folder


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["agent=ddqn"], "has agent=dceo, not agent=ddqn: leave agent out, or start a new run"),
        (["env=maze"], "has env=nine_rooms, not env=maze: leave env out, or start a new run"),
        (
            ["env.room_size=5"],
            "belongs to another configuration: .*room_size is 3 there and 5 here",
        ),
        (
            ["agent.lr=1e-3"],
            "belongs to another configuration: .*lr is 0.0005 there and 0.001 here",
        ),
        (["seed=5"], "belongs to another configuration: .*seed is 3 there and 5 here"),
    ],
)
def test_a_run_of_something_else_is_not_resumed(words, sentence, run_by_command):
    folder = run_by_command
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.csv")}
    refused = by_command(folder, 200, *words, resume=True)
    assert refused.returncode == 1
    line = refused.stderr.splitlines()[-1]
    assert re.search(sentence, line) and "Traceback" not in refused.stderr, refused.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.csv")} == before


def test_another_recipe_is_refused(run_by_command, tmp_path):
    refused = forked([ROOT / "recipes" / "maze.py", f"resume={run_by_command}"], cwd=tmp_path)
    assert refused.returncode == 1 and "has env=nine_rooms, not env=maze" in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_with_an_environment_of_ones_own_is_resumed_in_python(tmp_path):
    env = make_env("NineRooms", room_size=3)
    train(
        make_agent("ddqn", env.base_env.append_transform(env.transform.clone())),
        env.base_env.append_transform(env.transform.clone()),
        total_frames=50,
        run_dir=tmp_path,
        draw=False,
        **SHORT,
    )
    with pytest.raises(SystemExit, match="a run that was started from Python with its own"):
        command.check([f"resume={tmp_path}"])


BAD = [
    ({"lr": float("nan")}, "lr must be a finite number, got nan"),
    ({"gamma": 1.5}, "gamma must lie in [0, 1], got 1.5"),
    ({"num_options": 0}, "num_options must be at least 1, got 0"),
    ({"lr": "abc"}, "lr must be float, got 'abc'"),
    ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ({"eps_end": -0.1}, "eps_end must lie in [0, 1], got -0.1"),
    ({"n_steps": 2.5}, "n_steps must be int, got 2.5"),
    ({"barrier": 0}, "barrier must be above 0, got 0"),
    ({"objective": "alo"}, "objective is 'alo' (did you mean 'allo'?); choose from generalized"),
]


@pytest.mark.parametrize(("settings", "sentence"), BAD, ids=[s for _, s in BAD])
def test_a_bad_setting_of_an_agent(settings, sentence, tmp_path, monkeypatch):
    """The same sentence from Python and from the command line, and nothing is written."""
    with pytest.raises(ValueError) as error:
        make_agent("dceo", make_env("NineRooms"), **settings)
    assert str(error.value).startswith(sentence) and "\n" not in str(error.value)
    monkeypatch.chdir(tmp_path)
    words = [f"agent.{name}={value}" for name, value in settings.items()]
    with pytest.raises(SystemExit) as exit_info:
        command.main(words)
    assert str(exit_info.value).startswith(f"dceo train: agent.{sentence}")
    assert "\n" not in str(exit_info.value) and not list(tmp_path.iterdir())


BAD_RUN = [
    ({"total_frames": 0}, "total_frames must be at least 1, got 0"),
    ({"learning_starts": -1}, "learning_starts must be at least 0, got -1"),
    ({"seed": 1.5}, "seed must be int, got 1.5"),
    ({"collector": "rai"}, "collector is 'rai' (did you mean 'ray'?); choose from single"),
    ({"replay_storage": "disk"}, "replay_storage is 'disk'; choose from memory, memmap"),
    ({"progress": "maybe"}, "progress must be bool, got 'maybe'"),
]


@pytest.mark.parametrize(("settings", "sentence"), BAD_RUN, ids=[s for _, s in BAD_RUN])
def test_a_bad_setting_of_a_run(settings, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = make_env("NineRooms")
    agent = make_agent("ddqn", env)
    with pytest.raises(ValueError) as error:
        train(agent, env, run_dir=tmp_path / "run", **settings)
    assert str(error.value).startswith(sentence)
    with pytest.raises(SystemExit) as exit_info:
        command.main([f"{name}={value}" for name, value in settings.items()])
    assert str(exit_info.value).startswith(f"dceo train: {sentence}")
    assert not list(tmp_path.iterdir())


def test_a_device_that_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sentence = "device is 'gpu' (did you mean 'cpu'?); choose from cpu, cuda, cuda:<number>, mps"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        RunConfig(device="gpu")
    with pytest.raises(SystemExit, match=re.escape(sentence)):
        command.main(["device=gpu"])
    assert not list(tmp_path.iterdir())


def test_a_whole_number_may_be_written_with_an_exponent(tmp_path):
    assert parse(compose(["total_frames=1e5"])).train.total_frames == 100_000
    env = make_env("NineRooms", room_size=3)
    trainer = make_trainer(make_agent("ddqn", env, eps_frames=1e3), env, total_frames=1e5)
    assert trainer.config.total_frames == 100_000 and isinstance(trainer.config.total_frames, int)


def test_continuous_actions():
    with pytest.raises(ValueError, match=r"continuous actions of shape \[1\] are not"):
        make_agent("dceo", GymEnv("Pendulum-v1"))


def test_continuous_actions_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^dceo train: continuous actions of shape \[1\] are not"):
        command.main(["env=gym", "env.id=Pendulum-v1"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        (["agent=dceo_two_phase", "option_prob=0.5"], []),
        (["agent=ddqn", "discovery_frames=90"],
         ["discovery_frames=90 is not read by ddqn, which has no such setting"]),
        (["agent=ez_greedy,rnd", "option_prob=0.5"],
         ["option_prob=0.5 is not read by rnd, which has no such setting"]),
        (["agent=dceo", "option_prob=0.5", "agent.num_options=3"], []),
    ],
)  # fmt: skip
def test_a_setting_that_an_agent_does_not_read_is_named(words, sentences, capsys):
    command.check(words)
    assert capsys.readouterr().err.splitlines() == [f"dceo train: {each}" for each in sentences]


def test_what_the_command_line_gives_goes_before_an_agents_own_value():
    own = compose(["agent=dceo_two_phase"])["agent"]
    given = compose(["agent=dceo_two_phase", "option_prob=0.5", "num_options=3"])["agent"]
    assert (own["option_prob"], given["option_prob"], given["num_options"]) == (0.9, 0.5, 3)
    both = compose(["agent=dceo_two_phase", "option_prob=0.5", "agent.option_prob=0.7"])["agent"]
    assert both["option_prob"] == 0.7


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["agent=ddqn,dceo"], "agent=ddqn,dceo gives several values: add --multirun"),
        (["total_frames=inf"], "total_frames must be a finite number, got inf"),
        (["total_frames=[1]"], "total_frames must be int, got [1]"),
        (["seed=99999999999999999999"], "seed must lie in [0, 4611686018427387904], got"),
        (["env.room_size=100000"], "the map has 300004 x 300004 cells, and 250,000 are allowed"),
        (["env.max_steps=abc"], "NineRooms cannot be built with max_steps='abc': TypeError: "),
        (["run_dir=/proc/x"], "/proc/x cannot be made (No such file or directory): choose"),
        (["run_dir=a_file"], "a_file cannot be made (File exists): choose another run_dir"),
        (["run_dir=a_file/x"], "a_file/x lies in no directory: choose another run_dir"),
    ],
)
def test_what_a_hurried_user_writes_gets_one_sentence(words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a_file").touch()
    with pytest.raises(SystemExit) as end:
        command.main(["env=nine_rooms", *words])
    assert sentence in str(end.value) and "\n" not in str(end.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a_file"]


@pytest.mark.parametrize("learning_starts", [0, 1])
@pytest.mark.parametrize("agent", ["dceo", "dceo_two_phase"])
def test_a_first_batch_beyond_the_start_of_learning(agent, learning_starts):
    env = make_env("NineRooms", room_size=3, batch_size=16, seed=0)
    more = {"discovery_frames": 32} if agent == "dceo_two_phase" else {}
    row = train(make_agent(agent, env, **more), env, total_frames=64, learning_starts=learning_starts,
                update_period=8, log_period=32, eval_episodes=0, progress=False)  # fmt: skip
    assert (
        row["frames"] == 64
        and row["updates"] >= 4
        and row["loss_laplacian"] == row["loss_laplacian"]
    )


def test_a_map_without_a_goal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("map.txt").write_text("S..\n...\n")
    env = make_env("map.txt")
    with pytest.raises(ValueError, match="this map has no goal"):
        train(make_agent("ddqn", env), env, run_dir="run")
    with pytest.raises(SystemExit, match="dceo train: this map has no goal"):
        command.main(["env.name=map.txt"])
    assert [path.name for path in tmp_path.iterdir()] == ["map.txt"]
    command.check(["env.name=map.txt", "env.coverage=true"])


@pytest.mark.parametrize("text", ["agent: [", "- 1\n", "agent: ddqn\n", "", "env: {name: A}\n"])
def test_a_broken_config(text, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SystemExit) as exit_info:
        command.check([f"resume={tmp_path}"])
    message = str(exit_info.value)
    assert "\n" not in message and str(tmp_path / "config.yaml") in message


@pytest.mark.parametrize(
    ("agent", "settings", "train_settings", "sentence"),
    [
        (
            "dceo_two_phase",
            {"discovery_frames": 5_000},
            {"total_frames": 5_000},
            "discovery takes 5,000 of 5,000 frames, so that the main learner never learns",
        ),
        (
            "dceo",
            {"num_options": 500},
            {},
            "500 eigenfunctions are linear in 256 features of their network",
        ),
        (
            "ddqn",
            {},
            {"eval_period": 1_000, "eval_episodes": 50},
            "an evaluation may take 50 episodes of 100 steps, 5,000 frames for every 1,000",
        ),
    ],
)
def test_warnings_with_numbers_before_training(agent, settings, train_settings, sentence):
    env = make_env("NineRooms", room_size=3)
    trainer = make_trainer(make_agent(agent, env, **settings), env, **train_settings)
    (warning,) = warnings_of(trainer)
    assert warning.startswith(sentence) and "\n" not in warning


def test_a_replay_that_no_memory_holds_is_named_before_training(monkeypatch):
    env = make_env("NineRooms", room_size=3)
    agent = make_agent("ddqn", env)
    monkeypatch.setattr("os.sysconf", lambda name: 1000)  # a megabyte
    (warning,) = warnings_of(make_trainer(agent, env, replay_capacity=100_000))
    # Images of 3 x 13 x 13 bytes.
    assert warning.startswith(
        "a full replay of 100,000 observations takes 0.0507 GB, this machine has 0.001: set"
    )
    for enough in ({"replay_capacity": 1000}, {"replay_storage": "memmap"}):
        assert not warnings_of(make_trainer(agent, env, **{"replay_capacity": 10_000, **enough}))


@pytest.mark.parametrize("agent", ["dceo", "dceo_two_phase", "diayn", "ddqn"])
def test_no_warning_of_what_is_usual(agent):
    env = make_env("NineRooms")
    assert warnings_of(make_trainer(make_agent(agent, env), env)) == []


def test_plain_python_is_the_recipe(tmp_path, monkeypatch):
    """An agent and an environment with nothing but defaults give the numbers of the recipe to the last digit."""
    snippet = """
import torch
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import train
torch.manual_seed(0)
env = make_env("NineRooms", batch_size=8, seed=0, visits="counts")
train(make_agent("dceo", env), env, run_dir="runs/mine")
"""
    short = {**SHORT, "total_frames": 300}

    def shortened(agent, env, **given):
        assert list(given) == ["run_dir"]  # everything else is a default
        assert env.batch_size == (RunConfig().num_envs,)
        assert agent.made_from == compose(["env=nine_rooms", "agent=dceo"])["agent"]
        return train(agent, env, **{**given, **short, "run_dir": tmp_path / "snippet"})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torchrl_dceo.training, "train", shortened)
    exec(snippet, {})
    words = [*WORDS, "total_frames=300", f"run_dir={tmp_path / 'recipe'}"]
    done = run_command("train", "env=nine_rooms", "agent=dceo", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path / "snippet") == rows(tmp_path / "recipe")


def test_a_closed_pipe_is_no_error():
    """As in ``dceo list | head``: no traceback, and exit code 1."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "torchrl_dceo", "list"]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert done.returncode == 1 and done.stderr == ""
