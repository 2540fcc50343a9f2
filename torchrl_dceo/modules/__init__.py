"""Actors, exploration modules, networks and intrinsic rewards, as TensorDict modules."""

from torchrl_dceo.modules.bonus import CountBonus, RNDBonus, RunningMoments, RunningNormalizer
from torchrl_dceo.modules.centring import Centred, CentringFit
from torchrl_dceo.modules.distributional import (
    DuelingDistribution,
    OptionDistributionalQValueActor,
)
from torchrl_dceo.modules.exploration import OptionExplorationModule
from torchrl_dceo.modules.ez_greedy import EZGreedyModule
from torchrl_dceo.modules.option_actor import OptionQValueActor, averaged
from torchrl_dceo.modules.rayleigh_ritz import RayleighRitz, RayleighRitzStep
from torchrl_dceo.modules.rewards import EigenReward
from torchrl_dceo.modules.selection import DirectedSelection
from torchrl_dceo.modules.skill_rewards import CICReward, DIAYNReward, SkillScores
from torchrl_dceo.modules.termination import TopTermination

__all__ = [
    "CICReward",
    "Centred",
    "CentringFit",
    "CountBonus",
    "DIAYNReward",
    "DirectedSelection",
    "DuelingDistribution",
    "EZGreedyModule",
    "EigenReward",
    "OptionDistributionalQValueActor",
    "OptionExplorationModule",
    "OptionQValueActor",
    "RNDBonus",
    "RayleighRitz",
    "RayleighRitzStep",
    "RunningMoments",
    "RunningNormalizer",
    "SkillScores",
    "TopTermination",
    "averaged",
]
