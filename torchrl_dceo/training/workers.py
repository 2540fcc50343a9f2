"""What a worker does: build its environments, draw numbers of its own, and number its steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Composite, Unbounded
from torchrl.envs import EnvBase, Transform

from torchrl_dceo.envs.switching import hold_map, set_steps_made
from torchrl_dceo.runtime import tune_process

__all__ = ["STAMP", "StepStamp", "WorkerEnv", "WorkerWorld", "with_transforms", "worker_seeds"]

# Called with batch_size=…, seed=… and, for a phase without reward, coverage=True: make_env with a name is one.
WorkerEnv = Callable[..., EnvBase]
STAMP = "worker_step"


def with_transforms(env: EnvBase, transforms: Sequence[Transform]) -> EnvBase:
    """Appends to an environment what an agent's policy needs of it, unless it is there.

    Examples:
        >>> from torchrl.envs import StepCounter
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.workers import with_transforms
        >>> env = make_env("NineRooms")
        >>> _ = with_transforms(with_transforms(env, [StepCounter()]), [StepCounter()])
        >>> sum(isinstance(transform, StepCounter) for transform in env.transform)
        1
    """
    for transform in transforms:
        # Not twice, if the same environment is trained in again.
        there = [(type(other), other.out_keys) for other in getattr(env, "transform", ())]
        if (type(transform), transform.out_keys) not in there:
            env.append_transform(transform.clone())
    return env


def worker_seeds(*numbers: int) -> tuple[int, int]:
    """Two seeds from any numbers: other numbers, other seeds.

    Examples:
        >>> from torchrl_dceo.training.workers import worker_seeds
        >>> len({seed for worker in range(100) for seed in worker_seeds(0, worker)})
        200
    """
    words = np.random.SeedSequence(numbers).generate_state(2)
    # 31 bits: what every kind of environment takes.
    return int(words[0]) >> 1, int(words[1]) >> 1


class StepStamp(Transform):
    """Says of each step which worker made it, and which of its steps it is.

    Batches of workers come in any order and without a sender, and what a worker made may be lost on the way. With the
    stamp each goes to its own streams, and a hole is seen before it gets into the replay.

    Args:
        worker (int): the number of the worker.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.workers import STAMP, StepStamp
        >>> env = make_env("NineRooms", batch_size=2)
        >>> _ = env.append_transform(StepStamp(3))
        >>> env.rollout(2)[STAMP][0].tolist()  # worker 3, its steps 0 and 1
        [[3, 0], [3, 1]]
    """

    def __init__(self, worker: int) -> None:
        super().__init__(in_keys=[], out_keys=[STAMP])
        self._worker, self._made = worker, 0

    def _write(self, tensordict: TensorDictBase) -> TensorDictBase:
        stamp = torch.tensor([self._worker, self._made], device=tensordict.device)
        return tensordict.set(STAMP, stamp.expand(*tensordict.batch_size, 2).clone())

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._made += 1
        return self._write(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._write(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stamps nothing: only environments make steps."""
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the stamp."""
        shape = (*observation_spec.shape, 2)
        observation_spec[STAMP] = Unbounded(
            shape=shape, dtype=torch.int64, device=observation_spec.device
        )
        return observation_spec


@dataclass
class WorkerWorld:
    """Builds a worker's environments, in the worker: a callable that travels to other processes and machines.

    It also sets the worker up: one thread, and random numbers that no other worker draws.

    Examples:
        >>> from functools import partial
        >>> import torch
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.workers import WorkerWorld
        >>> with torch.random.fork_rng():
        ...     world = WorkerWorld(partial(make_env, "NineRooms"), 1, torch.Size([4]), seeds=(5, 6))()
        >>> world.batch_size
        torch.Size([4])
    """

    make: WorkerEnv
    worker: int
    batch_size: torch.Size
    seeds: tuple[int, int]  # of its environments, and of all other draws
    transforms: Sequence[Transform] = ()
    settings: dict[str, Any] = field(default_factory=dict)  # e.g. coverage=True
    steps: Tensor | None = None  # that its environments made before, where their world changes
    held_map: int | None = None  # the map of such a world while it does not

    def __call__(self) -> EnvBase:
        """Builds them."""
        tune_process()
        env_seed, seed = self.seeds
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        env = self.make(batch_size=self.batch_size, seed=env_seed, **self.settings)
        if env.batch_size != self.batch_size:
            raise ValueError(
                f"worker_env was asked for environments of batch_size {list(self.batch_size)} and gave "
                f"{list(env.batch_size)}"
            )
        if self.steps is not None:
            set_steps_made(env, self.steps)
        if self.held_map is not None:
            hold_map(env, self.held_map)
        with_transforms(env, self.transforms)
        env.append_transform(StepStamp(self.worker))
        return env
