"""Adds what agents need to any environment: observation format, transforms, visit counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import gymnasium
import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data import Binary, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot
from torchrl.envs import (
    CatFrames,
    Compose,
    EnvBase,
    InitTracker,
    RewardSum,
    Transform,
    TransformedEnv,
)

from torchrl_dceo.envs.observations import (
    Layout,
    ObservationFormat,
    as_torchrl,
    observation_chain,
)
from torchrl_dceo.envs.transforms import (
    CategoricalAction,
    Coverage,
    StateCounts,
    find_transform,
    num_states,
)
from torchrl_dceo.hashing import ObservationHash, combine, make_hash

__all__ = [
    "HashedState",
    "PreparedEnv",
    "RewardFree",
    "append_visits",
    "frame_stack_of",
    "prepare_env",
]

_SUPPORTED = "supported are discrete actions, one of n, under the entry 'action'"
# Size of the visit table of an environment without state_id: of n states about n²/2²¹ pairs collide.
_HASH_BITS = 20
_NUM_HASHES = 2**_HASH_BITS
_EXACT_HASH = (
    2**13
)  # the largest image, in entries, whose states are hashed exactly and not by cells
_CACHE = "_torchrl_dceo_prepared"


class PreparedEnv(TransformedEnv):
    """The environment that :func:`prepare_env` returns."""


class HashedState(Transform):
    """Writes a hash of the observation as ``state_id``, for environments without one.

    Keyword Args:
        in_key (NestedKey): the observation. Default: ``"observation"``.
        kind (str or callable, optional): see :func:`~torchrl_dceo.hashing.make_hash`; ``"auto"``: ``"exact"`` for whole
            numbers, ``"cell"`` for images of more than 8192 of them, ``"simhash"`` for floats, which hardly ever repeat
            to the last digit. Default: ``"auto"``.
        out_key (NestedKey, optional): Default: ``"state_id"``.

    Examples:
        >>> from torchrl.envs import GymEnv, TransformedEnv
        >>> from torchrl_dceo.envs import StateCounts, num_states
        >>> from torchrl_dceo.envs.prepare import HashedState
        >>> env = TransformedEnv(GymEnv("FrozenLake-v1", is_slippery=False), HashedState())
        >>> _ = env.append_transform(StateCounts(num_states(env)))
        >>> _ = env.rollout(1000, break_when_any_done=False)
        >>> int(env.transform[-1].num_visited) <= 16
        True
    """

    def __init__(
        self,
        *,
        in_key: NestedKey = "observation",
        kind: str | ObservationHash = "auto",
        out_key: NestedKey = "state_id",
    ) -> None:
        super().__init__(in_keys=[in_key], out_keys=[out_key])
        self.kind = kind
        self._hash: ObservationHash | None = None

    def _hashed(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation, batch = tensordict.get(self.in_keys[0]), tensordict.batch_size
        if self._hash is None:
            kind = self.kind
            self._hash = make_hash(
                _hash_kind(observation[(0,) * len(batch)]) if kind == "auto" else kind
            )
        numbers = self._hash(observation.reshape(batch.numel(), *observation.shape[len(batch) :]))
        # Multiplicative hashing: the highest bits of the product depend on all bits of the hash.
        spread = combine([numbers, torch.zeros_like(numbers)]) >> (64 - _HASH_BITS)
        places = (spread & (_NUM_HASHES - 1)).view(batch).to(observation.device)
        return tensordict.set(self.out_keys[0], places)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._hashed(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._hashed(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the entry ``state_id``."""
        observation_spec[self.out_keys[0]] = Categorical(
            _NUM_HASHES,
            shape=observation_spec.shape,
            dtype=torch.int64,
            device=observation_spec.device,
        )
        return observation_spec


def _hash_kind(observation: Tensor) -> str:
    if observation.is_floating_point():
        return "simhash"
    return "cell" if observation.ndim == 3 and observation.numel() > _EXACT_HASH else "exact"


