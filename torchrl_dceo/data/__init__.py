"""Replay buffer: stores single steps; n-step transitions and frame stacks are built when sampling."""

from torchrl_dceo.data.distinct import DistinctSampler
from torchrl_dceo.data.factory import make_replay_buffer, rows_for
from torchrl_dceo.data.replay_buffer import NStepReplayBuffer
from torchrl_dceo.data.samplers import SumTreeSampler, UniformStepSampler

__all__ = [
    "DistinctSampler",
    "NStepReplayBuffer",
    "SumTreeSampler",
    "UniformStepSampler",
    "make_replay_buffer",
    "rows_for",
]
