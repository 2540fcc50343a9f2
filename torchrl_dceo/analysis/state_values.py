"""What a network says in every state of a world whose states can be listed."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_dceo.envs import SwitchingGridWorldEnv, TableEnv
from torchrl_dceo.modules import EigenReward

__all__ = ["followed_eigenfunctions", "reachable_states", "state_values", "table_world"]

# Enough to fill the processor, few enough that the pictures of a large world fit in memory.
_STATES_PER_PASS = 1024


def table_world(env: EnvBase) -> TableEnv | None:
    """Returns the world beneath an environment's transforms if its dynamics are a table, else ``None``.

    Of a world that changes with time it is the stationary world of the map that its last step was made in.

    Args:
        env (EnvBase): any environment.

    Examples:
        >>> from torchrl_dceo.analysis import table_world
        >>> from torchrl_dceo.envs import make_env
        >>> table_world(make_env("NineRooms")).num_states
        237
        >>> table_world(make_env("EscapeRoom")) is None
        True
    """
    while isinstance(env, TransformedEnv):
        env = env.base_env
    if isinstance(env, SwitchingGridWorldEnv):
        return env.world(int(env.map_index.max()))
    return env if isinstance(env, TableEnv) else None


@torch.no_grad()
def state_values(
    module: TensorDictModuleBase, env: EnvBase, *, out_key: NestedKey | None = None
) -> Tensor:
    """Evaluates an encoder or an actor in every state of a world, without gradient.

    The module sees what the world shows, :meth:`~torchrl_dceo.envs.TableEnv.observe`; transforms that rewrite the
    observation are not applied. No random number is drawn.

    Args:
        module (TensorDictModuleBase): reads the world's observation (and ``state_id`` if it likes).
        env (EnvBase): a world whose dynamics are a table, under any transforms; see :func:`table_world`.

    Keyword Args:
        out_key (NestedKey, optional): the output that is wanted. Default: the module's first.

    Returns:
        Tensor: ``[S, ...]``, one row a state.

    Examples:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.analysis import state_values
        >>> from torchrl_dceo.envs import make_env
        >>> encoder = TensorDictModule(torch.nn.Linear(2, 3), in_keys=["observation"], out_keys=["representation"])
        >>> state_values(encoder, make_env("FourRooms", observation="xy")).shape
        torch.Size([104, 3])
    """
    world = table_world(env)
    if world is None:
        raise ValueError(
            f"only a world whose dynamics are a table can list its states, got {env}: use a grid or the cube"
        )
    entries = {world._observation_key, "state_id"}
    missing = [key for key in module.in_keys if key not in entries]
    if missing:
        raise KeyError(f"the module reads {missing}, but the world has only {sorted(entries)}")
    key = module.out_keys[0] if out_key is None else out_key
    device = next((p.device for p in module.parameters()), world.device)
    parts = []
    for states in torch.arange(world.num_states, device=world.device).split(_STATES_PER_PASS):
        entry = {world._observation_key: world.observe(states), "state_id": states}
        shown = TensorDict(entry, batch_size=states.shape).to(device)
        parts.append(module(shown).get(key).to(world.device))
    return torch.cat(parts)


def followed_eigenfunctions(reward: EigenReward, representation: Tensor) -> Tensor:
    r"""Returns the function that each option climbs, sign included: option i is rewarded with its differences.

    Args:
        reward (EigenReward): the options' reward, which says where they start and which signs they follow.
        representation (Tensor): :math:`f`, ``[*, d]``.

    Returns:
        Tensor: ``[*, N]``, or ``[*, 2N]`` with both signs.

    Examples:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.analysis import followed_eigenfunctions
        >>> from torchrl_dceo.modules import EigenReward
        >>> encoder = TensorDictModule(torch.nn.Linear(2, 4), in_keys=["observation"], out_keys=["representation"])
        >>> reward = EigenReward(encoder, num_options=2, signs="both")
        >>> followed_eigenfunctions(reward, torch.tensor([[1.0, 2.0, 3.0, 4.0]])).tolist()
        [[2.0, 3.0, -2.0, -3.0]]
    """
    first = int(reward.skip_first)
    followed = representation[..., first : first + reward.num_options]
    if reward.signs == "-":
        return -followed
    return torch.cat([followed, -followed], -1) if reward.signs == "both" else followed


def reachable_states(next_state: Tensor, starts: Tensor) -> Tensor:
    """Returns which states can be reached from any of the starts, bool ``[S]``.

    Args:
        next_state (Tensor): the table of moves, ``[S, A]``.
        starts (Tensor): state ids.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis import reachable_states
        >>> reachable_states(torch.tensor([[1], [0], [2]]), torch.tensor([0])).tolist()
        [True, True, False]
    """
    reached = torch.zeros(next_state.shape[0], dtype=torch.bool, device=next_state.device)
    frontier = starts
    while frontier.numel():
        reached[frontier] = True
        following = next_state[frontier].unique()
        frontier = following[~reached[following]]
    return reached
