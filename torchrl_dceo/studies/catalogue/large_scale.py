"""Worlds of pixels: first-person 3D and Atari."""

from __future__ import annotations

from collections.abc import Sequence

from torchrl_dceo.studies.catalogue.sizes import methods
from torchrl_dceo.studies.declaration import Grid, Method, Preset, Study

__all__ = ["LARGE_SCALE"]

_WORLDS = {"four_rooms_3d": "miniworld_four_rooms", "my_way_home_3d": "miniworld_my_way_home"}
_IN_3D = ("dceo", "ddqn", "rnd", "cic")
_ATARI = ("rainbow_dceo", "rainbow", "rnd", "cic")
# As results/miniworld_four_rooms: everything that is counted in frames shrinks with the run.
_SHORT_3D = (
    "num_envs=8",
    "update_period=8",
    "eval_period=2_000",
    "eval_episodes=10",
    "log_period=500",
    "checkpoint_period=2_000",
    "replay_capacity=20_000",
)
_SHORT_ATARI = (
    "learning_starts=1_000",
    "replay_capacity=10_000",
    "agent.target_period=250",
    "eval_episodes=0",  # one greedy game takes longer than the whole run
    "log_period=500",
    "checkpoint_period=2_000",
)
_TINY = (
    "learning_starts=40",
    "update_period=8",
    "log_period=40",
    "checkpoint_period=80",
    "eval_period=80",
    "eval_episodes=1",
    "replay_capacity=400",
    "progress=false",
    "agent.batch_size=8",
)
_TINY_3D = ("env.samples=1", "env.obs_width=40", "env.obs_height=40", "env.max_steps=20")


def _in_3d(agents: Sequence[Method | str], seeds: int, frames: int, *overrides: str) -> list[Grid]:
    return [
        Grid(recipe, agents, seeds, frames, overrides, world=world)
        for world, recipe in _WORLDS.items()
    ]


LARGE_SCALE = Study(
    name="large_scale",
    title="Return in worlds of pixels",
    question="Does DCEO scale to first-person 3D worlds and to Montezuma's Revenge?",
    presets={
        # The recipes' own lengths, those of the authors.
        "paper": Preset(
            "3D Four Rooms 5M frames, My Way Home 20M, 10 seeds; Montezuma's Revenge 50M steps (200M frames), 5 seeds",
            [
                Grid(_WORLDS["four_rooms_3d"], _IN_3D, 10, 5_000_000, world="four_rooms_3d"),
                Grid(_WORLDS["my_way_home_3d"], _IN_3D, 10, 20_000_000, world="my_way_home_3d"),
                Grid("montezuma", _ATARI, 5, 50_000_000),
            ],
        ),
        "laptop": Preset(
            "that it runs, not that it learns: 3D worlds 8,000 frames, Montezuma's Revenge 6,000 steps, 2 seeds",
            [
                *_in_3d(methods(_IN_3D, 8_000, discovery=3_000), 2, 8_000, *_SHORT_3D),
                Grid(
                    "montezuma",
                    methods(_ATARI, 6_000, discovery=2_000),
                    2,
                    6_000,
                    _SHORT_ATARI,
                ),
            ],
        ),
        "smoke": Preset(
            "160 frames",
            [
                *_in_3d(
                    methods(("dceo", "cic"), 160, discovery=80),
                    1,
                    160,
                    "num_envs=2",
                    *_TINY,
                    *_TINY_3D,
                ),
                Grid(
                    "montezuma",
                    methods(("rainbow_dceo", "cic"), 160, discovery=80),
                    1,
                    160,
                    (*_TINY, "env.max_steps=40"),
                ),
            ],
        ),
    },
    # On Atari the returns of training are the measure, as the authors have it.
    metrics=("train_return", "eval_return", "coverage"),
)
