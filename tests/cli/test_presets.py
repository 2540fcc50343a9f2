"""``preset=`` on the command line: it composes everywhere, and goes between the recipe and what is given."""

from __future__ import annotations

import pytest

from torchrl_dceo.agents import AGENTS, preset_settings, speed_settings
from torchrl_dceo.cli.config import CONF, compose, parse
from torchrl_dceo.envs import env_kind

RECIPES = sorted(path.stem for path in (CONF / "env").glob("*.yaml"))
ONE_OF_EACH_KIND = ("nine_rooms", "rubiks_cube", "miniworld_four_rooms", "montezuma")


def check_composed(recipe, agent, preset):
    given = ["env.id=CartPole-v1"] if recipe == "gym" else []
    composed = compose([f"env={recipe}", f"agent={agent}", f"preset={preset}", *given])
    made = parse(composed)
    chosen = preset_settings(
        preset,
        AGENTS[agent].config,
        env_kind(made.env),
        total_frames=made.train.total_frames,
    )
    assert chosen.agent.items() <= made.agent_settings.items()
    assert chosen.env.items() <= made.env_settings.items()
    assert all(composed[name] == value for name, value in chosen.run.items())


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_paper_composes_for_every_recipe_and_agent(recipe):
    for agent in AGENTS:
        check_composed(recipe, agent, "paper")


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_authors_code_composes(recipe):
    for agent in AGENTS if recipe in ONE_OF_EACH_KIND else ("dceo",):
        check_composed(recipe, agent, "authors")


def test_the_command_line_goes_before_the_preset_and_the_preset_before_the_recipe():
    composed = compose(
        ["env=nine_rooms_goal_switch", "preset=paper", "agent.lr=1e-3", "update_period=8"]
    )
    assert (composed["agent"]["lr"], composed["update_period"]) == (1e-3, 8)
    assert composed["agent"]["eps_frames"] == 30_000  # the default: 100,000
    assert composed["agent"]["option_prob"] == 0.7  # the paper's, in the recipe
    assert compose(["preset=paper", "agent=diayn", "num_options=4"])["agent"]["num_options"] == 4
    three = compose(["env=miniworld_four_rooms", "preset=authors", "env.obs_width=40"])
    assert (three["env"]["obs_width"], three["env"]["obs_height"]) == (40, 60)
    with pytest.raises(ValueError, match="unknown preset 'peper'"):
        compose(["preset=peper"])


@pytest.mark.parametrize("agent", AGENTS)
def test_a_speed_composes_and_is_the_same_from_python(agent):
    composed = compose(["env=nine_rooms", f"agent={agent}", "speed=throughput"])
    made, chosen = parse(composed), speed_settings("throughput")
    assert chosen.agent.items() <= made.agent_settings.items()
    assert all(composed[name] == value for name, value in chosen.run.items())
    plain = compose(["env=nine_rooms", f"agent={agent}"])
    set_to = {**plain, **chosen.run, "speed": "throughput"}
    assert composed == {**set_to, "agent": {**plain["agent"], **chosen.agent}}


def test_the_command_line_goes_before_the_speed_and_the_speed_before_the_preset():
    composed = compose(["preset=paper", "speed=throughput", "num_envs=4", "agent.lr=1e-3"])
    assert (composed["num_envs"], composed["agent"]["lr"]) == (4, 1e-3)
    assert composed["update_period"] == speed_settings("throughput").run["update_period"]
    with pytest.raises(ValueError, match="unknown speed 'fast'"):
        compose(["speed=fast"])
