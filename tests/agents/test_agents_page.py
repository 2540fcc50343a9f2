"""The table of docs/agents/index.md says what the builders build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchrl_dceo.agents import AGENTS, make_agent
from torchrl_dceo.envs import make_env

PAGE = (Path(__file__).parents[2] / "docs" / "agents" / "index.md").read_text()
ROWS = {
    cells[0].strip("` "): cells[1:]
    for cells in (
        line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `")
    )
}


def test_every_agent_has_a_row_and_a_section():
    assert set(ROWS) == set(AGENTS)
    assert set(re.findall(r"^## `(\w+)`$", PAGE, re.MULTILINE)) == set(AGENTS)


@pytest.mark.parametrize("name", AGENTS)
def test_objectives_and_phases_are_as_in_the_table(name):
    agent = make_agent(name, make_env("NineRooms", room_size=3, visits="counts"))
    objectives, _, phases = ROWS["dceo" if "the same" in ROWS[name][0] else name]
    assert re.findall(r"`(\w+)`", objectives) == list(agent.objectives)
    phases = ROWS[name][2].strip()
    assert len(agent.phases) == (1 if phases.startswith("one") else 2)


@pytest.mark.parametrize("name", AGENTS)
def test_every_setting_is_named_on_the_page(name):
    for setting in AGENTS[name].config.__dataclass_fields__:
        assert f"`{setting}`" in PAGE, f"{setting} of {name}"
