"""The tables of settings: every field, the default that holds, the comment beside it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

pytest.importorskip("mkdocs", reason="the site's tests need the extra docs")
from settings_tables import comments, presets_table, settings, table

from torchrl_dceo.agents import AGENTS
from torchrl_dceo.training.config import RunConfig, TrainConfig


@dataclass
class Parent:
    first: float = 0.5  # theirs
    # Two lines
    # above it.
    second: int = 20_000
    third: str = "a|b"  # docs/concepts/options.md; see results/tuning


@dataclass
class Child(Parent):
    """Overrides one field and adds one."""

    # Above
    second: int = 7  # and beside
    own: bool = True  # ours

    def unrelated(self) -> None:
        # no field's comment
        pass


def test_comments_are_those_beside_and_directly_above():
    assert comments(Parent) == {
        "first": "theirs",
        "second": "Two lines above it.",
        "third": "docs/concepts/options.md; see results/tuning",
    }
    assert comments(Child) == {"second": "Above and beside", "own": "ours"}


def test_an_override_has_its_own_default_and_origin():
    rows = {row.name: row for row in settings(Child)}
    assert list(rows) == ["second", "own", "first", "third"]
    assert rows["second"] == ("second", "7", "Above and beside", "Child")
    assert rows["first"].default == "0.5" and rows["third"].default == '"a|b"'
    assert next(iter(settings(Parent))).owner == "Parent"


def test_a_table_has_links_and_no_broken_cells():
    text = table(Parent)
    assert "| `second` | `20_000` | Two lines above it. |" in text
    assert "[options](../concepts/options.md)" in text
    assert "[results/tuning](../../results/tuning/README.md)" in text
    assert '`"a\\|b"`' in text


@pytest.mark.parametrize("name", [*AGENTS, "training"])
def test_every_setting_has_an_origin(name):
    config = TrainConfig if name == "training" else AGENTS[name].config
    rows = list(settings(config))
    assert {row.name for row in rows} == set(config.__dataclass_fields__)
    assert not [row.name for row in rows if not row.origin]
    assert all(row.default or row.default == "" for row in rows)


def test_the_default_is_that_of_the_agent():
    rows = {row.name: row for row in settings(AGENTS["rainbow"].config)}
    assert rows["lr"].default == "6.25e-05" and "authors" in rows["lr"].origin


def test_presets_are_compared_where_they_differ():
    text = presets_table(AGENTS["dceo"].config, (TrainConfig, RunConfig), "grid")
    assert '| `signs` | `"both"` | `"+"` | `"+"` |' in text
    assert "| `update_period` | `8` | `1` | `4` |" in text
    assert "`gamma`" not in text  # the same in all three
