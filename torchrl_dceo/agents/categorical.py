"""Rainbow's learners: distributions of returns in the place of values, for the main learner and for the options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn
from torchrl.data import TensorSpec

from torchrl_dceo.modules import (
    DistributionalGreedyActor,
    DuelingDistribution,
    OptionDistributionalQValueActor,
)
from torchrl_dceo.modules.distributional import make_support
from torchrl_dceo.objectives import CategoricalDQNLoss, OptionDistributionalDQNLoss

__all__ = ["make_categorical_learner", "make_categorical_options"]


class _Atoms(Protocol):
    num_atoms: int
    v_max: float


def make_categorical_learner(
    make_network: Callable[[int], nn.Module],
    config: _Atoms,
    *,
    gamma: float,
    key: str,
    spec: TensorSpec,
) -> tuple[DistributionalGreedyActor, CategoricalDQNLoss]:
    """The greedy actor and its double C51 loss.

    Args:
        make_network (callable): a network from its number of outputs.
        config: has ``num_atoms`` and ``v_max``.

    Keyword Args:
        gamma (float): the discount.
        key (str): what the network reads.
        spec (TensorSpec): the action spec.
    """
    dueling = DuelingDistribution(config.num_atoms, spec.space.n)
    actor = DistributionalGreedyActor(
        nn.Sequential(make_network(dueling.num_inputs), dueling),
        support=make_support(config.num_atoms, config.v_max),
        in_keys=[key],
        spec=spec,
    )
    return actor, CategoricalDQNLoss(actor, gamma=gamma)


def make_categorical_options(
    make_heads: Callable[[int], nn.Module],
    num_options: int,
    config: _Atoms,
    *,
    gamma: float,
    key: str,
    spec: TensorSpec,
    **loss_settings: Any,
) -> tuple[OptionDistributionalQValueActor, OptionDistributionalDQNLoss]:
    """The option set and its double C51 loss.

    Args:
        make_heads (callable): networks of all options from the number of outputs of each.
        num_options (int): N.
        config: has ``num_atoms`` and ``v_max``.

    Keyword Args:
        gamma (float): the options' discount.
        key (str): what the networks read.
        spec (TensorSpec): the action spec.
        loss_settings: those of :class:`~torchrl_dceo.objectives.OptionDistributionalDQNLoss`.
    """
    dueling = DuelingDistribution(config.num_atoms, spec.space.n)
    actor = OptionDistributionalQValueActor(
        nn.Sequential(make_heads(dueling.num_inputs), dueling),
        num_options=num_options,
        support=make_support(config.num_atoms, config.v_max),
        in_keys=[key],
        spec=spec,
    )
    loss = OptionDistributionalDQNLoss(actor, **loss_settings)
    loss.make_value_estimator(gamma=gamma)
    return actor, loss
