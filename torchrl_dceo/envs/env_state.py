"""Saving and restoring an environment in mid-episode, its random generator included."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

__all__ = [
    "get_env_state",
    "pack_generator",
    "saves_state",
    "set_env_state",
    "unpack_generator",
]

_HALF = 2**64 - 1
_SAVES = "_torchrl_dceo_saves_state"


def pack_generator(generator: np.random.Generator) -> np.ndarray:
    """Returns the state of a PCG64 generator (gymnasium's) as ``int64`` of shape ``[6]``.

    Examples:
        >>> import numpy as np
        >>> from torchrl_dceo.envs.env_state import (
        ...     pack_generator, unpack_generator)
        >>> generator = np.random.default_rng(0)
        >>> copy = unpack_generator(pack_generator(generator))
        >>> copy.random() == generator.random()
        True
    """
    state: dict[str, Any] = dict(generator.bit_generator.state)
    if state["bit_generator"] != "PCG64":
        raise ValueError(
            f"only a PCG64 generator can be saved, got {state['bit_generator']}: use "
            "numpy.random.default_rng"
        )
    long = (state["state"]["state"], state["state"]["inc"])  # 128 bits each
    words = [half for word in long for half in (word >> 64, word & _HALF)]
    words += [state["has_uint32"], state["uinteger"]]
    return np.array(words, dtype=np.uint64).view(np.int64)


def unpack_generator(words: np.ndarray) -> np.random.Generator:
    """Returns a generator with the packed state."""
    values = np.asarray(words, dtype=np.int64).view(np.uint64).tolist()
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": values[0] << 64 | values[1], "inc": values[2] << 64 | values[3]},
        "has_uint32": values[4],
        "uinteger": values[5],
    }
    return np.random.Generator(bits)


def _base(env: EnvBase) -> EnvBase:
    while isinstance(env, TransformedEnv):
        env = env.base_env
    if not isinstance(env, BatchedEnvBase) and not hasattr(env, "get_env_state"):
        raise TypeError(
            f"{type(env).__name__} cannot be saved: it has no get_env_state and set_env_state"
        )
    return env


def saves_state(env: EnvBase) -> bool:
    """Returns whether an environment can be saved in mid-episode, i.e. has ``get_env_state``.

    Examples:
        >>> from torchrl.envs import GymEnv
        >>> from torchrl_dceo.envs import make_env, saves_state
        >>> saves_state(make_env("NineRooms")), saves_state(GymEnv("CartPole-v1"))
        (True, False)
    """
    while isinstance(env, TransformedEnv):
        env = env.base_env
    if not isinstance(env, BatchedEnvBase):
        return hasattr(env, "get_env_state")
    if _SAVES not in env.__dict__:
        # A new one is built: a worker process ends when it is asked for an attribute that it lacks.
        single = env.create_env_fn[0]()
        env.__dict__[_SAVES] = saves_state(single)
        single.close()
    return env.__dict__[_SAVES]


def get_env_state(env: EnvBase) -> dict[str, Tensor]:
    """Returns the state of an environment as plain tensors, including counters and random generator.

    Works through ``TransformedEnv``, and for ``SerialEnv`` and ``ParallelEnv`` (keys ``"0.<entry>"``,
    ``"1.<entry>"``, …). The state of transforms is in ``env.state_dict()`` instead, and what they
    write is in the tensordict that the next step reads. A run is resumed exactly from all three.

    Examples:
        >>> from torchrl_dceo.envs import get_env_state, make_env, set_env_state
        >>> env = make_env("NineRooms", batch_size=2, seed=0)
        >>> data = env.rollout(5)[:, -1]["next"]
        >>> saved = get_env_state(env)
        >>> sorted(saved)[:3]
        ['elapsed', 'env_steps', 'generator']
        >>> _ = env.rollout(5)
        >>> set_env_state(env, saved)
    """
    base = _base(env)
    if not isinstance(base, BatchedEnvBase):
        return base.get_env_state()
    states = base.get_env_state()
    return {f"{i}.{key}": value for i, state in enumerate(states) for key, value in state.items()}


def set_env_state(env: EnvBase, state: dict[str, Tensor]) -> None:
    """Restores a state of :func:`get_env_state` into an environment built with the same arguments."""
    base = _base(env)
    if not isinstance(base, BatchedEnvBase):
        base.set_env_state(state)
        return
    saved = {int(key.split(".", 1)[0]) for key in state}
    if saved != set(range(base.num_workers)):
        raise ValueError(
            f"the saved state is of {len(saved)} environments, but there are {base.num_workers}"
        )
    for i in range(base.num_workers):
        prefix = f"{i}."
        own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        base[i].set_env_state(own)
