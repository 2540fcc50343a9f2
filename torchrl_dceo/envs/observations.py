"""Formats observations: any Gymnasium space or TorchRL spec becomes one image or one vector."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)
from torchrl.envs import EnvBase, InitTracker, RewardSum, StepCounter, Transform, TransformedEnv

from torchrl_dceo.envs.table_env import TableEnv
from torchrl_dceo.envs.transforms import transforms_of

__all__ = [
    "Layout",
    "ObservationFormat",
    "ObservationReader",
    "as_torchrl",
    "observation_chain",
]

Layout = Literal["auto", "chw", "hwc"]
# Written by transforms and by this package's environments; not observations.
_NOT_OBSERVED = {
    "coverage", "episode_reward", "is_init", "option", "pose", "position", "ram", "state_id", "step_count", "traj_ids",
}  # fmt: skip
_FEW_CHANNELS = 4
# The largest number of entries of an image that is flattened into a vector with other entries.
_SMALL_IMAGE = 2000
# Larger bounds are those of the dtype, not of the values.
_LARGEST_BOUND = 2**16
_BRIGHTEST = 255
_MASK = "action_mask"


class ObservationFormat(Transform):
    """Turns an environment's observation entries into the entry of the networks: ``pixels`` or ``observation``.

    An image becomes ``uint8 [*, C, H, W]`` under ``pixels``; a stack of images ``[*, T, …]`` has the channels of all
    of them. Everything else becomes one float vector under ``observation``: entries flattened and concatenated,
    indices as one-hot vectors, integers divided by the largest value of their spec. The original
    entries are kept, because an environment may read its own state from them.

    Args:
        in_keys (sequence of NestedKey): the entries to read: one image, or any number of others.

    Keyword Args:
        image (bool): whether they are an image.
        layout (str, optional): of the image: ``"chw"``, ``"hwc"`` or ``"hw"``.

    Examples:
        >>> from torchrl.envs import GymEnv, TransformedEnv
        >>> from torchrl_dceo.envs.observations import ObservationFormat
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
            out = _as_image(values[0], self._specs[0], self.layout, num_batch)
        else:
            parts = zip(values, self._specs, strict=True)
            out = torch.cat([_as_vector(value, spec, num_batch) for value, spec in parts], -1)
        return next_tensordict.set(self.out_keys[0], out)

    @property
    def whole_numbers(self) -> bool:
        """Whether all entries that it reads are integers."""
        spec = self.parent.full_observation_spec
        return not any(spec[key].dtype.is_floating_point for key in self.in_keys)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the formatted entry."""
        specs = [observation_spec[key] for key in self.in_keys]
        num_batch = len(observation_spec.shape)
        if self.image:
            shape = _as_image(specs[0].zero(), specs[0], self.layout, num_batch).shape
            out = Bounded(
                0, _brightest(specs[0]), shape=shape, dtype=torch.uint8, device=specs[0].device
            )
        else:
            parts = [_as_vector(spec.zero(), spec, num_batch) for spec in specs]
            shape = torch.cat(parts, -1).shape
            out = Unbounded(shape=shape, dtype=torch.float32, device=specs[0].device)
        observation_spec[self.out_keys[0]] = out
        return observation_spec


def _as_image(value: Tensor, spec: TensorSpec, layout: str, num_batch: int) -> Tensor:
    if layout == "hwc":
        value = value.movedim(-1, -3)
    elif layout == "hw":
        value = value.unsqueeze(-3)
    if value.ndim == num_batch + 4:  # a stack of images: concatenate their channels
        value = value.flatten(-4, -3)
    if value.dtype is torch.uint8:
        return value
    if value.dtype is torch.bool:
        return value.to(torch.uint8) * 255
    low, high = spec.space.low.min(), spec.space.high.max()
    if value.is_floating_point():
        return ((value - low) * (255 / (high - low))).round().to(torch.uint8)
    return (value.long() - int(low)).to(torch.uint8)


def _brightest(spec: TensorSpec) -> int:
    """The largest value of the image made from an entry: 255, unless its integers have a lower bound."""
    if spec.dtype is torch.bool or spec.dtype.is_floating_point or spec.space is None:
        return _BRIGHTEST
    low, high = int(spec.space.low.min()), int(spec.space.high.max())
    return max(1, high if spec.dtype is torch.uint8 else high - low)


def _is_index(spec: TensorSpec) -> bool:
    # TorchRL's Binary and MultiCategorical are kinds of Categorical.
    return isinstance(spec, Categorical) and not isinstance(spec, Binary | MultiCategorical)


def _as_vector(value: Tensor, spec: TensorSpec, num_batch: int) -> Tensor:
    if isinstance(spec, MultiCategorical):
        sizes = [box.n for box in spec.space]
        one_hot = torch.nn.functional.one_hot
        indices = zip(value.long().unbind(-1), sizes, strict=True)
        value = torch.cat([one_hot(index, size) for index, size in indices], -1)
    elif _is_index(spec):
        value = torch.nn.functional.one_hot(value.long(), int(spec.space.n))
    flat = value.reshape(*value.shape[:num_batch], -1).to(torch.float32)
    return flat / _magnitude(spec)


def _magnitude(spec: TensorSpec) -> int:
    """The largest integer that a spec allows; 1 for other specs."""
    if isinstance(spec, Categorical | OneHot) or spec.dtype.is_floating_point:
        return 1
    if spec.dtype is torch.bool or spec.space is None:
        return 1
    largest = max(abs(int(spec.space.low.min())), abs(int(spec.space.high.max())))
    return max(1, largest) if largest < _LARGEST_BOUND else 1


def observation_chain(
    env: EnvBase, chosen: NestedKey | Sequence[NestedKey] | None, layout: Layout
) -> list[ObservationFormat]:
    """The transform that writes ``pixels`` or ``observation``, or ``None`` if the environment has one already.

    Args:
        env (EnvBase): any environment.
        chosen (NestedKey or sequence of NestedKey, optional): the entries to read, see
            :func:`~torchrl_dceo.envs.prepare_env`.
        layout (str): see there.
    """
    if layout not in ("auto", "chw", "hwc"):
        raise ValueError(f"layout must be 'auto', 'chw' or 'hwc', got {layout!r}")
    innermost = env
    while isinstance(innermost, TransformedEnv):
        innermost = innermost.base_env
    # The images of this package's maps are [C, H, W], however small.
    if chosen is None and layout == "auto" and isinstance(innermost, TableEnv):
        layout = "chw"
    hidden = _NOT_OBSERVED | _bookkeeping_keys(env)
    leaves = {
        key: spec
        for key, spec in env.full_observation_spec.items(True, True)
        if (key if isinstance(key, str) else key[0]) not in hidden
        and not isinstance(spec, NonTensor)
    }
    num_batch = len(env.batch_size)
    keys = _chosen_keys(leaves, chosen, num_batch)
    image = _is_image(leaves[keys[0]], num_batch) and len(keys) == 1
    if not image:
        done = keys == ["observation"] and _is_plain_vector(leaves["observation"], num_batch)
        return [] if done else [ObservationFormat(keys, image=False)]
    spec, key = leaves[keys[0]], keys[0]
    shape = spec.shape[num_batch:]
    found = "hw" if len(shape) == 2 else _layout_of(shape, key) if layout == "auto" else layout
    if found == "chw" and len(shape) == 3 and spec.dtype is torch.uint8 and key == "pixels":
        return []
    _check_image_range(spec, key)
    return [ObservationFormat(keys, image=True, layout=found)]


def _bookkeeping_keys(env: EnvBase) -> set[str]:
    """The keys that transforms write about the episode, which are not observations."""
    keys: list[NestedKey] = []
    for tracker in transforms_of(env, InitTracker):
        keys += tracker.init_keys
    for total in transforms_of(env, RewardSum):
        keys += total.out_keys
    for counter in transforms_of(env, StepCounter):
        keys += counter.step_count_keys
    return {key if isinstance(key, str) else key[0] for key in keys}


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
    masks = [key for key in leaves if (key if isinstance(key, str) else key[-1]) == _MASK]
    if masks:
        raise ValueError(
            f"masks of actions ({masks[0]!r}) are not supported, every action must be allowed in every state: "
            "prepare_env(env, observation=[…]) names the entries to read, without the mask"
        )
    if not any(spec.shape[num_batch:].numel() for spec in leaves.values()):
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
    return num_dims in (3, 4) or (num_dims == 2 and spec.dtype is torch.uint8)


def _is_plain_vector(spec: TensorSpec, num_batch: int) -> bool:
    return len(spec.shape) == num_batch + 1 and spec.dtype is torch.float32


def _check_image_range(spec: TensorSpec, key: NestedKey) -> None:
    if spec.dtype in (torch.uint8, torch.bool):
        return
    space = spec.space
    span = float("inf") if space is None else float(space.high.max()) - float(space.low.min())
    if span > (_LARGEST_BOUND if spec.dtype.is_floating_point else _BRIGHTEST):
        raise ValueError(
            f"the image {key!r} is {spec.dtype} without bounds: give it uint8 values, or a spec with the bounds of its "
            "values, e.g. Bounded(0, 1, …)"
        )


def _layout_of(shape: Sequence[int], key: NestedKey) -> Literal["chw", "hwc"]:
    """The channel dimension, inferred from the shape: channels are few, and the two sides are often equal."""
    first, middle, last = shape[-3:]
    chw = (first <= _FEW_CHANNELS) + (middle == last)
    hwc = (last <= _FEW_CHANNELS) + (first == middle)
    if chw == hwc:
        raise ValueError(
            f"the shape {list(shape)} of the image {key!r} does not determine its channel dimension: "
            "prepare_env(env, layout='hwc') or layout='chw' (env.layout=hwc on the command line)"
        )
    return "chw" if chw > hwc else "hwc"


def as_torchrl(env: EnvBase | gymnasium.Env | gymnasium.vector.VectorEnv) -> EnvBase:
    """Wraps a Gymnasium environment for TorchRL, without non-numeric entries; returns a TorchRL environment unchanged.

    Examples:
        >>> import gymnasium
        >>> from torchrl_dceo.envs.observations import as_torchrl
        >>> env = as_torchrl(gymnasium.make("Blackjack-v1"))  # a tuple of three indices
        >>> sorted(env.reset().exclude("done", "terminated", "truncated").keys())
        ['0', '1', '2']
    """
    if isinstance(env, EnvBase):
        return env
    from torchrl.envs import GymWrapper

    if isinstance(env, gymnasium.vector.VectorEnv):
        mode = env.metadata.get("autoreset_mode")
        if mode is gymnasium.vector.AutoresetMode.NEXT_STEP:
            raise ValueError(
                f"a {type(env).__name__} that resets itself at the next step is not supported: gymnasium.make_vec(…, "
                "vector_kwargs={'autoreset_mode': gymnasium.vector.AutoresetMode.DISABLED})"
            )
    elif isinstance(env, gymnasium.Env):
        env = _plain(env)
    else:
        raise TypeError(
            "an environment must be TorchRL's EnvBase, gymnasium.Env or gymnasium.vector.VectorEnv, got "
            f"{type(env).__name__}"
        )
    return GymWrapper(env, categorical_action_encoding=True, device="cpu")


def _plain(env: gymnasium.Env) -> gymnasium.Env:
    """Converts observations to spaces that TorchRL has specs for: no tuples, texts, or indices that start above 0."""
    space, read = _plain_space(env.observation_space, _largest_index(env))
    if space is None:
        raise ValueError("this environment has no observation that a network could read")
    if space != env.observation_space:
        env = gymnasium.wrappers.TransformObservation(env, read, space)
    actions = env.action_space
    if isinstance(actions, spaces.Discrete) and actions.start:
        first = int(actions.start)
        env = gymnasium.wrappers.TransformAction(
            env, lambda action: int(action) + first, spaces.Discrete(int(actions.n))
        )
    return env


_Read = Callable[[Any], Any]


def _plain_space(space: spaces.Space, largest: int) -> tuple[spaces.Space | None, _Read]:
    """The converted space and the function that converts observations to it; ``None`` for texts."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        pairs = space.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        parts = {key: _plain_space(inner, largest) for key, inner in pairs}
        kept = {str(key): inner for key, (inner, _) in parts.items() if inner is not None}
        reads = {key: read for key, (inner, read) in parts.items() if inner is not None}
        if not kept:
            return None, _same
        return spaces.Dict(kept), lambda seen: {str(k): read(seen[k]) for k, read in reads.items()}
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return spaces.Discrete(int(space.n)), lambda seen: int(seen) - first
    if isinstance(space, spaces.MultiDiscrete):
        start = space.start.ravel()
        return spaces.MultiDiscrete(space.nvec.ravel()), lambda seen: np.ravel(seen) - start
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary(int(np.prod(space.shape))), np.ravel
    if isinstance(space, spaces.Box):
        return _plain_box(space, largest)
    if isinstance(space, spaces.Text) or type(space).__name__ == "MissionSpace":
        return None, _same
    raise ValueError(
        f"observations of {type(space).__name__} are not supported: supported are images, vectors, indices, and "
        "dictionaries and tuples of them"
    )


