"""The public names: what the packages' ``__all__`` list, and where each is written in the reference."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from pathlib import Path
from types import ModuleType

PARTS = {
    "objectives": "Losses: Laplacian objectives, options, skills.",
    "modules": "Actors, explorers, option rewards, bonuses, Rayleigh-Ritz.",
    "data": "Replay buffers and samplers.",
    "envs": "Environments, transforms and `make_env`.",
    "agents": "`make_agent` and what an agent is.",
    "training": "`train`, checkpoints, and options as files.",
    "analysis": "Exact spectra, statistics over runs, figures.",
    "tabular": "Covering eigenoptions with exact eigenvectors, and tabular baselines.",
    "studies": "Grids of runs, declared.",
}
sys.path.insert(0, str(Path(__file__).parents[2]))


@functools.cache
def public_names() -> dict[str, list[str]]:
    """Of each part of the package, its names in the order of its ``__all__``."""
    return {part: list(_module(part).__all__) for part in PARTS}


@functools.cache
def canonical_names() -> dict[str, str]:
    """From every way to write a public name with dots (and from the bare name) to its place in the reference."""
    found: dict[str, str] = {}
    for part, names in public_names().items():
        for name in names:
            place = f"torchrl_dceo.{part}.{name}"
            value = getattr(_module(part), name)
            home = getattr(value, "__module__", None)
            found.setdefault(name, place)
            found[place] = place
            if isinstance(home, str) and home.startswith("torchrl_dceo"):
                found.setdefault(f"{home}.{value.__qualname__}", place)
    return found


def _module(part: str) -> ModuleType:
    with warnings.catch_warnings(action="ignore"):  # TorchRL's own, of names that it will rename
        return importlib.import_module(f"torchrl_dceo.{part}")
