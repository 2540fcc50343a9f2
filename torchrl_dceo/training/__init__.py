"""The loop that trains any agent, with its log, its checkpoints and its evaluation."""

from torchrl_dceo.training.agent import Agent, Phase, ReplaySettings
from torchrl_dceo.training.checkpoint import Checkpoints
from torchrl_dceo.training.trainer import TrainConfig, Trainer

__all__ = ["Agent", "Checkpoints", "Phase", "ReplaySettings", "TrainConfig", "Trainer"]
