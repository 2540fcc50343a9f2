"""What agents need of an environment, added where it is missing, so that any can be trained in."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)
from torchrl.envs import (
    CatFrames,
    Compose,
    EnvBase,
    InitTracker,
    RewardSum,
    Transform,
    TransformedEnv,
)

from torchrl_dceo.envs.table_env import TableEnv
from torchrl_dceo.envs.transforms import Coverage, StateCounts, find_transform, num_states
from torchrl_dceo.hashing import ObservationHash, combine, make_hash

__all__ = [
    "CategoricalAction",
    "HashedState",
    "ObservationFormat",
    "PreparedEnv",
    "RewardFree",
    "frame_stack_of",
    "prepare_env",
]

Layout = Literal["auto", "chw", "hwc"]
_SUPPORTED = "supported are discrete actions, one of n, under the entry 'action'"
# Written by transforms and by this package's environments; nothing that an agent looks at.
_NOT_OBSERVED = {
    "coverage", "episode_reward", "is_init", "option", "pose", "position", "ram", "state_id", "step_count", "traj_ids",
}  # fmt: skip
_FEW_CHANNELS = 4
# Numbers of an image that is still read as part of a vector, together with other entries.
_SMALL_IMAGE = 2000
# Places of the table of visits of an environment without state_id: of n states about n²/2²¹ pairs share one.
_HASH_BITS = 20
_NUM_HASHES = 2**_HASH_BITS
_EXACT_HASH = 2**13  # numbers of an image whose states are not yet cells
_CACHE = "_torchrl_dceo_prepared"


class PreparedEnv(TransformedEnv):
    """An environment with all that agents need, as :func:`prepare_env` returns it."""


class CategoricalAction(Transform):
    """Makes a one-hot action a categorical one: the policy writes an index, the environment reads a one-hot vector.

    Keyword Args:
        action_key (NestedKey, optional): Default: ``"action"``.

    Examples:
        >>> from torchrl.envs import GymEnv, TransformedEnv
        >>> from torchrl_dceo.envs.prepare import CategoricalAction
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), CategoricalAction())
        >>> env.action_spec.space.n, env.rollout(3)["action"].shape
        (2, torch.Size([3]))
    """

    def __init__(self, *, action_key: NestedKey = "action") -> None:
        super().__init__(in_keys_inv=[action_key], out_keys_inv=[action_key])
        self._num_actions = 0
        self._dtype = torch.int64

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Replaces the spec of the action."""
        key = unravel_key(("full_action_spec", self.in_keys_inv[0]))
        one_hot = input_spec[key]
        self._num_actions, self._dtype = int(one_hot.space.n), one_hot.dtype
        input_spec[key] = Categorical(
            self._num_actions, shape=one_hot.shape[:-1], dtype=torch.int64, device=one_hot.device
        )
        return input_spec

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        key = self.in_keys_inv[0]
        action = tensordict.get(key, None)
        if action is None:  # a reset comes without action
            return tensordict
        if not self._num_actions:
            spec = self.parent.full_action_spec[key]
            self._num_actions, self._dtype = int(spec.space.n), spec.dtype
        one_hot = torch.nn.functional.one_hot(action, self._num_actions)
        return tensordict.set(key, one_hot.to(self._dtype))