class RewardFree(Transform):
    """Sets every reward to 0, for a phase of option discovery.

    Episodes end as before, because a transform cannot change their termination.

    Examples:
        >>> from torchrl.envs import GymEnv, TransformedEnv
        >>> from torchrl_dceo.envs.prepare import RewardFree
        >>> TransformedEnv(GymEnv("CartPole-v1"), RewardFree()).rollout(5)["next", "reward"].sum()
        tensor(0.)
    """

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        reward = next_tensordict.get("reward")
        return next_tensordict.set("reward", torch.zeros_like(reward))


def frame_stack_of(env: EnvBase, key: NestedKey) -> CatFrames | None:
    """The transform that stacks the frames of ``key``, or ``None``.

    A stack that is formatted afterwards (e.g. with permuted channels) is treated like any other observation.

    Examples:
        >>> from torchrl.envs import CatFrames, GymEnv, TransformedEnv
        >>> from torchrl_dceo.envs.prepare import frame_stack_of
        >>> stack = CatFrames(N=2, dim=-1, in_keys=["observation"])
        >>> frame_stack_of(TransformedEnv(GymEnv("CartPole-v1"), stack), "observation").N
        2
    """
    while isinstance(env, TransformedEnv):
        chain = env.transform
        chain = list(chain) if isinstance(chain, Compose) else [chain]
        for transform in reversed(chain):
            if isinstance(transform, ObservationFormat):
                return None
            if isinstance(transform, CatFrames) and key in transform.out_keys:
                return transform
        env = env.base_env
    return None


def prepare_env(
    env: EnvBase | gymnasium.Env | gymnasium.vector.VectorEnv,
    *,
    observation: NestedKey | Sequence[NestedKey] | None = None,
    layout: Layout = "auto",
    visits: Literal["counts", "coverage"] | StateCounts | None = None,
    reward_free: bool = False,
    transforms: Sequence[Transform] = (),
) -> EnvBase:
    """Adds to an environment what agents need and it does not have yet.

    Added where they are missing: categorical actions, one observation (an image ``uint8 [*, C, H, W]`` under ``pixels``
    or a float vector under ``observation``), ``is_init`` (TorchRL's ``InitTracker``) and ``episode_reward``
    (``RewardSum``). An environment that has all of it is returned unchanged. An environment that was prepared before
    gives the same result, so that an agent and its training use the same. :func:`~torchrl_dceo.agents.make_agent`
    and :func:`~torchrl_dceo.training.train` call this function; call it yourself only to choose settings.

    Args:
        env (EnvBase, gymnasium.Env or gymnasium.vector.VectorEnv): with discrete actions.

    Keyword Args:
        observation (NestedKey or sequence of NestedKey, optional): the entries to read. Default: ``pixels``, or
            ``observation``, or all entries concatenated to a vector; if one of them is a large image, only the image.
        layout (str, optional): ``"chw"`` or ``"hwc"``, of images; ``"auto"``: inferred from their shape. Default:
            ``"auto"``.
        visits (str or StateCounts, optional): counts visited states, as in :func:`~torchrl_dceo.envs.make_env`. If
            there is no ``state_id``, states are hashes of the observation. Default: ``None``.
        reward_free (bool, optional): sets every reward to 0. Default: ``False``.
        transforms (sequence of Transform, optional): further ones, after the observation is formatted.

    Examples:
        >>> from torchrl.envs import GymEnv
        >>> from torchrl_dceo.envs import prepare_env
        >>> env = prepare_env(GymEnv("CartPole-v1"))
        >>> sorted(env.reset().keys()), env.action_spec.space.n
        (['done', 'episode_reward', 'is_init', 'observation', 'terminated', 'truncated'], 2)
        >>> prepare_env(env) is env
        True
        >>> prepare_env(GymEnv("Pendulum-v1"))
        Traceback (most recent call last):
        ValueError: continuous actions of shape [1] are not supported: supported are discrete actions, ...
    """
    if visits not in (None, "counts", "coverage") and not isinstance(visits, StateCounts):
        raise ValueError(f"visits must be 'counts', 'coverage' or a StateCounts, got {visits!r}")
    prepared = env if isinstance(env, PreparedEnv) else getattr(env, "__dict__", {}).get(_CACHE)
    if prepared is None:
        base = as_torchrl(env)
        chain = [
            *_action_chain(base),
            *observation_chain(base, observation, layout),
            *([RewardFree()] if reward_free else []),
            *_bookkeeping(base),
            *transforms,
        ]
        if not chain and visits is None:
            return base
        # With an explicit device: an environment without one casts at every step.
        device = {"device": "cpu"} if base.device is None else {}
        prepared = PreparedEnv(base, Compose(*chain), **device)
        # Not as an attribute, which would register the module as its own submodule.
        env.__dict__[_CACHE] = prepared
    elif observation is not None or layout != "auto" or reward_free or transforms:
        raise ValueError(
            "this environment was already prepared: pass the settings to the first call of prepare_env"
        )
    if visits is not None:
        append_visits(prepared, visits)
    return prepared


