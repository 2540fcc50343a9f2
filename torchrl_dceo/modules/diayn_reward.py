"""The reward of DIAYN: how well the skill can be told from the state it led to."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey, unravel_key

__all__ = ["DIAYNReward"]


class DIAYNReward(TensorDictModuleBase):
    r"""DIAYN's rewards :math:`\log q(z \mid s') - \log p(z)`, for all N skills at once.

    From Eysenbach et al., "Diversity is All You Need" (ICLR 2019, https://arxiv.org/abs/1802.06070), with a uniform
    prior :math:`p(z) = 1/N`. The reward is relabelled: every skill is rewarded for every transition, as if it had
    made it, so all skills learn from all data. It is positive where a state tells more of the skill than chance, and at
    most :math:`\log N`. Over an n-step transition it is given once, at its last state, with the discriminator's
    current weights and without gradient.

    It writes the key that :class:`~torchrl_dceo.modules.EigenReward` writes, so the same option loss follows.

    Args:
        discriminator (TensorDictModuleBase): maps a state to the N logits of :math:`q(z \mid s)`, its one out_key.

    Keyword Args:
        successor (NestedKey, optional): where the state after the transition is. Default: ``"next"``.
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
        self.successor = successor
        self.in_keys = [unravel_key((successor, key)) for key in discriminator.in_keys]
        self.out_keys = [reward_key]

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the rewards of all skills."""
        following = tensordict.get(self.successor).select(*self.discriminator.in_keys)
        logits = self.discriminator(following).get(self.discriminator.out_keys[0])
        log_prior = -math.log(logits.shape[-1])
        tensordict.set(self.out_keys[0], logits.log_softmax(-1) - log_prior)
        return tensordict
