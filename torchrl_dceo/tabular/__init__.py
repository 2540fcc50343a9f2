"""Covering eigenoptions with exact eigenvectors, and the tabular baselines, for a batch of seeds at once."""

from torchrl_dceo.tabular.ceo import OptionTable, RODCycle, TabularOptionExploration, solve_options
from torchrl_dceo.tabular.graph import TransitionGraph, laplacian_eigenvectors
from torchrl_dceo.tabular.q_learning import QLearning, QTable
from torchrl_dceo.tabular.run import METHODS, TabularConfig, run_tabular

__all__ = [
    "METHODS",
    "OptionTable",
    "QLearning",
    "QTable",
    "RODCycle",
    "TabularConfig",
    "TabularOptionExploration",
    "TransitionGraph",
    "laplacian_eigenvectors",
    "run_tabular",
    "solve_options",
]
