"""The studies of the representation: objectives and eigenfunctions."""

from __future__ import annotations

from torchrl_dceo.studies.declaration import Preset, Script, Study

__all__ = [
    "EIGENFUNCTIONS",
    "OBJECTIVES",
]

_ALL = "objectives=[graph_drawing,generalized,generalized_log1p,allo,omm]"


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
                _map("GridMaze19", 10, 35),
                _map("GridMaze26", 10, 40),
            ],
        ),
        "laptop": Preset(
            "16 rooms and a maze of 13x13, 1,000,000 samples, d = 11, 3 seeds",
            [
                _map("GridRoom16", 3, 10),
                _map("GridMaze13", 3, 6),
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


_OUT = ("--out", "{folder}")


def _objects(minutes: float, *given: str) -> Script:
    return Script("objects", "examples/object_eigenfunctions.py", (*given, *_OUT), minutes)


def _evolution(world: str, name: str, frames: int) -> Script:
    given = (world, f"{{folder}}/{name}.png", f"frames={frames}")
    # Some 300 frames a second, with a dimension for each picture.
    return Script(f"evolution_{name}", "examples/evolution.py", given, minutes=frames / 18_000)


def _montezuma(minutes: float, *given: str) -> Script:
    return Script("montezuma", "examples/montezuma_eigenfunctions.py", (*given, *_OUT), minutes)


_ONE_VIEW = ("--views", "1", "--obs-width", "80", "--obs-height", "60")  # the package's


def _miniworld(name: str, minutes: float, *given: str) -> Script:
    return Script(name, "recipes/miniworld_eigenfunctions.py", (*given, *_OUT), minutes)


EIGENFUNCTIONS = Study(
    name="eigenfunctions",
    title="What eigenfunctions look like",
    question="What do the first eigenfunctions know of a world: of its objects, of the frontier of what was visited, "
    "of ledges and ladders, of rooms seen from within?",
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
                    *("--worlds", "EscapeRoom", "--room-size", "3"),
                    *("--steps", "20", "--samples", "2000"),
                ),
                _evolution("NineRooms", "nine_rooms", 2_400),
            ],
        ),
    },
)
