"""Covering eigenoptions with exact eigenvectors, and the tabular baselines, for a batch of seeds at once."""

from torchrl_dceo.tabular.graph import TransitionGraph
from torchrl_dceo.tabular.option_solver import solve_options
from torchrl_dceo.tabular.option_table import OptionTable, TabularOptionExploration
from torchrl_dceo.tabular.q_learning import QLearning, QTable
from torchrl_dceo.tabular.rod_cycle import RODCycle
from torchrl_dceo.tabular.run import METHODS, TabularConfig, run_tabular
from torchrl_dceo.tabular.spectrum import laplacian_eigenvectors

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
