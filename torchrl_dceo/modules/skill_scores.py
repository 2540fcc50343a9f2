"""How well a transition fits each of N skills: the similarity of two embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["SkillScores"]


class SkillScores(nn.Module):
    r"""CIC's scores :math:`f(\tau, z) = \cos(g_1(\tau), g_2(z)) / T` of a transition :math:`\tau = (s, s')`, for all N
    skills.

    From Laskin et al., "Contrastive Intrinsic Control for Unsupervised Skill Discovery" (2022,
    https://arxiv.org/abs/2202.00161), Eq. 4. A transition is given by the representations of its two states, which
    :math:`g_1`, a network of one hidden layer, embeds together. The skills are N in number and not vectors, so
    :math:`g_2` is a table of N learned embeddings.

    Args:
        features (int): width of the representation of one state.
        num_skills (int): N.

    Keyword Args:
        num_cells (int): width of the hidden layer of :math:`g_1`. Default: 256.
        embedding_features (int): width of both embeddings. Default: 64, the width of a skill in the paper.
        temperature (float): T. Scores lie within :math:`\pm 1/T`, so a small one lets transitions be told apart more
            sharply. Default: 0.5, as in the authors' code.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules import SkillScores
        >>> scores = SkillScores(features=8, num_skills=3)
        >>> here, there = torch.randn(2, 5, 8)
        >>> scores(here, there).shape, bool((scores(here, there).abs() <= 2).all())
        (torch.Size([5, 3]), True)
    """

    def __init__(
        self,
        features: int,
        num_skills: int,
        *,
        num_cells: int = 256,
        embedding_features: int = 64,
        temperature: float = 0.5,
    ) -> None:
        super().__init__()
        if num_skills < 2:
            raise ValueError(
                f"num_skills must be at least 2, as one alone cannot be told apart, got {num_skills}"
            )
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.temperature = temperature
        self.transition = nn.Sequential(
            nn.Linear(2 * features, num_cells), nn.ReLU(), nn.Linear(num_cells, embedding_features)
        )
        self.skills = nn.Parameter(torch.randn(num_skills, embedding_features))

    def forward(self, here: Tensor, there: Tensor) -> Tensor:
        """Maps representations ``[*, F]`` of s and s' to the scores ``[*, N]``."""
        embedded = self.transition(torch.cat([here, there], -1))
        directions = nn.functional.normalize(embedded, dim=-1)
        return directions @ nn.functional.normalize(self.skills, dim=-1).T / self.temperature
