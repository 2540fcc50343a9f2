"""Transforms of this package's environments, and the visit counts that several of them share."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from tensordict import MemoryMappedTensor, TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data import Categorical, Composite, OneHot, Unbounded
from torchrl.envs import Compose, EnvBase, Transform, TransformedEnv

__all__ = [
    "ActionNoise",
    "CategoricalAction",
    "Coverage",
    "RowTransform",
    "SharedTable",
    "StateCounts",
    "find_transform",
    "num_states",
    "transforms_of",
]

try:
    import fcntl
except ImportError:  # Windows has no lock: count in one process only
    fcntl = None  # type: ignore[assignment]


class SharedTable:
    """An int64 table in a memory-mapped file, shared by all processes that unpickle it.

    Environments are sent to worker processes by pickle, which copies tensors in shared memory;
    a file can be opened by its name. Additions hold the file's lock, so none is lost, with any number of
    processes on this machine. The file is removed when its creator releases the table, or, if the creator was
    killed, when the next process on this machine creates a table.

    Args:
        size (int): number of entries, initially zero.

    Examples:
        >>> import pickle, torch
        >>> from torchrl_dceo.envs.transforms import SharedTable
        >>> table = SharedTable(4)
        >>> other = pickle.loads(pickle.dumps(table))
        >>> other.add(torch.tensor([1, 1, 3]))
        >>> table.values.tolist()
        [0, 2, 0, 1]
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        _remove_orphans()
        handle, name = tempfile.mkstemp(prefix=f"{_prefix()}{os.getpid()}_", suffix=_SUFFIX)
        os.close(handle)
        # An empty file is removed first: the mapping creates it with the right size.
        os.unlink(name)
        mapped = MemoryMappedTensor.zeros(size, dtype=torch.int64, filename=name)
        self._attach(name, mapped)
        self._finalizer = weakref.finalize(self, _remove, name, os.getpid())

    def _attach(self, name: str, mapped: MemoryMappedTensor) -> None:
        self._name = name
        self.values: Tensor = mapped.as_subclass(torch.Tensor)
        self._file: BinaryIO | None = None
        self._pid = -1

    def add(self, indices: Tensor) -> None:
        """Adds one for each index, repeated ones included."""
        flat = indices.reshape(-1).to(self.values.device)
        ones = torch.ones_like(flat)
        file = self._lock_file()
        if file is None:
            self.values.index_add_(0, flat, ones)
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            self.values.index_add_(0, flat, ones)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _lock_file(self) -> BinaryIO | None:
        if fcntl is None:
            return None
        # A forked child shares its parent's open file and with it the lock: it opens its own.
        if self._file is None or self._pid != os.getpid():
            self._file, self._pid = open(self._name, "rb"), os.getpid()  # noqa: SIM115
        return self._file

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self._name, "size": self.values.numel()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape = torch.Size([state["size"]])
        mapped = MemoryMappedTensor.from_filename(state["name"], torch.int64, shape)
        self._attach(state["name"], mapped)

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedTable:
        # A copy of an environment uses the same table, like a clone of a transform.
        return self


_SUFFIX = ".counts"


def _prefix() -> str:
    # Containers may share a temporary folder but not process ids.
    return f"torchrl_dceo_{zlib.crc32(platform.node().encode()):08x}_"


@functools.cache
def _remove_orphans() -> None:
    """Removes the tables of processes that were killed; runs once per process."""
    if fcntl is None:  # Windows, where os.kill(pid, 0) would end the process
        return
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix()}*{_SUFFIX}"):
        creator = path.name.removeprefix(_prefix()).partition("_")[0]
        if creator.isdigit() and not _is_alive(int(creator)):
            with contextlib.suppress(OSError):  # another user's
                path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's, or not a process id
        return True
    return True


def _remove(name: str, creator: int) -> None:
    # A forked child runs its parent's finalizers too.
    if os.getpid() == creator:
        Path(name).unlink(missing_ok=True)


_T = TypeVar("_T", bound=Transform)


