"""The worlds of the paper: torch-native grids, the cube and MiniGrid object worlds."""

from torchrl_dceo.envs.cube import RubiksCubeEnv
from torchrl_dceo.envs.grid_world import GridWorldEnv
from torchrl_dceo.envs.switching import SwitchingGridWorldEnv
from torchrl_dceo.envs.table_env import TableEnv
from torchrl_dceo.envs.transforms import (
    ActionNoise,
    Coverage,
    StateCounts,
    find_transform,
    num_states,
)

__all__ = [
    "ActionNoise",
    "Coverage",
    "GridWorldEnv",
    "RubiksCubeEnv",
    "StateCounts",
    "SwitchingGridWorldEnv",
    "TableEnv",
    "find_transform",
    "num_states",
]
