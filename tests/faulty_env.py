"""An environment that fails on purpose: numbers that are not finite at a given step, or an error."""

from __future__ import annotations

import torch
from clock_env import Clock
from torchrl.envs import Compose, EnvBase, InitTracker, RewardSum, TransformedEnv


class Faulty(Clock):
    """Pays 1 a step. At step ``fault_step`` of environment ``fault_env`` the entry ``fault`` has ``value``."""

    def __init__(self, batch_size=(), period=7, fault=None, fault_step=0, fault_env=0, value=None):
        super().__init__(batch_size, period)
        self.fault, self.fault_step, self.fault_env = fault, fault_step, fault_env
        self.value = float(value or "nan")
        self._made = 0

    def _step(self, tensordict):
        out = super()._step(tensordict)
        out["reward"] = torch.ones_like(out["reward"])
        self._made += 1
        if self.fault is not None and self._made == self.fault_step:
            out[self.fault].view(-1, out[self.fault].shape[-1])[self.fault_env] = self.value
        return out

    def get_env_state(self):
        return {"time": self.time.clone(), "steps": self._made}

    def set_env_state(self, state):
        self.time, self._made = state["time"].clone(), state["steps"]


def faulty(batch_size=(4,), seed=0, returns=True, **settings) -> EnvBase:
    """The environment with what agents need of it; ``returns=False`` leaves the RewardSum out."""
    env = Faulty(batch_size, **settings)
    transforms = [InitTracker(), *([RewardSum()] if returns else [])]
    return TransformedEnv(env, Compose(*transforms))
