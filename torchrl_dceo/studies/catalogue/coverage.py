"""Deep coverage: states visited during discovery, without reward and with ε = 1."""

from __future__ import annotations

from collections.abc import Sequence

from torchrl_dceo.studies.catalogue.sizes import SMOKE, SMOKE_FRAMES
from torchrl_dceo.studies.declaration import Grid, Method, Preset, Study

__all__ = ["DEEP_COVERAGE"]

_FREE = "+env.coverage=true"
_CUBE = ("env.coverage=true", "option_prob=0.7")  # μ and N on the cube: the paper


def _methods(frames: int, *, cube: bool = False) -> list[Method]:
    always = "agent.eps_end=1.0"
    # The greedy action of counts is what explores: its ε falls at once.
    at_once = f"agent.eps_frames={max(1, frames // 50)}"
    return [
        Method("dceo", (always, "agent.num_options=3") if cube else (always,)),
        Method("ddqn", (always,), label="random_walk"),
        Method("ez_greedy", (always,)),
        Method("counts", (at_once,)),
    ]


def _grids(frames: int, seeds: int, shared: Sequence[str], cube: Grid) -> list[Grid]:
    given = (_FREE, *shared)
    return [
        Grid("nine_rooms", _methods(frames), seeds, frames, given),
        Grid("maze", _methods(frames), seeds, frames, given),
        cube,
    ]


def _cube(frames: int, seeds: int, *shared: str) -> Grid:
    # Eigenfunctions of 12,224 states are measured once, at the end.
    once = (f"eval_period={frames}", "eval_episodes=0")
    given = (*_CUBE, *once, *shared)
    return Grid("rubiks_cube", _methods(frames, cube=True), seeds, frames, given, "cube")


DEEP_COVERAGE = Study(
    name="deep_coverage",
    title="State coverage under function approximation",
    question="How many states does DCEO visit while it discovers its options, against a random walk, repeated actions "
    "and counts?",
    presets={
        "paper": Preset(
            "Nine Rooms and Maze 300,000 frames, cube within 5 moves 1,000,000; 30 seeds",
            _grids(
                300_000,
                30,
                ["eval_episodes=0"],
                _cube(1_000_000, 30, "num_envs=8", "update_period=1"),
            ),
        ),
        "laptop": Preset(
            "Nine Rooms and Maze in full size, 60,000 frames, 4 seeds; cube within 5 moves 60,000 frames, 3 seeds",
            _grids(
                60_000,
                4,
                ["eval_episodes=0", "checkpoint_period=10_000"],
                _cube(60_000, 3, "num_envs=32", "update_period=16", "checkpoint_period=10_000"),
            ),
        ),
        "smoke": Preset(
            "400 frames",
            [
                Grid(
                    "nine_rooms",
                    _methods(SMOKE_FRAMES),
                    1,
                    SMOKE_FRAMES,
                    (_FREE, "env.room_size=3", *SMOKE),
                ),
                Grid(
                    "rubiks_cube",
                    _methods(SMOKE_FRAMES, cube=True),
                    1,
                    SMOKE_FRAMES,
                    (*_CUBE, "env.max_depth=2", *SMOKE),
                    "cube",
                ),
            ],
        ),
    },
    metrics=("coverage",),
)
