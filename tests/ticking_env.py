"""An environment whose observation tells who made the step and when: what a stream of the replay must keep apart."""

from __future__ import annotations

import torch
from clock_env import Clock
from torchrl.envs import Compose, EnvBase, InitTracker, RewardSum, TransformedEnv


class Ticking(Clock):
    """Shows (ticks since it was built, who it is): whatever else happens, a step makes it one tick more."""

    def __init__(self, batch_size=(), period=7):
        super().__init__(batch_size, period)
        self.ticks = torch.zeros(self.batch_size)
        self.who = torch.zeros(self.batch_size)

    def _observe(self):
        return torch.stack([self.ticks, self.who], -1)

    def _step(self, tensordict):
        self.ticks = self.ticks + 1
        return super()._step(tensordict)

    def _set_seed(self, seed):
        number = torch.arange(self.batch_size.numel()).view(self.batch_size)
        self.who = (seed % 10_000) * 100.0 + number

    def get_env_state(self):
        return {"ticks": self.ticks.clone(), "who": self.who.clone()}

    def set_env_state(self, state):
        self.ticks, self.who = state["ticks"], state["who"]


def ticking(batch_size, seed) -> EnvBase:
    env = Ticking(batch_size)
    env.set_seed(seed)
    return TransformedEnv(env, Compose(InitTracker(), RewardSum()))


def check_rows(replay) -> None:
    """Every stored step leads to the next tick of the same environment, and every stream has rows."""
    transitions = replay.transitions()
    now, then = transitions["observation"], transitions["successor", "observation"]
    assert len(now) > 0
    torch.testing.assert_close(then[:, 0], now[:, 0] + 1)
    torch.testing.assert_close(then[:, 1], now[:, 1])
    streams = transitions["index"] // (replay._storage.max_size // replay.num_streams)
    owners = [set(now[streams == stream, 1].tolist()) for stream in range(replay.num_streams)]
    assert all(owners), "a stream without rows"
    everyone = [who for stream in owners for who in stream]
    assert len(everyone) == len(set(everyone)), "an environment in two streams"
