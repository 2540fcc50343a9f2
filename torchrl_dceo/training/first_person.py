"""What a run in a first-person world leaves behind for its pictures."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

from torchrl_dceo.analysis.birds_eye import look_from_above, option_ways, save_birds_eye
from torchrl_dceo.analysis.birds_eye_figures import save_film
from torchrl_dceo.analysis.state_values import followed_eigenfunctions
from torchrl_dceo.envs.miniworld_env import MiniWorldEnv3D
from torchrl_dceo.modules import EigenReward

if TYPE_CHECKING:
    from torchrl_dceo.envs.miniworld_worlds import MiniWorld3D

__all__ = ["first_person_world", "save_first_person"]


def first_person_world(env: EnvBase, **settings: Any) -> MiniWorld3D | None:
    """A new world like the one beneath an environment's transforms, or ``None`` if that is no first-person one.

    Args:
        env (EnvBase): any environment, also of several worlds, in this process or in others.
        **settings: what shall be different, e.g. ``coverage=True``.
    """
    while isinstance(env, TransformedEnv):
        env = env.base_env
    if isinstance(env, BatchedEnvBase):
        make = env.create_env_fn[0]
        if not (isinstance(make, functools.partial) and make.func is MiniWorldEnv3D):
            return None
        return make(**settings).world
    return env.another(**settings).world if isinstance(env, MiniWorldEnv3D) else None


def save_first_person(
    run_dir: Path,
    env: EnvBase,
    reward: EigenReward | None,
    option_actor: TensorDictModuleBase | None,
) -> list[Path]:
    """Evaluates encoder and options in a first-person world and stores the view from above and a film of one option.

    Args:
        run_dir (Path): the run's directory.
        env (EnvBase): its environment; nothing is done if it is no first-person world.
        reward (EigenReward, optional): what its options climb, with the representation f.
        option_actor (TensorDictModuleBase, optional): the options.

    Returns:
        list of Path: the files.
    """
    world = first_person_world(env, coverage=True)
    if world is None or (reward is None and option_actor is None):
        return []
    files = []
    view = look_from_above(None if reward is None else reward.encoder, world)
    if reward is not None:
        followed = followed_eigenfunctions(reward, torch.from_numpy(view.values))
        view = dataclasses.replace(view, followed=followed.numpy())
    if option_actor is not None:
        ways, frames = option_ways(option_actor, world, film=0)
        view = dataclasses.replace(view, ways=ways)
        files.append(save_film(run_dir / "option", frames))
    files.append(save_birds_eye(run_dir, view))
    return files
