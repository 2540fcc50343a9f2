"""Every stored result can be made again: its settings are those of today, with what was different written down."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from torchrl_dceo.agents import AGENTS
from torchrl_dceo.cli.config import parse
from torchrl_dceo.settings import from_settings
from torchrl_dceo.studies.experiments.representation import RepresentationConfig
from torchrl_dceo.training.run_settings import read_settings

RESULTS = Path(__file__).parents[1] / "results"
CONFIGS = sorted(RESULTS.rglob("config.yaml"))
# Settings whose default is not what the code did before they came: a stored run has them in its file. Whoever changes a
# default, or brings a setting that is on, writes the value of before into the files (and its name here).
LATER = {
    "replay_measure",
    "eps_per",
    "eps_after_reward",
    "laplacian_measure",
    "main_adam_eps",
    "direction",
    "replay_by_action",
    "replay_newest",
    "eps_patience",
    "termination",
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: "-".join(path.parts[-5:-1]))
def test_a_stored_config_is_one_of_todays(path):
    settings = read_settings(path.parent)
    if "map" in settings:
        # Of the command, which makes a run for each of them; or ways of that time that are named in the README.
        known = {field.name for field in fields(RepresentationConfig)}
        given = {k: v for k, v in settings.items() if k in known and v is not None}
        from_settings(RepresentationConfig, given)
        return
    parse(settings)
    agent = settings["agent"]
    known = {field.name for field in fields(AGENTS[agent["name"]].config)}
    missing = (LATER & known) - set(agent)
    assert not missing, f"{path}: write what {missing} was when it ran"


@pytest.mark.parametrize("folder", sorted(p for p in RESULTS.iterdir() if p.is_dir()), ids=str)
def test_a_result_names_its_command_and_its_commit(folder):
    text = (folder / "README.md").read_text()
    assert re.search(r"\b[0-9a-f]{7,40}\b", text), f"{folder}: its README names no commit"
    commands = ("dceo ", "python ", "make ", "recipes/", "run.sh")
    assert any(word in text for word in commands), f"{folder}: its README has no command"
