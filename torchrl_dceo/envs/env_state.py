"""Saving and restoring an environment in mid-episode, whatever it is wrapped in."""

from __future__ import annotations

from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

__all__ = ["get_env_state", "set_env_state"]


def _base(env: EnvBase) -> EnvBase:
    while isinstance(env, TransformedEnv):
        env = env.base_env
    if not isinstance(env, BatchedEnvBase) and not hasattr(env, "get_env_state"):
        raise TypeError(
            f"{type(env).__name__} cannot be saved: it has no get_env_state and set_env_state"
        )
    return env


def get_env_state(env: EnvBase) -> dict[str, Tensor]:
    """Returns the state of an environment as plain tensors: where it is, its counters, its generator.

    Works through ``TransformedEnv``, and for ``SerialEnv`` and ``ParallelEnv`` (keys ``"0.<entry>"``,
    ``"1.<entry>"``, …). What transforms keep is not in it: it is in ``env.state_dict()``, and what they
    write is in the tensordict that the next step reads. All three together resume a run exactly.

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
    """Restores what :func:`get_env_state` returned, into an environment built the same way."""
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