def num_states(env: EnvBase, state_key: NestedKey = "state_id") -> int:
    """Returns the number of values of an environment's ``state_id``.

    Examples:
        >>> from torchrl_dceo.envs import RubiksCubeEnv, num_states
        >>> num_states(RubiksCubeEnv(max_depth=3, batch_size=[2]))
        385
    """
    keys = env.full_observation_spec.keys(True, True)
    if state_key not in keys:
        raise KeyError(
            f"the environment has no entry {state_key!r}; it has {sorted(map(str, keys))}"
        )
    return int(env.full_observation_spec[state_key].space.n)


def find_transform(env: EnvBase, kind: type[_T]) -> _T | None:
    """Returns the first transform of a class in a (transformed) environment, or ``None``.

    Examples:
        >>> from torchrl.envs import TransformedEnv
        >>> from torchrl_dceo.envs import RubiksCubeEnv, StateCounts, find_transform
        >>> env = TransformedEnv(RubiksCubeEnv(max_depth=3, coverage=True), StateCounts(385))
        >>> _ = env.rollout(10)
        >>> find_transform(env, StateCounts).counts.sum()
        tensor(11)
    """
    return next(transforms_of(env, kind), None)


def transforms_of(env: EnvBase, kind: type[_T]) -> Iterator[_T]:
    """The transforms of a class in a (transformed) environment, the outermost environment's first.

    Examples:
        >>> from torchrl.envs import InitTracker, RewardSum, TransformedEnv
        >>> from torchrl_dceo.envs import RubiksCubeEnv
        >>> from torchrl_dceo.envs.transforms import transforms_of
        >>> env = TransformedEnv(TransformedEnv(RubiksCubeEnv(), InitTracker()), RewardSum())
        >>> len(list(transforms_of(env, InitTracker)))
        1
    """
    while isinstance(env, TransformedEnv):
        chain = env.transform
        for transform in chain.transforms if isinstance(chain, Compose) else (chain,):
            if isinstance(transform, kind):
                yield transform
        env = env.base_env


class RowTransform(Transform):
    """A transform with columns for the log of a run: the trainer adds :meth:`row` to each row."""

    def row(self) -> dict[str, float]:
        """The values by column; counts per row restart. Default: none."""
        return {}


