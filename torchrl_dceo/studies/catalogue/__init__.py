"""The declared studies: those of the paper and further ones; this file has the studies that run scripts."""

from __future__ import annotations

from torchrl_dceo.studies.catalogue.deep import (
    ABLATION,
    DEEP_COVERAGE,
    ONLINE,
    ONLINE_VS_TWO_PHASE,
    TWO_PHASE,
)
from torchrl_dceo.studies.catalogue.environments import (
    CUBE,
    EXPLORATION,
    LARGE_SCALE,
    NON_STATIONARY,
    OBJECTS,
)
from torchrl_dceo.studies.declaration import Preset, Script, Study

__all__ = [
    "EIGENFUNCTIONS",
    "OBJECTIVES",
    "STUDIES",
    "TABULAR_COVERAGE",
    "TABULAR_RETURN",
    "VISITATION",
]

_HERE = "torchrl_dceo.studies.experiments"


_OUT = ("--out", "{folder}")


def _tabular(name: str, minutes: float, experiment: str, *given: str) -> Script:
    return Script(name, f"{_HERE}.tabular", (experiment, *given, *_OUT), minutes)


def _coverage(seeds: int) -> list[Script]:
    return [
        _tabular("coverage", 8, "coverage", "--seeds", str(seeds)),
        _tabular("four_rooms", 4, "four_rooms", "--seeds", str(seeds)),
    ]


def _small(experiment: str, steps: int, *methods: str) -> list[Script]:
    given = ("--environments", "maze", "--methods", *methods, "--seeds", "2")
    return [_tabular("maze", 0.5, experiment, *given, "--steps", str(steps))]


TABULAR_COVERAGE = Study(
    name="tabular_coverage",
    title="Tabular state coverage",
    question="How many states do covering eigenoptions visit without reward, against random, count-based and "
    "repeated actions?",
    presets={
        "paper": Preset("Nine Rooms, Maze and the cube within 3 moves, 30 seeds", _coverage(30)),
        "laptop": Preset("in full: Nine Rooms, Maze, cube within 3 moves, 30 seeds", _coverage(30)),
        "smoke": Preset("Maze, 2 seeds, 500 steps", _small("coverage", 500, "random", "ceo")),
    },
)


_WHOLE_RETURN = [_tabular("return", 18, "return", "--seeds", "30")]


TABULAR_RETURN = Study(
    name="tabular_return",
    title="Tabular return",
    question="Does Q-learning find the goal sooner when it explores by covering eigenoptions?",
    presets={
        "paper": Preset("Nine Rooms, Maze and the cube within 3 moves, 30 seeds", _WHOLE_RETURN),
        "laptop": Preset("in full: Nine Rooms, Maze, cube within 3 moves, 30 seeds", _WHOLE_RETURN),
        "smoke": Preset("Maze, 2 seeds, 2,000 steps", _small("return", 2000, "random", "counts")),
    },
)


def _visits(seeds: int, *given: str) -> list[Script]:
    # 100 episodes of 100 steps.
    given = (*given, "--seeds", str(seeds), "--steps", "10000")
    return [_tabular("visits", 2, "coverage", *given)]


_BOTH = ("--environments", "nine_rooms", "maze")


VISITATION = Study(
    name="visitation",
    title="Where agents were in their first 100 episodes",
    question="Do covering eigenoptions visit the state space in another way than diffusion does?",
    presets={
        "paper": Preset("Nine Rooms and Maze, 30 seeds", _visits(30, *_BOTH)),
        "laptop": Preset("Nine Rooms and Maze, 10 seeds", _visits(10, *_BOTH)),
        "smoke": Preset(
            "Maze, 1 seed", _visits(1, "--environments", "maze", "--methods", "random", "ceo")
        ),
    },
)


def _map(name: str, seeds: int, minutes: float, *given: str) -> Script:
    numbers = [str(seed) for seed in range(10, 10 + seeds)]
    shared = ("--map", name, "--objectives", *_ALL, "--seeds", *numbers)
    arguments = ("objectives", *shared, *given, *_OUT)
    return Script(name.replace(":", "_"), f"{_HERE}.eigenfunctions", arguments, minutes)


_ALL = ("graph_drawing", "generalized", "generalized_log1p", "allo", "omm")


# Random maps, an environment with irreversible steps, and one without a map.
_OTHER_TABLES = [
    _map("rooms:2001", 1, 2),
    _map("maze:2002", 1, 2),
    _map("cave:2000", 1, 2),
    _map("EscapeRoom", 1, 2),
    _map("RubiksCube3", 1, 2),
]


