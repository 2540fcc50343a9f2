"""The table of docs/agents/index.md says what the builders build; every agent has a page with its settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchrl_dceo.agents import AGENTS, make_agent
from torchrl_dceo.envs import make_env

FOLDER = Path(__file__).parents[2] / "docs" / "agents"
PAGE = (FOLDER / "index.md").read_text()
ROWS = {
    cells[0].strip().removesuffix(".md)").split("](")[1]: cells[1:]
    for cells in (
        line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| [`")
    )
}


def test_every_agent_has_a_row():
    assert set(ROWS) == set(AGENTS)


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_has_a_page(name):
    page = (FOLDER / f"{name}.md").read_text()
    assert page.startswith(f"# `{name}`\n")
    assert f"<!-- settings: {name} -->" in page and f"<!-- metrics: {name} -->" in page
    assert re.search(r"^## Deviations from .+\n\n1\. ", page, re.MULTILINE)
    assert f"<!-- presets: {name} -->" in page
    assert "\n## Results\n" in page and f"agent={name} " in page


@pytest.mark.parametrize("name", AGENTS)
def test_objectives_and_phases_are_as_in_the_table(name):
    agent = make_agent(name, make_env("NineRooms", room_size=3, visits="counts"))
    objectives, _, phases = ROWS["dceo" if "the same" in ROWS[name][0] else name]
    assert re.findall(r"`(\w+)`", objectives) == list(agent.objectives)
    phases = ROWS[name][2].strip()
    assert len(agent.phases) == (1 if phases.startswith("one") else 2)
