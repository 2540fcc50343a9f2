"""The main learner's Double DQN loss."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss
from torchrl.objectives.utils import distance_loss

from torchrl_dceo.modules import GreedyActor
from torchrl_dceo.objectives._double import double_passes, weights_of

__all__ = ["DoubleDQNLoss"]


# Half of the time of TorchRL's loss on a small network goes into swapping parameters module by module, copying the
# batch and stepping the copy (1.3 ms of 2.7 for the grid network with a batch of 32). Keys, arguments, target
# parameters, value estimator and reduction are inherited; only the three passes through the network are ours.
class DoubleDQNLoss(DQNLoss):
    r"""TorchRL's :class:`~torchrl.objectives.DQNLoss` with ``double_dqn=True``, the short way through its network.

    .. math:: Y = R + \gamma^m (1 - \text{terminated})\, Q_{\theta^-}(s_{t+m}, \arg\max_{a'} Q_\theta(s_{t+m}, a'))

    The same numbers to the last bit, gradients and priorities too. Actors other than a
    :class:`~torchrl_dceo.modules.GreedyActor` with categorical actions go the way of ``DQNLoss``.

    Args:
        value_network (QValueActor): the actor.

    Keyword Args:
        kwargs: those of :class:`~torchrl.objectives.DQNLoss`, but for ``double_dqn``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl_dceo.modules import GreedyActor
        >>> from torchrl_dceo.objectives import DoubleDQNLoss
        >>> actor = GreedyActor(torch.nn.Linear(6, 4), in_keys=["observation"], spec=Categorical(4))
        >>> loss = DoubleDQNLoss(actor, loss_function="smooth_l1")
        >>> loss.make_value_estimator(gamma=0.99)
        >>> batch = TensorDict({"observation": torch.randn(8, 6), "action": torch.randint(4, (8,)),
        ...     "next": {"observation": torch.randn(8, 6), "reward": torch.randn(8, 1),
        ...     "done": torch.zeros(8, 1, dtype=torch.bool), "terminated": torch.zeros(8, 1, dtype=torch.bool)}}, [8])
        >>> loss(batch)["loss"].backward()
        >>> batch["td_error"].shape
        torch.Size([8, 1])
    """

    def __init__(self, value_network: QValueActor, **kwargs: Any) -> None:
        super().__init__(value_network, double_dqn=True, **kwargs)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Computes the loss of a batch, and writes its priorities into it."""
        network, keys = self.value_network, self.tensor_keys
        action = tensordict.get(keys.action)
        if not (
            isinstance(network, GreedyActor) and network.is_direct and action.dtype == torch.long
        ):
            return super().forward(tensordict)
        values, next_value = self._values(network, tensordict)
        taken = values.gather(-1, action.reshape(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        target = self.value_estimator.value_estimate(tensordict, next_value=next_value).squeeze(-1)
        tensordict.set(keys.priority, (taken.detach() - target).square().unsqueeze(-1))
        error = distance_loss(taken, target, self.loss_function)
        loss = self._reduce_loss(error, tensordict=tensordict, weights=weights_of(self, tensordict))
        self._clear_weakrefs(tensordict, "value_network_params", "target_value_network_params")
        return TensorDict({"loss": loss})

    def _values(self, actor: GreedyActor, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The values at s, ``[*, A]``, and the bootstrap value at s', ``[*, 1]``."""
        here, chooser, later = double_passes(
            actor,
            actor.module[0],
            (self.value_network_params, self.target_value_network_params),
            (tensordict, tensordict.get("next")),
            self.tensor_keys.action_value,
        )
        return here, later.gather(-1, chooser.argmax(-1, keepdim=True))
