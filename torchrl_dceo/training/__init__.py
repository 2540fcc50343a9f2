"""The training loop for any agent, with log, checkpoints and evaluation."""

from torchrl_dceo.agents.agent import Agent, Phase, ReplaySettings
from torchrl_dceo.training.agent_io import LearnedAgent, load_agent
from torchrl_dceo.training.checkpoint import Checkpoints
from torchrl_dceo.training.config import CollectorConfig, TrainConfig
from torchrl_dceo.training.evaluation import fit
from torchrl_dceo.training.option_io import OptionSet, list_options, load_options, save_options
from torchrl_dceo.training.train import train
from torchrl_dceo.training.trainer import Trainer

__all__ = [
    "Agent",
    "Checkpoints",
    "CollectorConfig",
    "LearnedAgent",
    "OptionSet",
    "Phase",
    "ReplaySettings",
    "TrainConfig",
    "Trainer",
    "fit",
    "list_options",
    "load_agent",
    "load_options",
    "save_options",
    "train",
]
