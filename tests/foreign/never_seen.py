"""Environments that the package has never seen, for the tests of this folder and for its workers and commands."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, OneHot, Unbounded
from torchrl.envs import EnvBase

SIDE = 5


class Meadow(gymnasium.Env):
    """A walk on 5 x 5 squares from one corner to the other; what is observed is up to the subclass."""

    action_space = gymnasium.spaces.Discrete(4)
    observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
    limit = 30

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = np.zeros(2, int), 0
        return self.observed(), {}

    def step(self, action):
        moves = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])
        self.place = np.clip(self.place + moves[action], 0, SIDE - 1)
        self.steps += 1
        found = bool((self.place == SIDE - 1).all())
        return self.observed(), float(found), found, self.steps >= self.limit, {}

    def image(self):
        image = np.zeros((SIDE, SIDE, 3), np.uint8)
        image[tuple(self.place)] = 255
        return image

    def observed(self):
        return self.image()


class MeadowChannelsFirst(Meadow):
    observation_space = gymnasium.spaces.Box(0, 255, (3, SIDE, SIDE), np.uint8)

    def observed(self):
        return np.moveaxis(self.image(), -1, 0)


class MeadowFloats(Meadow):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (SIDE, SIDE, 3), np.float32)

    def observed(self):
        return (self.image() / 255).astype(np.float32)


class MeadowGrey(Meadow):
    observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE), np.uint8)

    def observed(self):
        return self.image()[..., 0]


class MeadowDictionary(Meadow):
    """A small image, an index, numbers and a text."""

    observation_space = gymnasium.spaces.Dict(
        image=gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
        row=gymnasium.spaces.Discrete(SIDE),
        place=gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float64),
        mission=gymnasium.spaces.Text(20),
    )

    def observed(self):
        place = 2 * self.place / (SIDE - 1) - 1
        return {
            "image": self.image(),
            "row": int(self.place[0]),
            "place": place,
            "mission": "go to the corner",
        }


class Ring(EnvBase):
    """A bare TorchRL environment, batched: a ring of 12 squares, one-hot actions, a nested dictionary to look at."""

    def __init__(self, batch_size=(), seed=None):
        super().__init__(batch_size=torch.Size(batch_size), device="cpu")
        shape = self.batch_size
        self.observation_spec = Composite(
            seen=Composite(
                angle=Unbounded((*shape, 2), dtype=torch.float64),
                square=Categorical(12, shape=shape),
                shape=shape,
            ),
            shape=shape,
        )
        self.action_spec = OneHot(2, shape=(*shape, 2))
        self.reward_spec = Unbounded((*shape, 1))
        self.done_spec = Composite(
            done=Categorical(2, (*shape, 1), dtype=torch.bool),
            terminated=Categorical(2, (*shape, 1), dtype=torch.bool),
            shape=shape,
        )

    def _seen(self):
        angle = self.square.double() * (torch.pi / 6)
        return {
            "seen": {
                "angle": torch.stack([angle.cos(), angle.sin()], -1),
                "square": self.square.clone(),
            }
        }

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs) -> TensorDictBase:
        fresh = torch.zeros(self.batch_size, dtype=torch.int64)
        reset = None if tensordict is None else tensordict.get("_reset", None)
        self.square = (
            fresh if reset is None else torch.where(reset.view(fresh.shape), fresh, self.square)
        )
        off = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        return TensorDict({**self._seen(), "done": off, "terminated": off.clone()}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        step = 2 * tensordict["action"].long().argmax(-1) - 1
        self.square = (self.square + step) % 12
        found = (self.square == 6).unsqueeze(-1)
        entries = {
            **self._seen(),
            "reward": found.float(),
            "done": found,
            "terminated": found.clone(),
        }
        return TensorDict(entries, self.batch_size)

    def _set_seed(self, seed):
        torch.manual_seed(seed)


def make_meadow(**kwargs):
    return Meadow(**kwargs)


def images(shape, dtype=torch.uint8, bounded=True):
    """A TorchRL environment of which only the spec of its image matters."""

    class Images(Ring):
        def __init__(self):
            super().__init__()
            spec = Bounded(0, 1, shape, dtype=dtype) if bounded else Unbounded(shape, dtype=dtype)
            self.observation_spec = Composite(pixels=spec)

    return Images()
