"""Loss modules: the Laplacian representation and the options learned from it."""

from torchrl_dceo.objectives.option_dqn import OptionDQNLoss

__all__ = ["OptionDQNLoss"]
