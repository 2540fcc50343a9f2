"""The worlds of the paper: torch-native grids, the cube and MiniGrid object worlds."""

from torchrl_dceo.envs.cube import RubiksCubeEnv
from torchrl_dceo.envs.table_env import TableEnv

__all__ = ["RubiksCubeEnv", "TableEnv"]
