"""n-step double C51 for all options at once."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_dceo._fast.actors import expected_value
from torchrl_dceo._fast.losses import cross_entropy, project, taken_distribution
from torchrl_dceo.modules.distributional import OptionDistributionalQValueActor
from torchrl_dceo.objectives.option_dqn import OptionDQNLoss, OptionErrors

__all__ = ["OptionDistributionalDQNLoss"]


class OptionDistributionalDQNLoss(OptionDQNLoss):
    r"""The n-step double C51 loss of every option, from one batch, in one vectorised pass.

    The version of :class:`~torchrl.objectives.DistributionalDQNLoss` for options: option o, with its own reward
    :math:`r_o`, learns the distribution of its return over fixed atoms z. The target is the projection onto the atoms
    of

    .. math::
        r_o + \gamma^m (1 - \text{terminated})\, z, \quad
        z \sim p_{\theta^-}(s_{t+m}, \arg\max_{a'} Q_\theta(s_{t+m}, a'; o); o),

    and the loss is its cross-entropy with :math:`p_\theta(s_t, a_t; o)`, averaged over the batch and summed over
    options.

    Args:
        option_actor (TensorDictModule): writes the log-probabilities ``option_action_dist`` ``[*, N, atoms, A]``: an
            :class:`~torchrl_dceo.modules.OptionDistributionalQValueActor` or any other module.

    Keyword Args:
        support (Tensor, optional): the atoms. Default: those of the
            :class:`~torchrl_dceo.modules.OptionDistributionalQValueActor` in ``option_actor``.
        kwargs: those of :class:`OptionDQNLoss`, without ``loss_function``.

    The output is that of :class:`OptionDQNLoss`; ``option_td_error``, ``option_value`` and ``option_target`` refer to
    expected returns. The priority at ``option_priority`` is the cross-entropy, averaged over options.

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

    _option_dims = 3

    def __init__(
        self, option_actor: TensorDictModuleBase, *, support: Tensor | None = None, **kwargs: Any
    ) -> None:
        if "loss_function" in kwargs:
            raise TypeError(
                f"OptionDistributionalDQNLoss has no loss_function, got {kwargs['loss_function']!r}: the loss of "
                "distributions is their cross-entropy"
            )
        if support is None:
            actors = option_actor.modules()
            known = (m for m in actors if isinstance(m, OptionDistributionalQValueActor))
            actor = next(known, None)
            if actor is None:
                raise ValueError(
                    f"support is not known from a {type(option_actor).__name__}: pass support, the atoms"
                )
            support = actor.support
        super().__init__(option_actor, **kwargs)
        self.register_buffer("support", support.detach().clone())

    def _distributions(
        self, tensordict: TensorDictBase, options: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities at s ``[*, N, K, A]``, and the probabilities ``[*, N, K]`` of the chosen actions at s'."""
        online, online_next, target_next = self._passes(
            tensordict, self.tensor_keys.option_action_dist, options
        )
        chosen = expected_value(online_next, self.support).argmax(-1)
        return online, taken_distribution(target_next, chosen).exp()

    def _errors(
        self, tensordict: TensorDictBase, reward: Tensor, options: Tensor | None
    ) -> OptionErrors:
        support = self.support
        online, probabilities = self._distributions(tensordict, options)
        self._check_reward(reward, online.shape[:-3])
        action = self._action(tensordict, online.shape[:-3], online.shape[-1])
        taken = taken_distribution(online, action.unsqueeze(-1).expand(online.shape[:-2]))
        with torch.no_grad():
            discount = self._discount(tensordict, reward)
            returns = reward.unsqueeze(-1) + discount.unsqueeze(-1) * support
            target = project(probabilities, returns, support)
        error = cross_entropy(target, taken)
        return OptionErrors(
            error, taken.detach().exp() @ support, target @ support, priority=error.detach()
        )