def append_visits(env: TransformedEnv, visits: Literal["counts", "coverage"] | StateCounts) -> None:
    """Appends visit counts, and a ``state_id`` if missing; does nothing if there are visit counts already."""
    if find_transform(env, StateCounts) is not None:
        return
    if "state_id" not in env.full_observation_spec.keys():
        key = "pixels" if "pixels" in env.full_observation_spec.keys() else "observation"
        made = find_transform(env, ObservationFormat)
        # A vector made from integers repeats exactly.
        exact = key == "observation" and made is not None and made.whole_numbers
        env.append_transform(HashedState(in_key=key, kind="exact" if exact else "auto"))
    states = num_states(env)
    if isinstance(visits, StateCounts):
        if visits.counts.numel() != states:
            raise ValueError(
                f"visits counts {visits.counts.numel()} states, but this environment has {states}"
            )
        env.append_transform(visits.clone())
    else:
        env.append_transform((StateCounts if visits == "counts" else Coverage)(states))


def _action_chain(env: EnvBase) -> list[Transform]:
    specs = dict(env.full_action_spec.items(True, True))
    if set(specs) != {"action"}:
        raise ValueError(
            f"actions under {', '.join(map(repr, map(str, specs))) or 'no entry'} are not supported: {_SUPPORTED}"
        )
    spec = specs["action"]
    shape = list(spec.shape[len(env.batch_size) :])
    one = isinstance(spec, Categorical) and shape in ([], [1])
    if isinstance(spec, MultiCategorical | MultiOneHot | Binary) or (
        isinstance(spec, Categorical) and not one
    ):
        raise ValueError(
            f"several discrete actions at once (shape {shape}) are not supported: {_SUPPORTED}"
        )
    if isinstance(spec, OneHot) or (one and shape):
        return [CategoricalAction()]
    if not isinstance(spec, Categorical):
        raise ValueError(f"continuous actions of shape {shape} are not supported: {_SUPPORTED}")
    return []


def _bookkeeping(env: EnvBase) -> list[Transform]:
    entries = set(env.full_observation_spec.keys(True, True))
    rewards = dict(env.full_reward_spec.items(True, True))
    one = torch.Size([*env.batch_size, 1])
    if set(rewards) != {"reward"} or rewards["reward"].shape != one:
        named = {str(key): list(spec.shape) for key, spec in rewards.items()}
        raise ValueError(
            f"rewards {named} are not supported: supported is one number a step under the entry 'reward', of shape "
            f"{list(one)}"
        )
    if "done" not in env.full_done_spec.keys():
        raise ValueError(
            "an end of episodes under "
            f"{', '.join(map(repr, map(str, env.done_keys)))} is not supported: supported is the entry 'done'"
        )
    chain: list[Transform] = []
    if "is_init" not in entries:
        chain.append(InitTracker())
    if "episode_reward" not in entries:
        chain.append(RewardSum())
    return chain
