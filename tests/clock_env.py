"""A tiny batched environment for tests of policies: it only counts its steps."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, InitTracker, TransformedEnv

ACTIONS = 4


class Clock(EnvBase):
    """Counts steps and ends every ``period`` steps; environments of a batch start out of phase."""

    def __init__(self, batch_size=(), period=7):
        super().__init__(batch_size=torch.Size(batch_size))
        self.period = period
        shape = self.batch_size
        self.observation_spec = Composite(observation=Unbounded((*shape, 2)), shape=shape)
        self.action_spec = Categorical(ACTIONS, shape=shape)
        self.reward_spec = Unbounded((*shape, 1))
        self.done_spec = Composite(
            done=Categorical(2, (*shape, 1), dtype=torch.bool),
            terminated=Categorical(2, (*shape, 1), dtype=torch.bool),
            shape=shape,
        )
        self.time = torch.arange(shape.numel()).view(shape) % period

    def _observe(self):
        return torch.stack([self.time.float(), torch.ones_like(self.time).float()], -1)

    def _end(self):
        return (self.time >= self.period).unsqueeze(-1)

    def _reset(self, tensordict=None):
        reset = None if tensordict is None else tensordict.get("_reset", None)
        if reset is not None:
            self.time = torch.where(reset.view(self.batch_size), 0, self.time)
        ends = torch.zeros_like(self._end())
        return TensorDict(
            {"observation": self._observe(), "done": ends, "terminated": ends.clone()},
            self.batch_size,
        )

    def _step(self, tensordict):
        self.time = self.time + 1
        reward = torch.zeros(*self.batch_size, 1)
        done = self._end()
        out = {
            "observation": self._observe(),
            "reward": reward,
            "done": done,
            "terminated": done.clone(),
        }
        return TensorDict(out, self.batch_size)

    def _set_seed(self, seed):
        torch.manual_seed(seed or 0)


def explorers_env(explore, batch_size=(), period=7) -> TransformedEnv:
    """The clock with the transforms that an exploration module needs."""
    env = TransformedEnv(Clock(batch_size, period), InitTracker())
    return env.append_transform(explore.make_tensordict_primer())
