"""Actors, exploration modules and rewards that compose into a TorchRL policy or pipeline."""

from torchrl_dceo.modules.averaged import averaged
from torchrl_dceo.modules.bonus import CountBonus, RNDBonus
from torchrl_dceo.modules.centring import Centred, CentringFit
from torchrl_dceo.modules.cic_reward import CICReward
from torchrl_dceo.modules.diayn_reward import DIAYNReward
from torchrl_dceo.modules.distributional import DistributionalGreedyActor, DuelingDistribution
from torchrl_dceo.modules.exploration import OptionExplorationModule
from torchrl_dceo.modules.ez_greedy import EZGreedyModule
from torchrl_dceo.modules.greedy_actor import GreedyActor
from torchrl_dceo.modules.option_actor import OptionQValueActor
from torchrl_dceo.modules.option_distributional_actor import OptionDistributionalQValueActor
from torchrl_dceo.modules.rayleigh_ritz import RayleighRitz, RayleighRitzStep
from torchrl_dceo.modules.rewards import EigenReward
from torchrl_dceo.modules.running import RunningMoments, RunningNormalizer
from torchrl_dceo.modules.skill_scores import SkillScores

__all__ = [
    "CICReward",
    "Centred",
    "CentringFit",
    "CountBonus",
    "DIAYNReward",
    "DistributionalGreedyActor",
    "DuelingDistribution",
    "EZGreedyModule",
    "EigenReward",
    "GreedyActor",
    "OptionDistributionalQValueActor",
    "OptionExplorationModule",
    "OptionQValueActor",
    "RNDBonus",
    "RayleighRitz",
    "RayleighRitzStep",
    "RunningMoments",
    "RunningNormalizer",
    "SkillScores",
    "averaged",
]
