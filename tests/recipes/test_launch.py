"""The recipes' command line: every yaml fits its dataclass, and a typo gets one sentence."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).parent.parent.parent / "recipes"
sys.path.insert(0, str(RECIPES))

import hydra  # noqa: E402
import launch  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from torchrl_dceo.agents import AGENTS  # noqa: E402
from torchrl_dceo.envs import env_settings  # noqa: E402
from torchrl_dceo.envs.miniworld_headless import why_not  # noqa: E402
from torchrl_dceo.training import CollectorConfig, TrainConfig  # noqa: E402

# The other studies train no agent: test_representation.py, test_tabular.py.
_STUDIES = {
    "miniworld_bound",
    "miniworld_eigenfunctions",
    "representation",
    "rubiks_cube_study",
    "tabular_coverage",
    "tabular_figures",
    "tabular_return",
    "tabular_study",
}
NAMES = sorted({path.stem for path in RECIPES.glob("*.py")} - {"launch"} - _STUDIES)
if why_not() is not None:  # the settings of 3D worlds are found where they can be drawn
    NAMES = [name for name in NAMES if not name.startswith("miniworld")]


def compose(recipe: str, *overrides: str) -> dict:
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(launch.CONFIG)):
        return OmegaConf.to_container(hydra.compose(recipe, list(overrides)), resolve=True)


def test_every_agent_has_a_yaml_and_every_yaml_an_agent():
    assert {path.stem for path in (launch.CONFIG / "agent").glob("*.yaml")} == set(AGENTS)


@pytest.mark.parametrize("recipe", NAMES)
@pytest.mark.parametrize("agent", AGENTS)
def test_every_yaml_has_exactly_the_fields_of_its_dataclass(recipe, agent):
    settings = compose(recipe, f"agent={agent}")
    own = settings["agent"]
    assert own.pop("name") == agent
    assert set(own) == {field.name for field in dataclasses.fields(AGENTS[agent].config)}
    launch.check_dataclass(AGENTS[agent].config, own, "agent.")
    train = {key for key in settings if key not in launch._OWN}
    assert train == {field.name for field in dataclasses.fields(TrainConfig)}
    assert {field.name for field in dataclasses.fields(CollectorConfig)} <= set(settings)
    env = settings["env"]
    assert set(env) - {"name"} <= set(env_settings(env["name"]))


def test_every_field_says_where_its_value_comes_from():
    for path in launch.CONFIG.rglob("*.yaml"):
        for line in path.read_text().splitlines():
            key, colon, value = line.partition(":")
            inside_hydra = line.startswith(" ")
            if (
                colon
                and value.strip()
                and not line.startswith(("#", "-", "name:"))
                and not inside_hydra
            ):
                assert "#" in value or key in ("seed", "hydra"), f"{path.name}: {line}"


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
            "nine_rooms: unknown setting env.'goal_visibel' (did you mean 'goal_visible'?)",
        ),
        (
            ["seed=0,1", "agent=dceo,ddqx"],
            "nine_rooms: unknown agent 'ddqx' (did you mean 'ddqn'?)",
        ),
        (["resume=/no/such/run"], "nine_rooms: resume=/no/such/run is not the directory of a run"),
        (["num_envs=0"], "nine_rooms: num_envs must be a whole number from 1 on, got 0"),
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
        launch.check(arguments, "nine_rooms")
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
    launch.check(arguments, "nine_rooms")


def test_a_recipe_trains_draws_and_goes_on(tmp_path):
    """The command line as a person uses it: a short run, then its second half by ``resume``."""
    folder = tmp_path / "run"
    python = [sys.executable, "-W", "ignore", str(RECIPES / "nine_rooms.py"), "progress=false"]
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
    result = subprocess.run(
        [*python, *first, f"run_dir={folder}"], cwd=tmp_path, capture_output=True, text=True
    )
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
    again = subprocess.run(
        [*python, f"resume={folder}", "total_frames=1_500"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr
    frames = [line.split(",")[0] for line in (folder / "progress.csv").read_text().splitlines()]
    assert frames == ["frames", "500", "1000", "1500"]
    # Another agent's run is refused in one sentence.
    wrong = subprocess.run(
        [*python, f"resume={folder}", "agent.lr=1e-3"], cwd=tmp_path, capture_output=True, text=True
    )
    assert wrong.returncode != 0 and "Traceback" not in wrong.stderr and "lr" in wrong.stderr


def test_hydras_flags_take_their_values(tmp_path):
    """``--cfg job`` shows the config: ``job`` is no override."""
    command = [sys.executable, "-W", "ignore", str(RECIPES / "nine_rooms.py")]
    shown = subprocess.run(
        [*command, "total_frames=77", "--cfg", "job"], cwd=tmp_path, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    assert "total_frames: 77\n" in shown.stdout and not list(tmp_path.iterdir())
