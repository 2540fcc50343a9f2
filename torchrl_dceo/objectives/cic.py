"""CIC's contrastive loss: classifies which skill produced a transition."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, TensorDictParams, unravel_key
from tensordict.nn import TensorDictModule, TensorDictModuleBase, dispatch
from torch import Tensor, nn

from torchrl_dceo._fast.parameters import swapped
from torchrl_dceo.objectives.diayn import NO_SKILL, Reduction, SkillLoss

__all__ = ["CICLoss"]

Negatives = Literal["skills", "batch"]


class CICLoss(SkillLoss):
    r"""The contrastive (InfoNCE) loss of CIC between transitions and skills.

    From Laskin et al., "Contrastive Intrinsic Control for Unsupervised Skill Discovery" (2022,
    https://arxiv.org/abs/2202.00161), Eq. 5. With :math:`f(\tau, z)` the score of a transition
    :math:`\tau = (s, s')` and a skill, the loss of a step i taken while skill :math:`z_i` was active is

    .. math:: -f(\tau_i, z_i) + \log \sum_j \exp f(\tau_i, z_j).

    The transition is always a single step, also in a batch of n-step transitions, because another skill may be active
    afterwards. Steps without a skill (``option`` −1) are ignored: the mean is over the others, and 0 (with a gradient
    of 0) if there are none.

    Args:
        encoder (TensorDictModuleBase): maps a state to its representation, its one out_key.
        scores (nn.Module): maps the representations of s and s' to the N scores, e.g.
            :class:`~torchrl_dceo.modules.SkillScores`. :class:`~torchrl_dceo.modules.CICReward` computes the skills'
            rewards from the same two modules.

    Keyword Args:
        negatives (str, optional): the set over which the sum runs. ``"skills"`` (default): all N skills once, which is
            possible because they are discrete. ``"batch"``: the skills of the batch's steps, as in the paper, where
            skills are continuous; with discrete skills most occur several times.
        successor (NestedKey, optional): where s' is read, with the keys of the encoder under it. Default: ``"next"``;
            with n-step transitions pass the key of the state after one step.
        reduction (str, optional): ``"mean"``, ``"sum"`` or ``"none"`` (0 where no skill was active). Default:
            ``"mean"``.

    The returned TensorDict holds ``loss_contrastive`` and, detached, ``skill_accuracy``, the share of steps with a
    skill whose skill has the highest score (1/N is chance; 0 without such steps), and ``skill_information``, the
    logarithm of the number of terms in the sum minus the mean loss: InfoNCE's lower bound on the mutual information of
    transition and skill, in nats.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.modules import SkillScores
        >>> from torchrl_dceo.objectives import CICLoss
        >>> encoder = TensorDictModule(torch.nn.Linear(2, 8), in_keys=["observation"], out_keys=["representation"])
        >>> loss = CICLoss(encoder, SkillScores(features=8, num_skills=3))
        >>> batch = TensorDict(
        ...     {
        ...         "option": torch.tensor([0, 2, -1]),
        ...         "observation": torch.randn(3, 2),
        ...         "next": {"observation": torch.randn(3, 2)},
        ...     },
        ...     [3],
        ... )
        >>> loss(batch)["loss_contrastive"].backward()
    """

    out_keys = ["loss_contrastive", "skill_accuracy", "skill_information"]

    encoder_network: TensorDictModule
    encoder_network_params: TensorDictParams
    target_encoder_network_params: TensorDictParams
    scores_network: nn.Module
    scores_network_params: TensorDictParams
    target_scores_network_params: TensorDictParams

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        scores: nn.Module,
        *,
        negatives: Negatives = "skills",
        successor: NestedKey = "next",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        if len(encoder.out_keys) != 1:
            raise ValueError(f"the encoder must have one out_key, got {list(encoder.out_keys)}")
        if negatives not in get_args(Negatives):
            raise ValueError(f"negatives must be one of {get_args(Negatives)}, got {negatives!r}")
        self.negatives = negatives
        self.convert_to_functional(encoder, "encoder_network", create_target_params=False)
        self.convert_to_functional(scores, "scores_network", create_target_params=False)
        self.set_keys(successor=successor)

    @property
    def in_keys(self) -> list[NestedKey]:
        """The skill, and the encoder's keys, at the root and under ``successor``."""
        keys, observations = self.tensor_keys, list(self.encoder_network.in_keys)
        later = [unravel_key((keys.successor, key)) for key in observations]
        return [keys.option, *observations, *later]

    def _scores(self, tensordict: TensorDictBase) -> Tensor:
        encoder, successor = self.encoder_network, self.tensor_keys.successor
        # One pass over both states: small networks are bound by overhead.
        states = TensorDict(
            {
                key: torch.stack(
                    [
                        self._read(tensordict, where, "set its key with successor=…")
                        for where in (key, unravel_key((successor, key)))
                    ]
                )
                for key in encoder.in_keys
            },
            batch_size=(2, *tensordict.batch_size),
        )
        with swapped(encoder, self.encoder_network_params):
            here, there = encoder(states).get(encoder.out_keys[0]).unbind(0)
        with swapped(self.scores_network, self.scores_network_params):
            return self.scores_network(here, there)

    # Without the automatic batch size, which would take an observation's own dimensions for batch dimensions.
    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Computes the loss from a batch of steps with the skills that were active."""
        option = self._read_skill(tensordict)
        scores = self._scores(tensordict)
        num_skills = scores.shape[-1]
        skill = option.reshape(scores.shape[:-1])
        active = skill != NO_SKILL
        count = active.sum().clamp(min=1)
        chosen = skill.clamp(min=0)
        positive = scores.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            accuracy = (scores.argmax(-1) == skill).sum() / count
        terms = torch.tensor(num_skills, device=scores.device)
        if self.negatives == "batch":
            # A skill of n steps of the batch contributes n terms to the sum.
            copies = nn.functional.one_hot(chosen, num_skills) * active.unsqueeze(-1)
            copies = copies.reshape(-1, num_skills).sum(0).to(scores.dtype)
            terms = count
            # Without any skill the sum is empty, but the gradient of log 0 would still be NaN.
            scores = scores + torch.where(active.any(), copies, 1.0).log()
        loss = (scores.logsumexp(-1) - positive).where(active, 0.0)
        mean = loss.sum() / count
        information = (terms.log() - mean.detach()).where(active.any(), 0.0)
        if self.reduction == "mean":
            loss = mean
        elif self.reduction == "sum":
            loss = loss.sum()
        self._clear_weakrefs(tensordict, "encoder_network_params", "scores_network_params")
        return TensorDict(
            {
                "loss_contrastive": loss,
                "skill_accuracy": accuracy,
                "skill_information": information,
            }
        )
