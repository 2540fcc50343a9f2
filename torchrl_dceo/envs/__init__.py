"""The environments of the paper: tensor-native grids, the cube, MiniGrid, MiniWorld and Atari games.

The MiniGrid environments are in :mod:`torchrl_dceo.envs.minigrid`, which registers them
with gymnasium when it is imported; :func:`make_env` does so when it builds one. The Atari environments are in
:mod:`torchrl_dceo.envs.atari.env` and :mod:`torchrl_dceo.envs.atari.vector`, imported when a game is requested.
"""

from torchrl_dceo.envs.cube import RubiksCubeEnv
from torchrl_dceo.envs.env_state import get_env_state, saves_state, set_env_state
from torchrl_dceo.envs.factory import (
    EnvKind,
    EnvRecipe,
    env_kind,
    env_recipe,
    env_settings,
    list_envs,
    make_env,
)
from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
from torchrl_dceo.envs.grid.switching import SwitchingGridWorldEnv, current_map, follow_map
from torchrl_dceo.envs.prepare import prepare_env
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
    "EnvKind",
    "EnvRecipe",
    "GridWorldEnv",
    "RubiksCubeEnv",
    "StateCounts",
    "SwitchingGridWorldEnv",
    "TableEnv",
    "current_map",
    "env_kind",
    "env_recipe",
    "env_settings",
    "find_transform",
    "follow_map",
    "get_env_state",
    "list_envs",
    "make_env",
    "num_states",
    "prepare_env",
    "saves_state",
    "set_env_state",
]
