"""The main learner's double C51 loss."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor
from torchrl.objectives import DistributionalDQNLoss

from torchrl_dceo.modules.distributional import expected_value
from torchrl_dceo.objectives._categorical import cross_entropy, project, taken_distribution
from torchrl_dceo.objectives._double import double_passes, weights_of

__all__ = ["CategoricalDQNLoss"]


# TorchRL's loss has the right numbers for `steps_to_next_obs` of shape [B, 1] (with [B] it fails, silently if B equals
# the number of atoms), and its own is the reference in our tests. But it computes the target on the host, whatever the
# device: five copies and two `.item()` an update, each of which an accelerator has to stop for. It also clones the
# batch, with its images. Keys, arguments and target parameters are inherited; only the computation is ours.
class CategoricalDQNLoss(DistributionalDQNLoss):
    r"""Double DQN on distributions of returns (C51, `Bellemare et al., 2017 <https://arxiv.org/abs/1707.06887>`_).

    The loss of Rainbow: with :math:`a^* = \arg\max_a \sum_k z_k\, p_\theta(s_{t+m}, a)_k` chosen by the online
    network, the target is the projection onto the atoms of

    .. math:: R + \gamma^m (1 - \text{terminated})\, z, \quad z \sim p_{\theta^-}(s_{t+m}, a^*),

    and the loss its cross-entropy with :math:`p_\theta(s_t, a_t)`, weighted by ``priority_weight`` if the batch has it.
    R and m (``steps_to_next_obs``, ``[*, 1]``) are those of :func:`~torchrl_dceo.data.make_replay_buffer`. The same
    numbers as TorchRL's :class:`~torchrl.objectives.DistributionalDQNLoss`, for any batch shape and without a visit to
    the host.

    Args:
        value_network (DistributionalQValueActor): writes log-probabilities ``[*, atoms, A]`` at ``action_value``, e.g.
            a :class:`~torchrl_dceo.modules.DistributionalGreedyActor`.

    Keyword Args:
        gamma, delay_value, reduction, use_prioritized_weights: those of
            :class:`~torchrl.objectives.DistributionalDQNLoss`.

    The output has ``loss`` and, detached, ``main_value`` and ``main_target``, the mean expected return of the actions
    taken and of their targets. The priority written at ``td_error`` ``[*, 1]`` is the cross-entropy, as in TorchRL.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl.objectives import HardUpdate
        >>> from torchrl_dceo.modules import DistributionalGreedyActor
        >>> from torchrl_dceo.modules.distributional import DuelingDistribution, make_support
        >>> from torchrl_dceo.objectives import CategoricalDQNLoss
        >>> net = torch.nn.Sequential(torch.nn.Linear(6, 51 * 5), DuelingDistribution(51, 4))
        >>> actor = DistributionalGreedyActor(net, support=make_support(), in_keys=["observation"], spec=Categorical(4))
        >>> loss = CategoricalDQNLoss(actor, gamma=0.99)
        >>> updater = HardUpdate(loss, value_network_update_interval=100)
        >>> batch = TensorDict({"observation": torch.randn(8, 6), "action": torch.randint(4, (8,)),
        ...     "next": {"observation": torch.randn(8, 6), "reward": torch.randn(8, 1),
        ...     "done": torch.zeros(8, 1, dtype=torch.bool), "terminated": torch.zeros(8, 1, dtype=torch.bool)}}, [8])
        >>> loss(batch)["loss"].backward()
        >>> batch["td_error"].shape
        torch.Size([8, 1])
    """

    out_keys = ["loss", "main_value", "main_target"]

    @property
    def in_keys(self) -> list[Any]:
        """The entries that the loss reads."""
        keys, observations = self.tensor_keys, self.value_network.in_keys
        following = (keys.reward, keys.done, keys.terminated, *observations)
        return [keys.action, *observations, *(("next", key) for key in following)]

    def _distributions(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Log-probabilities at s ``[*, K, A]``, and the probabilities ``[*, K]`` of the best action at s'."""
        network, support = self.value_network, self.value_network_params.get("support")
        here, chooser, later = double_passes(
            network,
            network,
            (self.value_network_params, self.target_value_network_params),
            (tensordict, tensordict.get("next")),
            self.tensor_keys.action_value,
        )
        best = expected_value(chooser, support).argmax(-1)
        return here, taken_distribution(later, best).exp()

    def _target(self, tensordict: TensorDictBase, later: Tensor, support: Tensor) -> Tensor:
        keys, following = self.tensor_keys, tensordict.get("next")
        rows = later.shape[:-1]
        discount = self.gamma
        steps = tensordict.get(keys.steps_to_next_obs, None)
        if steps is not None:
            discount = discount ** steps.view(*rows, 1)
        terminated = following.get(keys.terminated, None)
        if terminated is None:
            terminated = following.get(keys.done)
        reward = following.get(keys.reward).view(*rows, 1)
        return project(later, reward + discount * ~terminated.view(*rows, 1) * support, support)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Computes the loss of a batch, and writes its priorities into it."""
        keys = self.tensor_keys
        support = self.value_network_params.get("support")
        here, later = self._distributions(tensordict)
        action = tensordict.get(keys.action)
        if self.action_space != "categorical":
            action = action.to(torch.int64).argmax(-1)
        taken = taken_distribution(here, action.reshape(here.shape[:-2]))
        with torch.no_grad():
            target = self._target(tensordict, later, support)
        error = cross_entropy(target, taken)
        tensordict.set(keys.priority, error.detach().unsqueeze(-1))
        loss = self._reduce_loss(error, tensordict=tensordict, weights=weights_of(self, tensordict))
        self._clear_weakrefs(tensordict, "value_network_params", "target_value_network_params")
        return TensorDict(
            {
                "loss": loss,
                "main_value": (taken.detach().exp() @ support).mean(),
                "main_target": (target @ support).mean(),
            }
        )
