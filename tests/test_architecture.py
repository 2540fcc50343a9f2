"""The folders are the architecture: imports point downward only, and the core needs no optional package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import torchrl_dceo

ROOT = Path(torchrl_dceo.__file__).parent
# What each part of the package may import from the others.
BELOW = {
    "_fast": set(),
    "modules": {"_fast"},
    "data": {"_fast"},
    "envs": {"_fast"},
    "objectives": {"modules", "_fast"},
}
BELOW["tabular"] = {"objectives", "modules", "envs"}
BELOW["analysis"] = {"objectives", "modules", "data", "envs", "_fast", "tabular"}
BELOW["agents"] = BELOW["analysis"] | {"analysis"}
BELOW["training"] = BELOW["agents"] | {"agents"}
# Starts training as a command: Hydra is known to the command line alone.
BELOW["studies"] = BELOW["training"] | {"training"}
BELOW["cli"] = BELOW["studies"] | {"studies"}
COMMON = {"typos", "hashing", "settings"}  # one file each, beside the parts
OPTIONAL = {"scipy", "matplotlib", "PIL", "hydra", "ray", "miniworld", "rliable", "pandas"}


def imported_modules(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
    return names


def test_every_part_has_its_place():
    parts = {path.name for path in ROOT.iterdir() if any(path.glob("*.py"))}
    assert parts == set(BELOW)
    # The other folder holds no code, but the yaml files that cli/ reads.
    assert {path.suffix for path in (ROOT / "conf").rglob("*") if path.is_file()} == {".yaml"}


def test_hydra_is_known_to_the_command_line_alone():
    for path in ROOT.rglob("*.py"):
        names = {name.split(".")[0] for name in imported_modules(path)}
        if path.parent != ROOT / "cli":
            assert not names & {"hydra", "omegaconf"}, path
        assert not any(name.startswith("hydra._internal") for name in imported_modules(path)), path


@pytest.mark.parametrize("part", BELOW)
def test_imports_point_downward(part):
    for path in (ROOT / part).rglob("*.py"):
        if path.name == "__main__.py":
            continue  # hands over to the command line
        for name in imported_modules(path):
            if name.startswith("torchrl_dceo."):
                other = name.split(".")[1]
                assert other in {part} | BELOW[part] | COMMON, f"{path.name} imports {name}"


def test_the_core_imports_without_optional_packages():
    """In a fresh process that refuses them, every public name can still be imported."""
    code = f"""
import sys
for name in {OPTIONAL!r}:
    sys.modules[name] = None  # Python's own mark of a module that cannot be imported
import torchrl_dceo.objectives, torchrl_dceo.modules, torchrl_dceo.data, torchrl_dceo.analysis
from torchrl_dceo.envs import GridWorldEnv, RubiksCubeEnv, make_env
"""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_losses_modules_and_replay_need_the_first_four_dependencies_alone():
    """torch, torchrl, tensordict and gymnasium: the others are imported where they are used."""
    code = f"""
import sys
for name in {OPTIONAL | {"hydra", "omegaconf", "ale_py", "minigrid", "yaml"}!r}:
    sys.modules[name] = None
import torchrl_dceo.objectives, torchrl_dceo.modules, torchrl_dceo.data
"""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
