"""Loss modules: the Laplacian representation, the options learned from it, and the discriminators of DIAYN and CIC."""

from torchrl_dceo.objectives.allo import ALLOLoss
from torchrl_dceo.objectives.cic import CICLoss
from torchrl_dceo.objectives.diayn import DIAYNLoss
from torchrl_dceo.objectives.laplacian import GeneralizedLaplacianLoss, GraphDrawingLoss
from torchrl_dceo.objectives.omm import OMMLoss
from torchrl_dceo.objectives.option_distributional_dqn import OptionDistributionalDQNLoss
from torchrl_dceo.objectives.option_dqn import OptionDQNLoss

__all__ = [
    "ALLOLoss",
    "CICLoss",
    "DIAYNLoss",
    "GeneralizedLaplacianLoss",
    "GraphDrawingLoss",
    "OMMLoss",
    "OptionDQNLoss",
    "OptionDistributionalDQNLoss",
]
