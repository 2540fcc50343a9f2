"""The version is written once, and what names it agrees; the changelog has the form of Keep a Changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import torchrl_dceo

ROOT = Path(__file__).parents[1]


def test_the_version_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "torchrl_dceo.__version__"
    assert (
        yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == torchrl_dceo.__version__
    )


def test_the_changelog_has_its_form():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert versions[0] == "Unreleased"
    dated = re.compile(r"\[?\d+\.\d+\.\d+\]? - \d{4}-\d{2}-\d{2}")
    assert all(dated.fullmatch(version) for version in versions[1:])
    for release in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert len(kinds) == len(set(kinds)), f"a heading of {release.split()[0]} is there twice"
        assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert not [line for line in text.splitlines() if len(line) > 120]


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name)
def test_workflows_and_templates_can_be_read(path):
    assert yaml.safe_load(path.read_text())


def test_workflows_call_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for line in re.findall(r"run: make ([^\n]+)", path.read_text()):
            assert set(line.split()) - {".venv/.installed"} <= targets
    assert (
        set(re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
        <= targets
    )