class StateCounts(Transform):
    """Counts the visits of each state: the exact n(s) of count-based exploration.

    Every step counts the next state (``("next", "state_id")``) and every reset the state
    in which the episode starts: over T steps and K episodes the counts sum to T + K. Nothing is
    written into the tensordict; :attr:`counts` is the table, and :meth:`bonus` reads 1/√n(s) for a
    sampled batch (the agent multiplies by its β).

    All environments of a batch share one table, and so do a :meth:`clone` and any copy that was
    pickled to another process of this machine: to share a table among the workers of a collector,
    build one ``StateCounts`` and pass it to each of their environments.

    The table is part of the ``state_dict`` (and so of ``TransformedEnv.state_dict()``); loading
    writes into the shared table.

    Args:
        num_states (int): size of the table; see :func:`num_states`.

    Keyword Args:
        state_key (NestedKey): Default: ``"state_id"``.

    Examples:
        >>> import torch
        >>> from torchrl.envs import TransformedEnv
        >>> from torchrl_dceo.envs import RubiksCubeEnv, StateCounts
        >>> counts = StateCounts(385)
        >>> cube = RubiksCubeEnv(max_depth=3, batch_size=[4], coverage=True)
        >>> env = TransformedEnv(cube, counts)
        >>> data = env.rollout(25)
        >>> counts.counts.sum()  # 4 environments: 25 steps and one start each
        tensor(104)
        >>> int(counts.counts[data["state_id"][0, 0]]) >= 4  # all of them start there
        True
        >>> counts.bonus(data["next", "state_id"]).shape
        torch.Size([4, 25])
    """

    def __init__(self, num_states: int, *, state_key: NestedKey = "state_id") -> None:
        super().__init__()
        if num_states < 1:
            raise ValueError(f"num_states must be at least 1, got {num_states}")
        self.state_key = state_key
        self._table = SharedTable(num_states)

    @property
    def counts(self) -> Tensor:
        """n(s), int64 ``[num_states]``: the table itself, not a copy."""
        return self._table.values

    @property
    def visited(self) -> Tensor:
        """A mask of the visited states, bool ``[num_states]``."""
        return self.counts > 0

    @property
    def num_visited(self) -> int:
        """The number of distinct visited states."""
        return int(self.counts.count_nonzero())

    def bonus(self, state_ids: Tensor) -> Tensor:
        """Returns 1/√n(s), float32 of the shape of ``state_ids``; 1 for a state never visited."""
        counts = self.counts[state_ids.to(self.counts.device)]
        return counts.clamp(min=1).rsqrt().to(state_ids.device, torch.float32)

    def count(self, data: TensorDictBase) -> None:
        """Adds the visits of steps from other environments.

        Args:
            data (TensorDictBase): steps of a collector, with the entry ``is_init`` of TorchRL's ``InitTracker``.
        """
        self._table.add(data.get(("next", self.state_key)))
        states = data.get(self.state_key)
        self._table.add(states[data.get("is_init").view(states.shape)])

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._table.add(next_tensordict.get(self.state_key))
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        states = tensordict_reset.get(self.state_key)
        reset = tensordict.get("_reset", None)
        self._table.add(states if reset is None else states[reset.view(states.shape)])
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Counts nothing: sampling from a replay buffer is not a visit."""
        return tensordict

    def get_extra_state(self) -> Tensor:
        """The counts, for ``state_dict``."""
        return self.counts.clone()

    def set_extra_state(self, state: Tensor) -> None:
        """Loads the counts into the shared table."""
        if state.shape != self.counts.shape:
            raise ValueError(
                f"the saved counts are of {state.numel()} states, this table of {self.counts.numel()}"
            )
        self.counts.copy_(state)


class Coverage(StateCounts):
    """State counts that also write the number of distinct visited states.

    The entry ``coverage``, int64 ``[*B, 1]``, is the number for all environments that share the table,
    after the step or reset.

    Args:
        num_states (int): size of the table; see :func:`num_states`.

    Keyword Args:
        state_key (NestedKey): Default: ``"state_id"``.
        out_key (NestedKey): Default: ``"coverage"``.

    Examples:
        >>> from torchrl.envs import TransformedEnv
        >>> from torchrl_dceo.envs import Coverage, RubiksCubeEnv
        >>> cube = RubiksCubeEnv(max_depth=3, coverage=True, slip=0.0)
        >>> env = TransformedEnv(cube, Coverage(385))
        >>> data = env.rollout(3, lambda td: td.set("action", cube.action_index("F")))
        >>> data["next", "coverage"].flatten().tolist()  # three new states besides the start
        [2, 3, 4]
    """

    def __init__(
        self,
        num_states: int,
        *,
        state_key: NestedKey = "state_id",
        out_key: NestedKey = "coverage",
    ) -> None:
        super().__init__(num_states, state_key=state_key)
        self.out_keys = [out_key]

    def _write(self, tensordict: TensorDictBase) -> TensorDictBase:
        total = self.counts.count_nonzero().to(tensordict.get(self.state_key).device)
        tensordict.set(self.out_keys[0], total.expand(*tensordict.batch_size, 1).clone())
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._write(super()._step(tensordict, next_tensordict))

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._write(super()._reset(tensordict, tensordict_reset))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the entry ``coverage``."""
        shape = (*observation_spec.shape, 1)
        observation_spec[self.out_keys[0]] = Unbounded(
            shape=shape, dtype=torch.int64, device=observation_spec.device
        )
        return observation_spec


