"""The rewards of skills: DIAYN's discriminator, and CIC's particle entropy and contrastive scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn

from torchrl_dceo._fast.parameters import output_of
from torchrl_dceo.modules.bonus import RunningMoments
from torchrl_dceo.modules.rewards import KeyedModule

__all__ = ["CICReward", "DIAYNReward", "SkillScores", "particle_entropy"]


class DIAYNReward(KeyedModule):
    r"""DIAYN's rewards :math:`\log q(z \mid s') - \log p(z)`, for all N skills at once.

    From Eysenbach et al., "Diversity is All You Need" (ICLR 2019, https://arxiv.org/abs/1802.06070), with a uniform
    prior :math:`p(z) = 1/N`. Transitions are relabelled: every skill gets a reward for every transition, as if it had
    been active, so all skills learn from all data. The reward is positive where the discriminator assigns the skill
    more than chance, and at most :math:`\log N`. An n-step transition gets one reward, at its last state, with the
    discriminator's current weights and without gradient.

    It writes the same key as :class:`~torchrl_dceo.modules.EigenReward`, so the same option loss can be used.

    Args:
        discriminator (TensorDictModuleBase): maps a state to the N logits of :math:`q(z \mid s)`, its one out_key.

    Keyword Args:
        successor (NestedKey, optional): prefix of the entries of the next state. Default: ``"next"``.
        reward_key (NestedKey, optional): where the rewards ``[*, N]`` are written. Default: ``"option_reward"``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.modules import DIAYNReward
        >>> net = torch.nn.Linear(2, 3)
        >>> discriminator = TensorDictModule(net, in_keys=["observation"], out_keys=["skill_logits"])
        >>> reward = DIAYNReward(discriminator)
        >>> batch = TensorDict({"next": {"observation": torch.randn(5, 2)}}, [5])
        >>> reward(batch)["option_reward"].shape
        torch.Size([5, 3])
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change.

        Attributes:
            successor (NestedKey): prefix of the entries of the next state.
            option_reward (NestedKey): where the rewards are written.
        """

        successor: NestedKey = "next"
        option_reward: NestedKey = "option_reward"

    def __init__(
        self,
        discriminator: TensorDictModuleBase,
        *,
        successor: NestedKey = "next",
        reward_key: NestedKey = "option_reward",
    ) -> None:
        super().__init__()
        if len(discriminator.out_keys) != 1:
            raise ValueError(
                f"the discriminator must have one out_key, got {list(discriminator.out_keys)}"
            )
        self.discriminator = discriminator
        self.set_keys(successor=successor, option_reward=reward_key)

    def _keys_read(self) -> list[NestedKey]:
        successor = self.tensor_keys.successor
        return [unravel_key((successor, key)) for key in self.discriminator.in_keys]

    def _keys_written(self) -> list[NestedKey]:
        return [self.tensor_keys.option_reward]

    # Without the automatic batch size, which would take an observation's own dimensions for batch dimensions.
    @dispatch(auto_batch_size=False)
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the rewards of all skills."""
        next_td = tensordict.get(self.tensor_keys.successor)
        logits = output_of(self.discriminator, next_td, self.discriminator.out_keys[0])
        log_prior = -math.log(logits.shape[-1])
        tensordict.set(self.tensor_keys.option_reward, logits.log_softmax(-1) - log_prior)
        return tensordict


class SkillScores(nn.Module):
    r"""CIC's scores :math:`f(\tau, z) = \cos(g_1(\tau), g_2(z)) / T` of a transition :math:`\tau = (s, s')`, for all N
    skills.

    From Laskin et al., "Contrastive Intrinsic Control for Unsupervised Skill Discovery" (2022,
    https://arxiv.org/abs/2202.00161), Eq. 4. :math:`g_1`, a network with one hidden layer, embeds the representations
    of the two states of a transition. The skills are discrete, so :math:`g_2` is a table of N learned embeddings.

    Args:
        features (int): width of the representation of one state.
        num_skills (int): N.

    Keyword Args:
        num_cells (int): width of the hidden layer of :math:`g_1`. Default: 256.
        embedding_features (int): width of both embeddings. Default: 64, the width of a skill in the paper.
        temperature (float): T. Scores lie in :math:`[-1/T, 1/T]`, so a smaller T separates transitions more sharply.
            Default: 0.5, as in the authors' code.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules import SkillScores
        >>> scores = SkillScores(features=8, num_skills=3)
        >>> features, next_features = torch.randn(2, 5, 8)
        >>> values = scores(features, next_features)
        >>> values.shape, bool((values.abs() <= 2).all())
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
                f"num_skills must be at least 2, as a single one cannot be distinguished, got {num_skills}"
            )
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.temperature = temperature
        self.transition = nn.Sequential(
            nn.Linear(2 * features, num_cells), nn.ReLU(), nn.Linear(num_cells, embedding_features)
        )
        self.skills = nn.Parameter(torch.randn(num_skills, embedding_features))

    def forward(self, features: Tensor, next_features: Tensor) -> Tensor:
        """Maps representations ``[*, F]`` of s and s' to the scores ``[*, N]``."""
        embedded = self.transition(torch.cat([features, next_features], -1))
        directions = nn.functional.normalize(embedded, dim=-1)
        return directions @ nn.functional.normalize(self.skills, dim=-1).T / self.temperature


def particle_entropy(particles: Tensor, num_neighbours: int) -> Tensor:
    r"""The mean distance of each particle to its k nearest neighbours among the others.

    It is large where particles are sparse. Its logarithm is, up to constants, the particle's term in a
    nearest-neighbour estimate of the entropy (Liu & Abbeel 2021, https://arxiv.org/abs/2103.04551).

    Args:
        particles (Tensor): ``[B, F]``.
        num_neighbours (int): k; all others if there are fewer.

    Returns:
        Tensor: ``[B]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules.skill_rewards import particle_entropy
        >>> particle_entropy(torch.tensor([[0.0], [1.0], [5.0]]), num_neighbours=1)
        tensor([1., 1., 4.])
    """
    count = len(particles)
    if count < 2:
        raise ValueError(f"neighbours need a batch of at least 2 states, got {count}")
    # By differences: cdist's default, a matrix product, gives small nonzero distances between equal states.
    distances = torch.cdist(
        particles, particles, compute_mode="donot_use_mm_for_euclid_dist"
    ).fill_diagonal_(math.inf)
    nearest = distances.topk(min(num_neighbours, count - 1), largest=False).values
    return nearest.mean(-1)


class CICReward(KeyedModule):
    r"""CIC's rewards for all N skills at once: particle entropy, and the contrastive score of each skill.

    From Laskin et al., "Contrastive Intrinsic Control for Unsupervised Skill Discovery" (2022,
    https://arxiv.org/abs/2202.00161), which maximises the mutual information of transition and skill as
    :math:`I(\tau; z) = H(\tau) - H(\tau \mid z)`, both parts as rewards (Eqs. 3 to 6). Skill z gets for a transition
    :math:`\tau = (s, s')`

    .. math:: \alpha \log\Bigl(1 + \tfrac{1}{\bar d\, k} \sum_{j \in \text{kNN}} \lVert h(s') - h(s'_j) \rVert\Bigr)
              + \beta \Bigl(f(\tau, z) - \log \tfrac1N \sum_{z'} \exp f(\tau, z')\Bigr).

    The first part is the same for all skills. It is large where s' is far from the other states of the batch in the
    representation h; the running mean distance :math:`\bar d` sets the unit. The second part is specific to the skill:
    0 at chance level, at most log N. The authors' code drops it (:math:`\beta = 0`): their policy is conditioned on
    continuous skills, which differ in the data they collected. Here every skill learns from every transition, so
    without the second part all N skills would be identical.

    It writes the same key as :class:`~torchrl_dceo.modules.EigenReward`, so the same option loss can be used. Each
    call first adds the batch to the mean distance, unless the module is in ``eval()`` mode.

    Args:
        encoder (TensorDictModuleBase): maps a state to its representation h, its one out_key.
        scores (nn.Module): maps the representations of s and s' to the N scores f, e.g.
            :class:`~torchrl_dceo.modules.SkillScores`.

    Keyword Args:
        entropy_scale (float, optional): :math:`\alpha`. Default: 1.
        skill_scale (float, optional): :math:`\beta`. Default: 1.
        num_neighbours (int, optional): k. Default: 5 (the authors: 16, in batches of 1024).
        successor (NestedKey, optional): prefix of the entries of the next state. Default: ``"next"``.
        reward_key (NestedKey, optional): where the rewards ``[*, N]`` are written. Default: ``"option_reward"``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.modules import CICReward, SkillScores
        >>> encoder = TensorDictModule(torch.nn.Linear(2, 8), in_keys=["observation"], out_keys=["representation"])
        >>> reward = CICReward(encoder, SkillScores(features=8, num_skills=3))
        >>> batch = TensorDict({"observation": torch.randn(5, 2), "next": {"observation": torch.randn(5, 2)}}, [5])
        >>> reward(batch)["option_reward"].shape
        torch.Size([5, 3])
    """

    logged_keys = ("particle_entropy",)

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change.

        Attributes:
            successor (NestedKey): prefix of the entries of the next state.
            option_reward (NestedKey): where the rewards are written.
        """

        successor: NestedKey = "next"
        option_reward: NestedKey = "option_reward"

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        scores: nn.Module,
        *,
        entropy_scale: float = 1.0,
        skill_scale: float = 1.0,
        num_neighbours: int = 5,
        successor: NestedKey = "next",
        reward_key: NestedKey = "option_reward",
    ) -> None:
        super().__init__()
        if len(encoder.out_keys) != 1:
            raise ValueError(f"the encoder must have one out_key, got {list(encoder.out_keys)}")
        for name, scale in (("entropy_scale", entropy_scale), ("skill_scale", skill_scale)):
            if not (scale >= 0 and math.isfinite(scale)):
                raise ValueError(f"{name} must be finite and not negative, got {scale}")
        if num_neighbours < 1:
            raise ValueError(f"num_neighbours must be at least 1, got {num_neighbours}")
        self.encoder = encoder
        self.scores = scores
        self.entropy_scale = entropy_scale
        self.skill_scale = skill_scale
        self.num_neighbours = num_neighbours
        self.distances = RunningMoments()
        self.set_keys(successor=successor, option_reward=reward_key)

    def _keys_read(self) -> list[NestedKey]:
        successor, observations = self.tensor_keys.successor, list(self.encoder.in_keys)
        return [*observations, *(unravel_key((successor, key)) for key in observations)]

    def _keys_written(self) -> list[NestedKey]:
        return [self.tensor_keys.option_reward, *self.logged_keys]

    @staticmethod
    def skill_reward(scores: Tensor) -> Tensor:
        """The part of the reward that is specific to each skill, from the scores ``[*, N]``."""
        return scores.log_softmax(-1) + math.log(scores.shape[-1])

    # Without the automatic batch size, which would take an observation's own dimensions for batch dimensions.
    @dispatch(auto_batch_size=False)
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the rewards of all skills, and the entropy part before scaling."""
        key = self.encoder.out_keys[0]
        features = output_of(self.encoder, tensordict, key)
        next_features = output_of(self.encoder, tensordict.get(self.tensor_keys.successor), key)
        distance = particle_entropy(next_features.flatten(0, -2), self.num_neighbours)
        if self.training:
            self.distances.update(distance)
        # The mean distance of a constant representation is 0.
        unit = self.distances.mean.clamp(min=torch.finfo(distance.dtype).tiny)
        entropy = (distance / unit).log1p().view(*next_features.shape[:-1], 1)
        own = self.skill_reward(self.scores(features, next_features))
        reward_key, entropy_key = self.out_keys
        tensordict.set(reward_key, self.entropy_scale * entropy + self.skill_scale * own)
        tensordict.set(entropy_key, entropy)
        return tensordict
