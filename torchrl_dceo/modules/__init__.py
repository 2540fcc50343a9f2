"""Actors, exploration modules and rewards that compose into a TorchRL policy or pipeline."""

from torchrl_dceo.modules.exploration import OptionExplorationModule
from torchrl_dceo.modules.ez_greedy import EZGreedyModule
from torchrl_dceo.modules.option_actor import OptionQValueActor
from torchrl_dceo.modules.rewards import EigenReward

__all__ = [
    "EZGreedyModule",
    "EigenReward",
    "OptionExplorationModule",
    "OptionQValueActor",
]