def _plain_box(space: spaces.Box, largest: int) -> tuple[spaces.Space, _Read]:
    if space.dtype in (
        np.uint16,
        np.uint32,
        np.uint64,
    ):  # torch supports hardly any operations for this dtype
        high = np.minimum(space.high.astype(np.uint64), 2**62).astype(np.int64)
        box = spaces.Box(space.low.astype(np.int64), high, dtype=np.int64)
        return box, lambda seen: np.asarray(seen, dtype=np.int64)
    if space.dtype == np.uint8 and largest < space.high.max():
        return spaces.Box(0, largest, space.shape, np.uint8), _same
    return space, _same


def _same(seen: Any) -> Any:
    return seen


def _largest_index(env: gymnasium.Env) -> int:
    """The bound of MiniGrid's images, whose integers are objects and colours although their space goes up to 255."""
    minigrid = sys.modules.get("minigrid.minigrid_env")
    if minigrid is None or not isinstance(env.unwrapped, minigrid.MiniGridEnv):
        return _BRIGHTEST
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        # Other wrappers may return anything; two of MiniGrid's wrappers return colours.
        own = type(layer).__module__.startswith("minigrid.")
        shows_colours = type(layer).__name__.startswith("RGBImg")
        if isinstance(layer, gymnasium.ObservationWrapper) and (shows_colours or not own):
            return _BRIGHTEST
        layer = layer.env
    from minigrid.core.constants import OBJECT_TO_IDX

    return max(OBJECT_TO_IDX.values())


