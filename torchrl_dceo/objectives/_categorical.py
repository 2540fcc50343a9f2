"""Distributions over fixed atoms: the projection of a Bellman target, shared by the main learner and the options."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cross_entropy", "project", "taken_distribution"]


def project(probabilities: Tensor, returns: Tensor, support: Tensor) -> Tensor:
    r"""Moves the mass of a distribution from any returns onto the atoms (`Bellemare et al., 2017, Eq. 7
    <https://arxiv.org/abs/1707.06887>`_).

    The mass at a return between two atoms goes to both, in proportion to nearness, so its mean is kept; beyond the
    ends it goes to the last atom. The lower neighbour is never the last atom, so a return that falls on an atom needs
    no case of its own: all its mass goes to one side.

    Args:
        probabilities (Tensor): p, ``[*, K]``.
        returns (Tensor): where that mass lies, :math:`r + \gamma^m z`, ``[*, K]``.
        support (Tensor): the atoms z, evenly spaced and rising, ``[K]``.

    Returns:
        Tensor: the probabilities of the atoms, ``[*, K]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.objectives._categorical import project
        >>> support = torch.tensor([0.0, 1.0, 2.0])
        >>> project(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 5.0, 0.0]), support)
        tensor([0.3750, 0.1250, 0.5000])
    """
    last = support.shape[0] - 1
    spacing = (support[-1] - support[0]) / last
    place = ((returns - support[0]) / spacing).clamp(0, last)
    lower = place.floor().clamp(max=last - 1)
    upper_share = probabilities * (place - lower)
    index = lower.to(torch.int64)
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(-1, index, probabilities - upper_share)
    return projected.scatter_add_(-1, index + 1, upper_share)


def cross_entropy(target: Tensor, log_probabilities: Tensor) -> Tensor:
    r""":math:`-\sum_k m_k \log p_k` of ``[*, K]``: what C51 minimises, the divergence up to the target's own entropy.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.objectives._categorical import cross_entropy
        >>> cross_entropy(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]).log())
        tensor(0.6931)
    """
    return -(target * log_probabilities).sum(-1)


def taken_distribution(distributions: Tensor, action: Tensor) -> Tensor:
    """The distributions ``[*, K]`` of the actions ``[*]`` among ``[*, K, A]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.objectives._categorical import taken_distribution
        >>> taken_distribution(torch.arange(6.0).view(3, 2), torch.tensor(1))
        tensor([1., 3., 5.])
    """
    index = action[..., None, None].expand(*distributions.shape[:-1], 1)
    return distributions.gather(-1, index).squeeze(-1)
