"""Where results come from: versions, commit, and the exact commands."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import torchrl_dceo
from torchrl_dceo.studies.declaration import Job

__all__ = ["commands", "commit", "versions"]

_PACKAGES = (
    "torch",
    "torchrl",
    "tensordict",
    "numpy",
    "gymnasium",
    "minigrid",
    "ale-py",
    "miniworld",
    "rliable",
)


def versions() -> dict[str, str]:
    """The versions of Python, of this package and of those that it stands on.

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
    """The commit of the repository, with a plus sign if files differ from it; ``None`` if there is no repository.

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
    """The commands of single runs: one for each agent in each world, and which other seeds there are.

    Examples:
        >>> from torchrl_dceo.studies import Grid
        >>> from torchrl_dceo.studies.provenance import commands
        >>> for line in commands(list(Grid("maze", ["ddqn"], 3, 100).jobs()), lambda job: job.name):
        ...     print(line.partition(" run_dir")[0], line.partition("  ")[2])
        python recipes/maze.py agent=ddqn seed=0 total_frames=100 # and seeds 1, 2
    """
    groups: dict[tuple[str, str | None], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.world or job.name, job.agent), []).append(job)
    lines = []
    for same in groups.values():
        others = ", ".join(str(job.seed) for job in same[1:])
        note = f"  # and seed{'s' * (len(same) > 2)} {others}" if others else ""
        lines.append(same[0].command(folder(same[0])) + note)
    return lines
