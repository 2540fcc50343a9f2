"""Loss modules: the Laplacian representation and the options learned from it."""

from torchrl_dceo.objectives.allo import ALLOLoss
from torchrl_dceo.objectives.laplacian import GeneralizedLaplacianLoss, GraphDrawingLoss
from torchrl_dceo.objectives.option_dqn import OptionDQNLoss

__all__ = ["ALLOLoss", "GeneralizedLaplacianLoss", "GraphDrawingLoss", "OptionDQNLoss"]
