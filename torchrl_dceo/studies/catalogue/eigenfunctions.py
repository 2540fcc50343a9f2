"""Pictures of eigenfunctions: with objects, over training time, in Montezuma's Revenge and in 3D."""

from __future__ import annotations

from torchrl_dceo.studies.declaration import Preset, Script, Study

__all__ = ["EIGENFUNCTIONS"]

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
