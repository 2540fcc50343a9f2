"""Environments with spaces, keys and habits that a stranger's may have, for test_odd.py."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from foreign.never_seen import Meadow
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase


class Seen(Meadow):
    """The walk of the meadow, observed through any function of the place, in any space."""

    def __init__(self, space, seen, actions=None):
        self.observation_space, self.seen = space, seen
        if actions is not None:
            self.action_space = actions

    def observed(self):
        return self.seen(self.place)

    def step(self, action):
        assert self.action_space.contains(np.int64(action)), action
        first = int(self.action_space.start)
        seen, reward, found, late, _ = super().step(int(action) - first)
        # Numbers of NumPy, and an info with whatever one likes.
        return seen, np.float64(reward), np.bool_(found), late, {"text": "hi", "place": self.place}


def tuple_seen():
    space = spaces.Tuple((spaces.Discrete(5, start=-2), spaces.Box(0, 4, (2,), np.float32)))
    return Seen(space, lambda place: (int(place[0]) - 2, place.astype(np.float32)))


def indices_seen():
    space = spaces.MultiDiscrete([[5, 9]], start=[[1, 0]])
    return Seen(space, lambda place: (place + np.array([1, 0]))[None])


def stacked_images_seen():
    """Three images of two channels: what Gymnasium's FrameStackObservation makes."""
    space = spaces.Box(0, 255, (3, 9, 9, 2), np.uint8)

    def seen(place):
        image = np.zeros((3, 9, 9, 2), np.uint8)
        image[:, *place, 0], image[2, *place, 1] = 100, 200
        return image

    return Seen(space, seen)


class Chain(EnvBase):
    """Squares in a row, as TorchRL's tutorial writes environments: its state is in the tensordict, not in itself."""

    def __init__(self, batch_size=(), *, mask=False, column=False, reward_shape=(1,)):
        super().__init__(batch_size=torch.Size(batch_size), device="cpu")
        shape, self.mask = self.batch_size, mask
        self.observation_spec = Composite(
            square=Bounded(0, 8, shape, dtype=torch.int64), clock=Unbounded(shape), shape=shape
        )
        if mask:
            self.observation_spec["action_mask"] = Binary(2, (*shape, 2), dtype=torch.bool)
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Categorical(2, shape=(*shape, 1) if column else shape)
        self.reward_spec = Unbounded((*shape, *reward_shape))
        self.full_done_spec = Composite(
            done=Categorical(2, (*shape, 1), dtype=torch.bool),
            terminated=Categorical(2, (*shape, 1), dtype=torch.bool),
            shape=shape,
        )

    def _entries(self, square, clock):
        seen = {"square": square, "clock": clock}
        if self.mask:
            seen["action_mask"] = torch.ones(*self.batch_size, 2, dtype=torch.bool)
        return seen

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs) -> TensorDictBase:
        off = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        square = torch.zeros(self.batch_size, dtype=torch.int64)
        seen = self._entries(square, torch.zeros(self.batch_size))
        return TensorDict({**seen, "done": off, "terminated": off.clone()}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"].reshape(self.batch_size)
        square = (tensordict["square"] + 2 * action - 1).clamp(0, 8)
        found = (square == 8).unsqueeze(-1)
        seen = self._entries(square, tensordict["clock"] + 1)
        reward = found.float().expand(self.reward_spec.shape)
        return TensorDict(
            {**seen, "reward": reward, "done": found, "terminated": found.clone()}, self.batch_size
        )

    def _set_seed(self, seed):
        torch.manual_seed(seed)


class Countdown(gymnasium.Env):
    """Shows the number of the step, so that the last observation of an episode is known."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 10, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps == 4, False, {}


def out_of_order():
    raise RuntimeError("no licence was found\nask for one")


def nothing():
    return None


class NoReset(Countdown):
    """Cannot be reset."""

    def reset(self, *, seed=None, options=None):
        raise RuntimeError("the server does not answer")


class Blind(Countdown):
    """Shows nothing."""

    observation_space = spaces.Box(0, 10, (0,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(0, np.float32), {}