class ObservationReader:
    """Formats single observations of a Gymnasium environment for an agent, without stepping the environment.

    Args:
        env (gymnasium.Env): the environment.
        layout (str, optional): of images, see :func:`~torchrl_dceo.envs.prepare_env`. Default: ``"auto"``.

    Examples:
        >>> import gymnasium
        >>> from torchrl_dceo.envs.observations import ObservationReader
        >>> env = gymnasium.make("CartPole-v1")
        >>> ObservationReader(env)(env.reset(seed=0)[0])["observation"].shape
        torch.Size([4])
    """

    def __init__(self, env: gymnasium.Env, layout: Layout = "auto") -> None:
        self._torchrl: Any = as_torchrl(env)
        _, self._read = _plain_space(env.observation_space, _BRIGHTEST)
        chain = observation_chain(self._torchrl, None, layout)
        self._format: ObservationFormat | None = None
        if chain:
            self._format = chain[0]
            spec = self._torchrl.full_observation_spec
            self._format._specs = [spec[key] for key in self._format.in_keys]

    def __call__(self, observation: Any) -> TensorDict:
        """The entry ``pixels`` or ``observation``."""
        entries = self._torchrl.read_obs(self._read(observation))
        data = TensorDict(entries, batch_size=[])
        return data if self._format is None else self._format._call(data)
