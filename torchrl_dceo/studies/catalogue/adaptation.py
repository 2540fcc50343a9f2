"""Worlds that change, and worlds with objects."""

from __future__ import annotations

from torchrl_dceo.studies.catalogue.sizes import BASELINES, SMOKE, SMOKE_FRAMES, methods
from torchrl_dceo.studies.declaration import Grid, Method, Preset, Study

__all__ = ["NON_STATIONARY", "OBJECTS"]

_AGENTS = ("dceo", *BASELINES)
_SWITCHES = {
    "goal_switch": "nine_rooms_goal_switch",
    "topology_switch": "nine_rooms_topology_switch",
}


def _switches(agents: list[Method | str], seeds: int, frames: int, *overrides: str) -> list[Grid]:
    small = "small_" if "env.room_size=3" in overrides else ""
    return [
        Grid(recipe, agents, seeds, frames, overrides, world=f"{small}{world}")
        for world, recipe in _SWITCHES.items()
    ]


def _annealed(frames: int, over: int) -> list[Method | str]:
    return [*methods(_AGENTS, frames, annealed=over / frames)]


NON_STATIONARY = Study(
    name="non_stationary",
    title="Exploration when the world changes",
    question="Does DCEO adapt sooner than others when the goal moves, and when most hallways close as well?",
    presets={
        # The recipes' own: the world changes after half of 300,000 frames, ε has fallen after 70,000.
        "paper": Preset(
            "Nine Rooms, 300,000 frames, the change after half of them, 30 seeds",
            _switches([*_AGENTS], 30, 300_000),
        ),
        "laptop": Preset(
            "Nine Rooms with rooms of 3x3, 100,000 frames, the change after half of them, 3 seeds",
            _switches(
                _annealed(100_000, 35_000),
                3,
                100_000,
                "env.room_size=3",
                "switch_frames=50_000",
                "eval_period=5_000",
                "checkpoint_period=10_000",
            ),
        ),
        "smoke": Preset(
            "400 frames, the change after 200",
            _switches(_annealed(SMOKE_FRAMES, 100)[:2], 1, SMOKE_FRAMES, "env.room_size=3", *SMOKE),
        ),
    },
)

# Each with what makes it full, besides its size.
_OBJECT_WORLDS = {
    "escape_room": (),
    "rooms_with_obstacles": ("env.num_obstacles=null",),
    "obstructed_key": (),
}


def _objects(seeds: int, frames: int, *overrides: str, small: bool) -> list[Grid]:
    # The recipes anneal over half of the frames.
    agents = methods(_AGENTS, frames, annealed=0.5)
    return [
        Grid(
            world,
            agents,
            seeds,
            frames,
            overrides if small else (*overrides, *full),
            world=f"small_{world}" if small else world,
        )
        for world, full in _OBJECT_WORLDS.items()
    ]


OBJECTS = Study(
    name="objects",
    title="Objects, obstacles and walls to break",
    question="Does DCEO scale to worlds where the goal takes a key, a way past obstacles, or a broken wall?",
    presets={
        "paper": Preset(
            "rooms of 5x5, 500,000 frames, 30 seeds",
            _objects(
                30,
                500_000,
                "env.room_size=5",
                "env.max_steps=null",
                "eval_period=10_000",
                small=False,
            ),
        ),
        "laptop": Preset(
            "rooms of 3x3 (with obstacles: 4x4, one obstacle), 80,000 frames, 3 seeds",
            _objects(3, 80_000, "checkpoint_period=10_000", small=True),
        ),
        "smoke": Preset(
            "small rooms, 400 frames",
            [
                Grid(
                    world,
                    ["dceo", "counts"],
                    1,
                    SMOKE_FRAMES,
                    ("env.max_steps=30", *SMOKE),
                    world=f"small_{world}",
                )
                for world in _OBJECT_WORLDS
            ],
        ),
    },
)