class ObservationFormat(Transform):
    """Turns an environment's entries into the one that networks read: ``pixels`` or ``observation``.

    An image becomes ``uint8 [*, C, H, W]`` under ``pixels``. Everything else becomes one float vector under
    ``observation``: entries flattened and put side by side, indices as one-hot vectors. The entries that it is made of
    are no longer shown.

    Args:
        in_keys (sequence of NestedKey): the entries to read: one image, or any number of others.

    Keyword Args:
        image (bool): whether they are an image.
        layout (str, optional): of the image: ``"chw"``, ``"hwc"`` or ``"hw"``.

    Examples:
        >>> from torchrl.envs import GymEnv, TransformedEnv
        >>> from torchrl_dceo.envs.prepare import ObservationFormat
        >>> base = GymEnv("FrozenLake-v1", categorical_action_encoding=True)
        >>> env = TransformedEnv(base, ObservationFormat(["observation"], image=False))
        >>> env.reset()["observation"].sum()  # one of 16 squares
        tensor(1.)
    """

    def __init__(
        self,
        in_keys: Sequence[NestedKey],
        *,
        image: bool,
        layout: Literal["chw", "hwc", "hw"] = "chw",
    ) -> None:
        self.image, self.layout = image, layout
        super().__init__(in_keys=list(in_keys), out_keys=["pixels" if image else "observation"])
        self._specs: list[TensorSpec] | None = None

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        if self._specs is None:
            spec = self.parent.full_observation_spec
            self._specs = [spec[key] for key in self.in_keys]
        num_batch = len(next_tensordict.batch_size)
        values = [next_tensordict.get(key) for key in self.in_keys]
        if self.image:
            out = _as_image(values[0], self._specs[0], self.layout)
        else:
            parts = zip(values, self._specs, strict=True)
            out = torch.cat([_as_vector(value, spec, num_batch) for value, spec in parts], -1)
        for key in self.in_keys:
            next_tensordict.pop(key if isinstance(key, str) else key[0], None)
        return next_tensordict.set(self.out_keys[0], out)

    @property
    def whole_numbers(self) -> bool:
        """Whether all entries that it reads are whole numbers."""
        spec = self.parent.full_observation_spec
        return not any(spec[key].dtype.is_floating_point for key in self.in_keys)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Replaces the entries by the one that is made of them."""
        specs = [observation_spec[key] for key in self.in_keys]
        num_batch = len(observation_spec.shape)
        if self.image:
            shape = _as_image(specs[0].zero(), specs[0], self.layout).shape
            out = Bounded(0, 255, shape=shape, dtype=torch.uint8, device=specs[0].device)
        else:
            parts = [_as_vector(spec.zero(), spec, num_batch) for spec in specs]
            shape = torch.cat(parts, -1).shape
            out = Unbounded(shape=shape, dtype=torch.float32, device=specs[0].device)
        for key in self.in_keys:
            name = key if isinstance(key, str) else key[0]
            if name in observation_spec.keys():
                del observation_spec[name]
        observation_spec[self.out_keys[0]] = out
        return observation_spec


def _as_image(value: Tensor, spec: TensorSpec, layout: str) -> Tensor:
    if layout == "hwc":
        value = value.movedim(-1, -3)
    elif layout == "hw":
        value = value.unsqueeze(-3)
    if value.dtype is torch.uint8:
        return value
    if value.dtype is torch.bool:
        return value.to(torch.uint8) * 255
    low, high = spec.space.low.min(), spec.space.high.max()
    if value.is_floating_point():
        return ((value - low) * (255 / (high - low))).round().to(torch.uint8)
    return (value - low.to(value.dtype)).to(torch.uint8)


def _is_index(spec: TensorSpec) -> bool:
    # TorchRL's Binary and MultiCategorical are kinds of Categorical.
    return isinstance(spec, Categorical) and not isinstance(spec, Binary | MultiCategorical)


def _as_vector(value: Tensor, spec: TensorSpec, num_batch: int) -> Tensor:
    if _is_index(spec):
        value = torch.nn.functional.one_hot(value.long(), int(spec.space.n))
    return value.reshape(*value.shape[:num_batch], -1).to(torch.float32)


class HashedState(Transform):
    """Writes a ``state_id`` for environments that have none: the hash of the observation.

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
        # Multiplied by a number of well spread bits; the highest bits depend on all bits of the hash.
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
    """Sets every reward to 0: the environment of a phase in which options are discovered.

    Episodes end where they did: what ends one, a transform cannot know.

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
    """The transform that stacks the frames that agents see under ``key``, or ``None``.

    A stack that is formatted afterwards (its channels moved, say) is an observation like any other.

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
    env: EnvBase | gymnasium.Env,
    *,
    observation: NestedKey | Sequence[NestedKey] | None = None,
    layout: Layout = "auto",
    visits: Literal["counts", "coverage"] | StateCounts | None = None,
    reward_free: bool = False,
    transforms: Sequence[Transform] = (),
) -> EnvBase:
    """Returns an environment with all that agents need of it; what is there already is not added again.

    Added where they are missing: categorical actions, one observation (an image ``uint8 [*, C, H, W]`` under ``pixels``
    or a float vector under ``observation``), ``is_init`` (TorchRL's ``InitTracker``) and ``episode_reward``
    (``RewardSum``). An environment that has all of it is returned as it is, and one that was prepared before is
    returned as it was then, so that an agent and its training use the same. :func:`~torchrl_dceo.agents.make_agent`
    and :func:`~torchrl_dceo.training.train` call this themselves: call it only to choose.

    Args:
        env (EnvBase or gymnasium.Env): with discrete actions.

    Keyword Args:
        observation (NestedKey or sequence of NestedKey, optional): the entries to read. Default: ``pixels``, or
            ``observation``, or all entries put side by side as a vector; of a large image and other entries, the image.
        layout (str, optional): ``"chw"`` or ``"hwc"``, of images; ``"auto"``: as their shape says. Default: ``"auto"``.
        visits (str or StateCounts, optional): counts visited states, as in :func:`~torchrl_dceo.envs.make_env`. Where
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
    prepared = env if isinstance(env, PreparedEnv) else env.__dict__.get(_CACHE)
    if prepared is None:
        base = as_torchrl(env)
        chain = [
            *_action_chain(base),
            *_observation_chain(base, observation, layout),
            *([RewardFree()] if reward_free else []),
            *_bookkeeping(base),
            *transforms,
        ]
        if not chain and visits is None:
            return base
        # On a device by name: an environment without one is asked to cast at every step.
        device = {"device": "cpu"} if base.device is None else {}
        prepared = PreparedEnv(base, Compose(*chain), **device)
        # Not as an attribute of the module, which would be a part of itself.
        env.__dict__[_CACHE] = prepared
    elif observation is not None or layout != "auto" or reward_free or transforms:
        raise ValueError("this environment was prepared before: choose when it is prepared first")
    if visits is not None:
        append_visits(prepared, visits)
    return prepared


class ObservationReader:
    """Turns single observations of a Gymnasium environment into what agents see of it, without stepping it.

    Args:
        env (gymnasium.Env): the environment.
        layout (str, optional): of images, see :func:`prepare_env`. Default: ``"auto"``.

    Examples:
        >>> import gymnasium
        >>> from torchrl_dceo.envs.prepare import ObservationReader
        >>> env = gymnasium.make("CartPole-v1")
        >>> ObservationReader(env)(env.reset(seed=0)[0])["observation"].shape
        torch.Size([4])
    """

    def __init__(self, env: gymnasium.Env, layout: Layout = "auto") -> None:
        self._torchrl: Any = as_torchrl(env)
        chain = _observation_chain(self._torchrl, None, layout)
        self._format: ObservationFormat | None = None
        if chain:
            self._format = chain[0]
            spec = self._torchrl.full_observation_spec
            self._format._specs = [spec[key] for key in self._format.in_keys]

    def __call__(self, observation: Any) -> TensorDict:
        """The entry ``pixels`` or ``observation``."""
        if isinstance(observation, dict):
            spec = self._torchrl.full_observation_spec
            observation = {key: observation[key] for key in observation if key in spec.keys()}
        entries = self._torchrl.read_obs(observation)
        data = TensorDict(entries, batch_size=[])
        return data if self._format is None else self._format._call(data)


def append_visits(env: TransformedEnv, visits: Literal["counts", "coverage"] | StateCounts) -> None:
    """Appends a table of visits, and a ``state_id`` if there is none; not a second one."""
    if find_transform(env, StateCounts) is not None:
        return
    if "state_id" not in env.full_observation_spec.keys():
        key = "pixels" if "pixels" in env.full_observation_spec.keys() else "observation"
        made = find_transform(env, ObservationFormat)
        # A vector that was made of whole numbers repeats to the last digit.
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


def as_torchrl(env: EnvBase | gymnasium.Env) -> EnvBase:
    """A Gymnasium environment under TorchRL, without entries that are no numbers; a TorchRL environment as it is."""
    if isinstance(env, EnvBase):
        return env
    if not isinstance(env, gymnasium.Env):
        raise TypeError(
            f"an environment must be TorchRL's EnvBase or gymnasium.Env, got {type(env).__name__}"
        )
    from torchrl.envs import GymWrapper

    return GymWrapper(_numeric(env), categorical_action_encoding=True, device="cpu")


def _numeric(env: gymnasium.Env) -> gymnasium.Env:
    """Without texts, such as the mission of MiniGrid: TorchRL has no spec for them, and networks cannot read them."""
    space = env.observation_space
    if not isinstance(space, gymnasium.spaces.Dict):
        return env
    numbers = {
        key: sub for key, sub in space.items() if not isinstance(sub, gymnasium.spaces.Text)
        and type(sub).__name__ != "MissionSpace"
    }  # fmt: skip
    if len(numbers) == len(space.spaces):
        return env
    kept = gymnasium.spaces.Dict(numbers)
    return gymnasium.wrappers.TransformObservation(
        env, lambda entries: {key: entries[key] for key in numbers}, kept
    )


def _action_chain(env: EnvBase) -> list[Transform]:
    specs = dict(env.full_action_spec.items(True, True))
    if set(specs) != {"action"}:
        raise ValueError(
            f"actions under {', '.join(map(repr, map(str, specs))) or 'no entry'} are not supported: {_SUPPORTED}"
        )
    spec = specs["action"]
    shape = list(spec.shape[len(env.batch_size) :])
    if isinstance(spec, MultiCategorical | MultiOneHot | Binary) or (
        isinstance(spec, Categorical) and shape
    ):
        raise ValueError(
            f"several discrete actions at once (shape {shape}) are not supported: {_SUPPORTED}"
        )
    if isinstance(spec, OneHot):
        return [CategoricalAction()]
    if not isinstance(spec, Categorical):
        raise ValueError(f"continuous actions of shape {shape} are not supported: {_SUPPORTED}")
    return []


def _bookkeeping(env: EnvBase) -> list[Transform]:
    entries = set(env.full_observation_spec.keys(True, True))
    if len(list(env.full_reward_spec.keys(True, True))) != 1:
        raise ValueError(
            f"one reward per step is supported, got {sorted(map(str, env.full_reward_spec.keys(True, True)))}"
        )
    chain: list[Transform] = []
    if "is_init" not in entries:
        chain.append(InitTracker())
    if "episode_reward" not in entries:
        chain.append(RewardSum())
    return chain


def _observation_chain(
    env: EnvBase, chosen: NestedKey | Sequence[NestedKey] | None, layout: Layout
) -> list[ObservationFormat]:
    if layout not in ("auto", "chw", "hwc"):
        raise ValueError(f"layout must be 'auto', 'chw' or 'hwc', got {layout!r}")
    innermost = env
    while isinstance(innermost, TransformedEnv):
        innermost = innermost.base_env
    # The images of this package's maps are [C, H, W], however small.
    if chosen is None and layout == "auto" and isinstance(innermost, TableEnv):
        layout = "chw"
    leaves = {
        key: spec
        for key, spec in env.full_observation_spec.items(True, True)
        if (key if isinstance(key, str) else key[0]) not in _NOT_OBSERVED
        and not isinstance(spec, NonTensor)
    }
    keys = _chosen_keys(leaves, chosen, len(env.batch_size))
    image = _is_image(leaves[keys[0]], len(env.batch_size)) and len(keys) == 1
    if not image:
        done = keys == ["observation"] and _is_plain_vector(
            leaves["observation"], len(env.batch_size)
        )
        return [] if done else [ObservationFormat(keys, image=False)]
    spec, key = leaves[keys[0]], keys[0]
    shape = spec.shape[len(env.batch_size) :]
    found = "hw" if len(shape) == 2 else _layout_of(shape, key) if layout == "auto" else layout
    if found == "chw" and spec.dtype is torch.uint8 and key == "pixels":
        return []
    _check_image_range(spec, key)
    return [ObservationFormat(keys, image=True, layout=found)]


def _chosen_keys(
    leaves: dict[Any, TensorSpec],
    chosen: NestedKey | Sequence[NestedKey] | None,
    num_batch: int,
) -> list[NestedKey]:
    if chosen is not None:
        keys = [chosen] if isinstance(chosen, str | tuple) else list(chosen)
        for key in keys:
            if key not in leaves:
                raise ValueError(
                    f"this environment has no observation {key!r}; it has {sorted(map(str, leaves))}"
                )
        return keys
    if not leaves:
        raise ValueError("this environment has no observation that a network could read")
    for key in ("pixels", "observation"):
        if key in leaves:
            return [key]
    images = [key for key, spec in leaves.items() if _is_image(spec, num_batch)]
    sizes = [leaves[key].shape[num_batch:].numel() for key in images]
    if len(leaves) > 1 and images and max(sizes) > _SMALL_IMAGE:
        key = images[sizes.index(max(sizes))]
        others = ", ".join(repr(str(other)) for other in leaves if other != key)
        warnings.warn(
            f"agents read the image {key!r} and leave out {others}: prepare_env(env, observation=[…]) chooses others",
            stacklevel=4,
        )
        return [key]
    return sorted(leaves, key=str)


def _is_image(spec: TensorSpec, num_batch: int) -> bool:
    num_dims = len(spec.shape) - num_batch
    if isinstance(spec, Categorical | OneHot):
        return False
    return num_dims == 3 or (num_dims == 2 and spec.dtype is torch.uint8)


def _is_plain_vector(spec: TensorSpec, num_batch: int) -> bool:
    return len(spec.shape) == num_batch + 1 and spec.dtype is torch.float32


def _check_image_range(spec: TensorSpec, key: NestedKey) -> None:
    if spec.dtype in (torch.uint8, torch.bool):
        return
    space = spec.space
    low, high = (None, None) if space is None else (space.low.min(), space.high.max())
    if (
        low is None
        or not (high - low).isfinite()
        or (not spec.dtype.is_floating_point and high - low > 255)
    ):
        raise ValueError(
            f"the image {key!r} is {spec.dtype} without bounds: give it uint8 values, or a spec with the bounds of its "
            "values, e.g. Bounded(0, 1, …)"
        )


def _layout_of(shape: Sequence[int], key: NestedKey) -> Literal["chw", "hwc"]:
    """Where the channels are: few of them, and the two sides of an image are often equal."""
    first, middle, last = shape
    chw = (first <= _FEW_CHANNELS) + (middle == last)
    hwc = (last <= _FEW_CHANNELS) + (first == middle)
    if chw == hwc:
        raise ValueError(
            f"the shape {list(shape)} of the image {key!r} does not say where its channels are: "
            "prepare_env(env, layout='hwc') or layout='chw' (env.layout=hwc on the command line)"
        )
    return "chw" if chw > hwc else "hwc"
