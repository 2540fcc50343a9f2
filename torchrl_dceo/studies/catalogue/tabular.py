"""The tabular studies: covering eigenoptions with exact eigenvectors. All seeds of a method are one batch."""

from __future__ import annotations

from torchrl_dceo.studies.declaration import Preset, Script, Study

__all__ = ["TABULAR_COVERAGE", "TABULAR_RETURN", "VISITATION"]

_COVERAGE = "recipes/tabular_coverage.py"
_RETURN = "recipes/tabular_return.py"
# What the searches found, on other seeds: kept with the results.
_FOUND = ("--settings", "results/tabular_coverage/settings.json")
_FOUND_RETURN = ("--settings", "results/tabular_return/settings.json")
_OUT = ("--out", "{folder}")


def _coverage(seeds: int) -> list[Script]:
    return [
        Script("coverage", _COVERAGE, ("--seeds", str(seeds), *_FOUND, *_OUT), minutes=8),
        Script("four_rooms", _COVERAGE, ("--four-rooms", "--seeds", str(seeds), *_OUT), minutes=4),
    ]


def _small(script: str, steps: int, *methods: str) -> list[Script]:
    given = ("--worlds", "maze", "--methods", *methods, "--seeds", "2", "--steps", str(steps))
    return [Script("maze", script, (*given, *_OUT), minutes=0.5)]


TABULAR_COVERAGE = Study(
    name="tabular_coverage",
    title="Tabular state coverage",
    question="How many states do covering eigenoptions visit without reward, against random, count-based and "
    "repeated actions?",
    presets={
        "paper": Preset("Nine Rooms, Maze and the cube within 3 moves, 30 seeds", _coverage(30)),
        "laptop": Preset("in full: Nine Rooms, Maze, cube within 3 moves, 30 seeds", _coverage(30)),
        "smoke": Preset("Maze, 2 seeds, 500 steps", _small(_COVERAGE, 500, "random", "ceo")),
    },
)

_WHOLE_RETURN = [Script("return", _RETURN, ("--seeds", "30", *_FOUND_RETURN, *_OUT), minutes=18)]

TABULAR_RETURN = Study(
    name="tabular_return",
    title="Tabular return",
    question="Does Q-learning find the goal sooner when it explores by covering eigenoptions?",
    presets={
        "paper": Preset("Nine Rooms, Maze and the cube within 3 moves, 30 seeds", _WHOLE_RETURN),
        "laptop": Preset("in full: Nine Rooms, Maze, cube within 3 moves, 30 seeds", _WHOLE_RETURN),
        "smoke": Preset("Maze, 2 seeds, 2,000 steps", _small(_RETURN, 2000, "random", "counts")),
    },
)


def _visits(seeds: int, *given: str) -> list[Script]:
    # 100 episodes of 100 steps.
    given = (*given, "--seeds", str(seeds), "--steps", "10000", *_FOUND, *_OUT)
    return [Script("visits", _COVERAGE, given, minutes=2)]


_BOTH = ("--worlds", "nine_rooms", "maze")

VISITATION = Study(
    name="visitation",
    title="Where agents were in their first 100 episodes",
    question="Do covering eigenoptions visit the state space in another way than diffusion does?",
    presets={
        "paper": Preset("Nine Rooms and Maze, 30 seeds", _visits(30, *_BOTH)),
        "laptop": Preset("Nine Rooms and Maze, 10 seeds", _visits(10, *_BOTH)),
        "smoke": Preset(
            "Maze, 1 seed", _visits(1, "--worlds", "maze", "--methods", "random", "ceo")
        ),
    },
)
