"""``dceo train`` and the recipes: a mistake gets one sentence, a run can be resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import forked

from torchrl_dceo.cli import train

RECIPES = Path(__file__).parent.parent.parent / "recipes"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["agent=dcceo"], "nine_rooms: unknown agent 'dcceo' (did you mean 'dceo'?); choose from "),
        (["sead=3"], "nine_rooms: unknown setting 'sead' (did you mean 'seed'?); choose from "),
        (
            ["agent.norm=log2"],
            "nine_rooms: agent.norm is 'log2' (did you mean 'log1p'?); choose from squared, log1p",
        ),
        (["agent.lr=fast"], "nine_rooms: agent.lr must be float, got 'fast'"),
        (["total_frames=1.5"], "nine_rooms: total_frames must be int, got 1.5"),
        (["total_frames=0"], "nine_rooms: total_frames must be at least 1, got 0"),
        (
            ["env.room_sise=3"],
            "nine_rooms: unknown setting 'env.room_sise' (did you mean 'env.room_size'?)",
        ),
        (
            ["+env.goal_visibel=true"],
            "nine_rooms: unknown setting 'env.goal_visibel' (did you mean 'env.goal_visible'?)",
        ),
        (
            ["seed=0,1", "agent=dceo,ddqx"],
            "nine_rooms: unknown agent 'ddqx' (did you mean 'ddqn'?)",
        ),
        (["resume=/no/such/run"], "nine_rooms: resume=/no/such/run is not the directory of a run"),
        (["num_envs=0"], "nine_rooms: num_envs must be at least 1, got 0"),
        (
            ["collector=rai"],
            "nine_rooms: collector is 'rai' (did you mean 'ray'?); choose from single, multi_sync",
        ),
        (
            ["collector=multi_sync", "num_workers=3"],
            "nine_rooms: 8 environments cannot be divided among num_workers=3: take a number",
        ),
        (["worker_steps=0"], "nine_rooms: worker_steps must be at least 1, got 0"),
        (["agent=ddqn", "agent.norm=log1p"], "nine_rooms: unknown setting 'agent.norm'"),
    ],
)
def test_a_typo_gets_one_sentence(arguments, sentence):
    with pytest.raises(SystemExit) as exit_info:
        train.check(["env=nine_rooms", *arguments], program="nine_rooms")
    message = str(exit_info.value)
    assert message.startswith(sentence) and "\n" not in message


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["agent=ddqn", "seed=3", "total_frames=300_000"],
        ["+env.goal_visible=true"],
        ["seed=0,1,2", "agent=dceo,ddqn"],
        ["collector=multi_sync,multi_async", "num_workers=4", "ray_cpus=0.5"],
    ],
)
def test_right_arguments_pass(arguments):
    train.check(arguments)


def test_a_recipe_trains_draws_and_goes_on(tmp_path):
    """The command line as a person uses it: a short run, then its second half by ``resume``."""
    folder = tmp_path / "run"
    python = [RECIPES / "nine_rooms.py", "progress=false"]
    common = ["env.room_size=3", "agent.num_options=3", "agent.dimensions=5", "update_period=20"]
    first = [
        *common,
        "seed=3",
        "num_envs=4",
        "total_frames=1_000",
        "learning_starts=200",
        "log_period=500",
        "checkpoint_period=500",
    ]
    result = forked([*python, *first, f"run_dir={folder}"], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    names = {path.name for path in folder.iterdir()}
    assert {
        "progress.csv",
        "config.yaml",
        "learning_curve.png",
        "visits.png",
        "eigenfunctions.png",
        "options.png",
    } <= names
    again = forked([*python, f"resume={folder}", "total_frames=1_500"], cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    frames = [line.split(",")[0] for line in (folder / "progress.csv").read_text().splitlines()]
    assert frames == ["frames", "500", "1000", "1500"]
    # Another agent's run is refused in one sentence.
    wrong = forked([*python, f"resume={folder}", "agent.lr=1e-3"], cwd=tmp_path)
    assert wrong.returncode != 0 and "Traceback" not in wrong.stderr and "lr" in wrong.stderr


def test_hydras_flags_take_their_values(tmp_path):
    """``--cfg job`` shows the config: ``job`` is no override."""
    words = ["total_frames=77", "--cfg", "job"]
    shown = forked([RECIPES / "nine_rooms.py", *words], cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "total_frames: 77\n" in shown.stdout and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("{file}/run", "dceo train: {file}/run lies in no directory: choose another run_dir\n"),
        (
            "/sys/dceo/run",
            "dceo train: /sys/dceo cannot be written (Operation not permitted): choose another run_dir",
        ),
    ],
)
def test_a_place_where_no_run_can_be_is_a_sentence(tmp_path, place, sentence):
    """Hydra makes the directory, and would end with lines of its own."""
    file = tmp_path / "file"
    file.write_text("")
    if place.startswith("/sys") and not Path("/sys").is_dir():
        pytest.skip("there is no /sys, where nobody can write")
    words = ["agent=ddqn", "total_frames=100", f"run_dir={place.format(file=file)}"]
    ended = forked(["-m", "torchrl_dceo", "train", *words], cwd=tmp_path)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(sentence.format(file=file).split("(")[0])
