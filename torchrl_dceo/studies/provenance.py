"""The provenance of results: versions, commit, and the exact commands."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torchrl_dceo
from torchrl_dceo.studies.declaration import Job

__all__ = ["Provenance", "commands", "commit", "read_provenance", "versions"]

STUDY_FILE = "study.json"

_PACKAGES = (
    "torch",
    "torchrl",
    "tensordict",
    "numpy",
    "gymnasium",
    "minigrid",
    "ale-py",
    "miniworld",
)


def versions() -> dict[str, str]:
    """The versions of Python, of this package and of its dependencies.

    Examples:
        >>> from torchrl_dceo.studies.provenance import versions
        >>> sorted(versions())[:2]
        ['ale-py', 'gymnasium']
    """
    found = {"python": platform.python_version(), "torchrl_dceo": torchrl_dceo.__version__}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit(root: Path) -> str | None:
    """The commit of the repository, with a plus sign if there are local changes; ``None`` without a repository.

    Examples:
        >>> from pathlib import Path
        >>> from torchrl_dceo.studies.provenance import commit
        >>> commit(Path("/nowhere"))
    """
    try:
        name = _git(root, "rev-parse", "--short", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name}+" if changed else name


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()


def commands(jobs: Sequence[Job], folder: Callable[[Job], str]) -> list[str]:
    """The commands of single runs: one for each agent in each environment, in a loop over its seeds.

    Examples:
        >>> from torchrl_dceo.studies import Grid
        >>> from torchrl_dceo.studies.provenance import commands
        >>> for line in commands(list(Grid("maze", ["ddqn"], 3, 100).jobs()), lambda job: job.name):
        ...     print(line.partition(" run_dir")[0])
        for seed in 0 1 2; do python -m torchrl_dceo train env=maze agent=ddqn seed=$seed total_frames=100
    """
    groups: dict[tuple[str, str | None], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.environment or job.name, job.agent), []).append(job)
    lines = []
    for same in groups.values():
        each = [job.command(folder(job)) for job in same]
        loop = each[0].replace(f" seed={same[0].seed} ", " seed=$seed ")
        loop = loop.replace(f"seed_{same[0].seed}", "seed_$seed")
        # Only if a shell expands the loop to exactly these commands: quoted paths are not expanded.
        expands = "'" not in loop and all(
            loop.replace("$seed", str(job.seed)) == command
            for job, command in zip(same, each, strict=True)
        )
        if len(each) > 1 and expands:
            lines.append(f"for seed in {' '.join(str(job.seed) for job in same)}; do {loop}; done")
        else:
            lines += each
    return lines


@dataclass(frozen=True)
class Provenance:
    """The provenance of a folder of results.

    Attributes:
        title (str): from ``study.json``, the README's heading, or the folder's name.
        summary (str): the study's question; empty if there is none.
        commands (list of str): the commands that produced it.
        facts (dict of str to str): preset, commit, seeds and the like.
        versions (dict of str to str): versions of packages.
        runs (list of dict): state, frames and command of each run, as in ``study.json``.
    """

    title: str
    summary: str = ""
    commands: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)


def read_provenance(folder: Path) -> Provenance:
    """Reads ``study.json`` and ``README.md``, if they exist.

    Raises:
        ValueError: if ``study.json`` is no JSON object.

    Examples:
        >>> import pathlib, tempfile
        >>> from torchrl_dceo.studies.provenance import read_provenance
        >>> with tempfile.TemporaryDirectory() as name:
        ...     folder = pathlib.Path(name)
        ...     text = "# Maze\\n\\n    python -m torchrl_dceo train env=maze\\n\\nCommit `7ece472`."
        ...     _ = (folder / "README.md").write_text(text)
        ...     found = read_provenance(folder)
        >>> found.title, found.commands, found.facts
        ('Maze', ['python -m torchrl_dceo train env=maze'], {'Commit': '7ece472'})
    """
    study = _study(folder / STUDY_FILE)
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    commits = (
        study.get("commits")
        or study.get("commit")
        or re.findall(r"[Cc]ommits? `([0-9a-f]{7,40})`", text)
    )
    commands = [str(study["command"])] if study.get("command") else []
    commands += [str(line) for line in study.get("commands") or []]
    named = {
        "Preset": study.get("preset"),
        "Size": study.get("size"),
        "Seeds": study.get("seeds"),
        "Commit": commits,
        "Runs done": _done(study),
        "Written": study.get("written"),
    }
    return Provenance(
        title=str(study.get("title") or (heading[1] if heading else folder.resolve().name)),
        summary=str(study.get("question") or ""),
        commands=list(dict.fromkeys(commands or re.findall(r"^    (\S.*)$", text, re.MULTILINE))),
        facts={name: _plain(value) for name, value in named.items() if value},
        versions={str(k): str(v) for k, v in dict(study.get("versions") or {}).items()},
        runs=[run for run in study.get("runs") or [] if isinstance(run, dict)],
    )


def _study(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): delete it or write it again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(found).__name__}")
    return found


def _done(study: dict[str, Any]) -> str | None:
    if "done" not in study or not study.get("runs"):
        return None
    return f"{study['done']} of {len(study['runs'])}"


def _plain(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(dict.fromkeys(str(one) for one in value))
    return str(value)
