"""The recipes of environments that change and of environments with objects: each trains with every agent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchrl_dceo.agents import AGENTS
from torchrl_dceo.analysis import read_progress
from torchrl_dceo.cli import config, train
from torchrl_dceo.envs import current_map

RECIPES = Path(__file__).parent.parent.parent / "recipes"

SWITCHES = ("nine_rooms_goal_switch", "nine_rooms_topology_switch")
PAPER = {  # μ of each environment
    "nine_rooms": 0.8,
    "nine_rooms_goal_switch": 0.7,
    "nine_rooms_topology_switch": 0.8,
    "escape_room": 0.9,
    "rooms_with_obstacles": 0.2,
    "obstructed_key": 0.7,
}
OBJECTS = ("escape_room", "rooms_with_obstacles", "obstructed_key")
SHORT = (
    "total_frames=240",
    "learning_starts=40",
    "num_envs=4",
    "update_period=20",
    "log_period=40",
    "eval_period=120",
    "eval_episodes=2",
    "discovery_frames=80",
    "env.max_steps=30",
    "progress=false",
)
# One agent a recipe by default; all of them with the tests marked slow.
QUICK = dict(
    zip((*SWITCHES, *OBJECTS), ("dceo", "rnd", "counts", "dceo", "ez_greedy"), strict=True)
)


def compose(recipe: str, *overrides: str) -> dict:
    return config.compose([f"env={recipe}", *overrides])


@pytest.mark.parametrize("recipe", PAPER)
@pytest.mark.parametrize("agent", ["dceo", "ez_greedy"])
def test_the_papers_share_of_options(recipe, agent):
    assert compose(recipe, f"agent={agent}")["agent"]["option_prob"] == PAPER[recipe]
    changed = compose(recipe, f"agent={agent}", "option_prob=0.5")
    assert changed["agent"]["option_prob"] == 0.5


@pytest.mark.parametrize(
    ("recipe", "agent"),
    [
        pytest.param(
            recipe,
            agent,
            marks=() if QUICK[recipe] == agent else pytest.mark.slow,
            id=f"{recipe}-{agent}",
        )
        for recipe in QUICK
        for agent in AGENTS
    ],
)
def test_trains(recipe, agent, tmp_path):
    small = ["env.room_size=3"] if recipe in SWITCHES else []  # objects are small as they are
    settings = compose(recipe, f"agent={agent}", *SHORT, *small)
    trainer = train.build(settings, tmp_path)
    assert trainer.env.batch_size == (4,)
    row = trainer.run()
    assert row["frames"] == 240 and row["updates"] > 2
    assert "eval_return" in row and row["loss_main"] == row["loss_main"]
    if recipe in SWITCHES:
        assert row["map"] == 1


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), 150_000),
        (("total_frames=80_000",), 40_000),
        (("switch_frames=30_000",), 30_000),
        (("agent=dceo_two_phase",), 200_000),  # half of what is left after discovery
    ],
)
def test_when_the_environment_changes(overrides, expected):
    settings = compose("nine_rooms_goal_switch", *overrides)
    assert config.parse(settings).switch_frames == expected


@pytest.mark.parametrize("agent", ["ddqn", "dceo_two_phase"])
def test_the_change_comes_at_the_frame_that_was_set(agent, tmp_path):
    settings = compose(
        "nine_rooms_goal_switch", f"agent={agent}", *SHORT, "env.room_size=3", "switch_frames=160"
    )
    trainer = train.build(settings, tmp_path)
    trainer.run()
    log = read_progress(tmp_path)
    maps = dict(zip(log["frames"], log["map"], strict=True))
    assert maps == {40: 0, 80: 0, 120: 0, 160: 0, 200: 1, 240: 1}
    assert current_map(trainer.env) == 1


@pytest.mark.parametrize("value", ["0", "300_000", "half"])
def test_a_change_that_cannot_be_gets_one_sentence(value):
    with pytest.raises(SystemExit, match="dceo train: switch_frames must ") as exit_info:
        train.check(["env=nine_rooms_goal_switch", f"switch_frames={value}"])
    assert "\n" not in str(exit_info.value)


@pytest.mark.parametrize("recipe", OBJECTS)
def test_the_full_size_is_a_command_away(recipe):
    source = (RECIPES / f"{recipe}.py").read_text()
    assert re.search(r"env\.room_size=5", source)
    train.check([f"env={recipe}", "env.room_size=5", "env.max_steps=null", "agent=ddqn"])


def test_no_recipe_hides_a_package():
    """A script's folder is searched first: one called gym.py would be imported in the place of the package."""
    names = {path.stem for path in RECIPES.glob("*.py")}
    assert not names & {"gym", "gymnasium", "minigrid", "miniworld", "torch", "hydra", "yaml"}
