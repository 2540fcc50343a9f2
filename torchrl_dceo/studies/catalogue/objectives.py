"""Learned against exact eigenfunctions, all four objectives."""

from __future__ import annotations

from torchrl_dceo.studies.declaration import Preset, Script, Study

__all__ = ["OBJECTIVES"]

_ALL = "objectives=[graph_drawing,generalized,generalized_log1p,allo]"


def _map(name: str, seeds: int, minutes: float, *overrides: str) -> Script:
    given = (f"map={name}", _ALL, f"seeds={list(range(10, 10 + seeds))}".replace(" ", ""))
    where = ("run_dir={folder}", "hydra.run.dir={folder}")
    return Script(
        name, "recipes/representation.py", (*given, *overrides, *where), minutes, hydra=True
    )


OBJECTIVES = Study(
    name="objectives",
    title="Learned against exact eigenfunctions",
    question="Which objective recovers the eigenfunctions themselves, and not only what they span?",
    presets={
        "paper": Preset(
            "rooms and mazes of several sizes, 1,000,000 samples, d = 11, 10 seeds",
            [
                _map("GridRoom1", 10, 30),
                _map("GridRoom4", 10, 30),
                _map("GridRoom16", 10, 30),
                _map("GridRoom64", 10, 60),
                # The barrier goes with the map: 0.75 λ₁₁ of its pairs (results/representation).
                _map("GridMaze19", 10, 35),
                _map("GridMaze26", 10, 40),
            ],
        ),
        "laptop": Preset(
            "16 rooms and a maze of 13x13, 1,000,000 samples, d = 11, 3 seeds",
            [
                _map("GridRoom16", 3, 10),
                _map("GridMaze13", 3, 6, "barrier=0.3", "lr=2e-3", "steps=2500"),
            ],
        ),
        "smoke": Preset(
            "a maze of 13x13, 20 updates",
            [
                _map(
                    "GridMaze13",
                    1,
                    0.3,
                    "samples=2000",
                    "steps=20",
                    "batch_size=64",
                    "dimensions=4",
                )
            ],
        ),
    },
)