class ActionNoise(Transform):
    """Overwrites the action by a uniformly random one with some probability (the paper's 0.15).

    For environments without a slip setting. The environment gets the overwritten
    action; the tensordict keeps the policy's action. The random numbers come from the
    transform's own generator, which is part of its ``state_dict``. (``env.set_seed`` does not
    affect transforms: give each worker's transform its own seed.)

    Args:
        prob (float): probability per step and environment. Default: 0.15.

    Keyword Args:
        seed (int, optional): by default drawn from torch's global generator.
        action_key (NestedKey): a categorical action. Default: ``"action"``.

    Examples:
        >>> import torch
        >>> from torchrl.envs import GymEnv, TransformedEnv
        >>> from torchrl_dceo.envs import ActionNoise
        >>> base = GymEnv("CartPole-v1", categorical_action_encoding=True)
        >>> env = TransformedEnv(base, ActionNoise(0.15, seed=0))
        >>> env.rollout(3)["action"].shape
        torch.Size([3])
    """

    def __init__(
        self,
        prob: float = 0.15,
        *,
        seed: int | None = None,
        action_key: NestedKey = "action",
    ) -> None:
        super().__init__(in_keys_inv=[action_key], out_keys_inv=[action_key])
        if not 0.0 <= prob <= 1.0:
            raise ValueError(f"prob must lie in [0, 1], got {prob}")
        self.prob = float(prob)
        self._num_actions: int | None = None
        seed = int(torch.randint(2**31, ())) if seed is None else seed
        self._generator = torch.Generator().manual_seed(seed)

    def set_container(self, container: Transform | EnvBase) -> None:
        """Clears the number of actions of an earlier environment."""
        self._num_actions = None
        super().set_container(container)

    def _count_actions(self) -> int:
        if self._num_actions is None:
            if self.parent is None:
                raise RuntimeError("ActionNoise has no environment: append it to a TransformedEnv")
            spec = self.parent.full_action_spec[self.in_keys_inv[0]]
            if not isinstance(spec, Categorical):
                raise TypeError(
                    f"ActionNoise needs a categorical action, got {type(spec).__name__}: build the "
                    "environment with categorical_action_encoding=True"
                )
            self._num_actions = int(spec.space.n)
        return self._num_actions

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        key = self.in_keys_inv[0]
        action = tensordict.get(key, None)
        if action is None or self.prob == 0.0:  # a reset comes without action
            return tensordict
        num_actions = self._count_actions()
        # Given u < prob, u / prob is uniform again: one draw serves both choices.
        u = torch.rand(action.shape, generator=self._generator).to(action.device)
        random = (u * (num_actions / self.prob)).long().clamp_(max=num_actions - 1)
        tensordict.set(key, torch.where(u < self.prob, random, action))
        return tensordict

    def get_extra_state(self) -> Tensor:
        """The generator's state, for ``state_dict``."""
        return self._generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Restores the generator."""
        self._generator.set_state(state.cpu())


class CategoricalAction(Transform):
    """Converts one-hot actions, or indices of shape ``[*, 1]``, to plain indices, which the policy then writes.

    Keyword Args:
        action_key (NestedKey, optional): Default: ``"action"``.

    Examples:
        >>> from torchrl.envs import GymEnv, TransformedEnv
        >>> from torchrl_dceo.envs.transforms import CategoricalAction
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), CategoricalAction())
        >>> env.action_spec.space.n, env.rollout(3)["action"].shape
        (2, torch.Size([3]))
    """

    def __init__(self, *, action_key: NestedKey = "action") -> None:
        super().__init__(in_keys_inv=[action_key], out_keys_inv=[action_key])
        self._own_spec: Any = None  # the environment's

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Replaces the spec of the action."""
        key = unravel_key(("full_action_spec", self.in_keys_inv[0]))
        own = self._own_spec = input_spec[key]
        input_spec[key] = Categorical(
            int(own.space.n), shape=own.shape[:-1], dtype=torch.int64, device=own.device
        )
        return input_spec

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        key = self.in_keys_inv[0]
        action = tensordict.get(key, None)
        if action is None:  # a reset comes without action
            return tensordict
        if self._own_spec is None:
            self._own_spec = self.parent.full_action_spec[key]
        if isinstance(self._own_spec, OneHot):
            action = torch.nn.functional.one_hot(action, int(self._own_spec.space.n))
        else:
            action = action.unsqueeze(-1)
        return tensordict.set(key, action.to(self._own_spec.dtype))
