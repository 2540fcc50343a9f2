"""n-step double C51 for all options at once."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_dceo._fast.actors import expected_value
from torchrl_dceo._fast.losses import cross_entropy, project, taken_distribution
from torchrl_dceo.modules.distributional import OptionDistributionalQValueActor
from torchrl_dceo.objectives.option_dqn import OptionDQNLoss, OptionErrors

__all__ = ["OptionDistributionalDQNLoss"]


class OptionDistributionalDQNLoss(OptionDQNLoss):
    r"""The n-step double C51 loss of every option, from one batch, in one vectorised pass.

    What :class:`OptionDQNLoss` is to :class:`~torchrl.objectives.DQNLoss`, this is to
    :class:`~torchrl.objectives.DistributionalDQNLoss`: option o, with its own reward :math:`r_o`, learns the
    distribution of its return over fixed atoms z. The target is the projection onto the atoms of

    .. math::
        r_o + \gamma^m (1 - \text{terminated})\, z, \quad
        z \sim p_{\theta^-}(s_{t+m}, \arg\max_{a'} Q_\theta(s_{t+m}, a'; o); o),

    and the loss the sum over options of the mean over the batch of its cross-entropy with
    :math:`p_\theta(s_t, a_t; o)`.

    Args:
        option_actor (OptionDistributionalQValueActor): writes ``option_action_dist`` ``[*, N, atoms, A]``.

    Keyword Args:
        kwargs: those of :class:`OptionDQNLoss`, without ``loss_function``.

    The output is that of :class:`OptionDQNLoss`, where ``option_td_error``, ``option_value`` and ``option_target`` are
    those of the expected returns. The priority at ``option_priority`` is the cross-entropy, averaged over options.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl_dceo.modules import OptionDistributionalQValueActor
        >>> from torchrl_dceo.modules.distributional import DuelingDistribution, make_support
        >>> from torchrl_dceo.modules.networks import MultiHeadNet, mlp_net
        >>> from torchrl_dceo.objectives import OptionDistributionalDQNLoss
        >>> dueling = DuelingDistribution(51, 4)
        >>> net = torch.nn.Sequential(MultiHeadNet(lambda out: mlp_net(6, out), 3, dueling.num_inputs), dueling)
        >>> actor = OptionDistributionalQValueActor(
        ...     net, num_options=3, support=make_support(), in_keys=["observation"], spec=Categorical(4)
        ... )
        >>> loss = OptionDistributionalDQNLoss(actor)
        >>> loss.make_value_estimator(gamma=0.99)
        >>> batch = TensorDict({"observation": torch.randn(8, 6), "action": torch.randint(4, (8,)),
        ...     "option_reward": torch.randn(8, 3), "next": {"observation": torch.randn(8, 6),
        ...     "done": torch.zeros(8, 1, dtype=torch.bool), "terminated": torch.zeros(8, 1, dtype=torch.bool)}}, [8])
        >>> out = loss(batch)
        >>> out["loss_option"].backward()
        >>> out["option_value"].shape
        torch.Size([3])
    """

    support: Tensor

    def __init__(self, option_actor: OptionDistributionalQValueActor, **kwargs: Any) -> None:
        if "loss_function" in kwargs:
            raise TypeError(
                f"OptionDistributionalDQNLoss has no loss_function, got {kwargs['loss_function']!r}: the loss of "
                "distributions is their cross-entropy"
            )
        support = option_actor.support
        super().__init__(option_actor, **kwargs)
        self.register_buffer("support", support.detach().clone())
        self._dist_key = option_actor.out_keys[1]

    def _distributions(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Log-probabilities at s ``[*, N, K, A]``, and the probabilities ``[*, N, K]`` of the chosen actions at s'."""
        here, chooser, later = self._passes(tensordict, self._dist_key)
        chosen = expected_value(chooser, self.support).argmax(-1)
        return here, taken_distribution(later, chosen).exp()

    def _errors(self, tensordict: TensorDictBase, reward: Tensor) -> OptionErrors:
        support = self.support
        here, later = self._distributions(tensordict)
        action = self._action(tensordict, here.shape[:-3])
        taken = taken_distribution(here, action.unsqueeze(-1).expand(here.shape[:-2]))
        with torch.no_grad():
            discount = self._discount(tensordict, reward)
            returns = reward.unsqueeze(-1) + discount.unsqueeze(-1) * support
            target = project(later, returns, support)
        error = cross_entropy(target, taken)
        return OptionErrors(
            error, taken.detach().exp() @ support, target @ support, priority=error.detach()
        )