OBJECTIVES = Study(
    name="objectives",
    title="Learned against exact eigenfunctions",
    question="Which objective recovers the eigenfunctions themselves, and not only what they span?",
    presets={
        "paper": Preset(
            "rooms and mazes of several sizes, random maps, objects and the cube, 1,000,000 samples, d = 11, 10 seeds",
            [
                _map("GridRoom1", 10, 30),
                _map("GridRoom4", 10, 30),
                _map("GridRoom16", 10, 30),
                _map("GridRoom64", 10, 60),
                _map("GridMaze19", 10, 35),
                _map("GridMaze26", 10, 40),
                *_OTHER_TABLES,
            ],
        ),
        "laptop": Preset(
            "16 rooms, a maze of 13x13, three random maps, objects and the cube, 1,000,000 samples, d = 11",
            [
                _map("GridRoom16", 3, 3),
                _map("GridMaze13", 3, 2),
                *_OTHER_TABLES,
            ],
        ),
        "smoke": Preset(
            "a maze of 13x13, 20 updates",
            [
                _map(
                    "GridMaze13",
                    1,
                    0.3,
                    *("--samples", "2000", "--steps", "20"),
                    *("--batch-size", "64", "--dimensions", "4"),
                )
            ],
        ),
    },
)


def _objects(minutes: float, *given: str) -> Script:
    return Script("objects", f"{_HERE}.eigenfunctions", ("objects", *given, *_OUT), minutes)


def _evolution(env: str, name: str, frames: int) -> Script:
    given = ("evolution", "--env", env, "--frames", str(frames), *_OUT)
    # Some 300 frames a second, with a dimension for each image.
    return Script(f"evolution_{name}", f"{_HERE}.eigenfunctions", given, minutes=frames / 18_000)


def _montezuma(minutes: float, *given: str) -> Script:
    return Script("montezuma", f"{_HERE}.montezuma_eigenfunctions", (*given, *_OUT), minutes)


_ONE_VIEW = ("--views", "1", "--obs-width", "80", "--obs-height", "60")  # the package's


def _miniworld(name: str, minutes: float, *given: str) -> Script:
    return Script(name, f"{_HERE}.miniworld_eigenfunctions", (*given, *_OUT), minutes)


EIGENFUNCTIONS = Study(
    name="eigenfunctions",
    title="What eigenfunctions look like",
    question="What do the first eigenfunctions represent: objects, the frontier of what was "
    "visited, of ledges and ladders, of rooms seen from within?",
    presets={
        "paper": Preset(
            "rooms of 5x5; 300,000 frames of learning; 208,000 frames of Montezuma; 40,000 of 3D",
            [
                _objects(5, "--steps", "3000"),
                _evolution("NineRooms", "nine_rooms", 300_000),
                _evolution("GridMaze", "grid_maze", 300_000),
                _montezuma(25),
                _miniworld("four_rooms", 6),
                _miniworld("four_rooms_one_view", 6, *_ONE_VIEW),
                _miniworld("four_rooms_distinct_walls", 6, *_ONE_VIEW, "--distinct-walls"),
                _miniworld("my_way_home", 6, "--env", "MyWayHomeSparse"),
            ],
        ),
        "laptop": Preset(
            "rooms of 3x3 with objects; 48,000 frames of learning; 80,000 frames of Montezuma; 40,000 of 3D",
            [
                _objects(1, "--room-size", "3", "--steps", "1000", "--samples", "200000"),
                _evolution("NineRooms", "nine_rooms", 48_000),
                _evolution("GridMaze", "grid_maze", 48_000),
                _montezuma(12, "--steps", "20000", "--updates", "600"),
                _miniworld("four_rooms", 6),
            ],
        ),
        "smoke": Preset(
            "seconds each",
            [
                _objects(
                    0.3,
                    *("--environments", "EscapeRoom", "--room-size", "3"),
                    *("--steps", "20", "--samples", "2000"),
                ),
                _evolution("NineRooms", "nine_rooms", 2_400),
            ],
        ),
    },
)


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        TABULAR_COVERAGE,
        TABULAR_RETURN,
        VISITATION,
        DEEP_COVERAGE,
        TWO_PHASE,
        ONLINE,
        ONLINE_VS_TWO_PHASE,
        OBJECTIVES,
        CUBE,
        NON_STATIONARY,
        OBJECTS,
        EIGENFUNCTIONS,
        LARGE_SCALE,
        ABLATION,
        EXPLORATION,
    )
}


"""The studies, in the order of the paper, by name."""
