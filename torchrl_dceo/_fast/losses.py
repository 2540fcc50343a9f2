"""The main learner's losses with less overhead, and the formulas that they share with the options' losses."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.modules import QValueActor
from torchrl.objectives import DistributionalDQNLoss, DQNLoss
from torchrl.objectives.common import LossModule
from torchrl.objectives.utils import distance_loss
from torchrl.objectives.value import TD0Estimator

from torchrl_dceo._fast import is_fast
from torchrl_dceo._fast.actors import GreedyActor, expected_value
from torchrl_dceo._fast.parameters import Parameters, is_plain, nested, output_of, swapped
from torchrl_dceo._fast.passes import (
    DirectLoss,
    Inputs,
    Pass,
    checked_inputs,
    form_of,
    inherits,
    is_masked,
)

__all__ = [
    "CategoricalDQNLoss",
    "DoubleDQNLoss",
    "DoublePasses",
    "cross_entropy",
    "double_passes",
    "project",
    "taken_distribution",
    "weights_of",
]


def project(probabilities: Tensor, returns: Tensor, support: Tensor) -> Tensor:
    r"""Projects a distribution over any returns onto the atoms (`Bellemare et al., 2017, Eq. 7
    <https://arxiv.org/abs/1707.06887>`_).

    Mass between two atoms is split between them in proportion to nearness, which keeps its mean; mass beyond an end
    goes to the atom there. The lower neighbour is never the last atom, so a return that is equal to an atom needs no
    special case.

    Args:
        probabilities (Tensor): p, ``[*, K]``.
        returns (Tensor): the returns, :math:`r + \gamma^m z`, ``[*, K]``.
        support (Tensor): the atoms z, evenly spaced and rising, ``[K]``.

    Returns:
        Tensor: the probabilities of the atoms, ``[*, K]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo._fast.losses import project
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
    r""":math:`-\sum_k m_k \log p_k` of ``[*, K]``: the loss of C51, the KL divergence up to the target's entropy.

    Examples:
        >>> import torch
        >>> from torchrl_dceo._fast.losses import cross_entropy
        >>> cross_entropy(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]).log())
        tensor(0.6931)
    """
    return -(target * log_probabilities).sum(-1)


def taken_distribution(distributions: Tensor, action: Tensor) -> Tensor:
    """The distributions ``[*, K]`` of the actions ``[*]`` among ``[*, K, A]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo._fast.losses import taken_distribution
        >>> taken_distribution(torch.arange(6.0).view(3, 2), torch.tensor(1))
        tensor([1., 3., 5.])
    """
    index = action[..., None, None].expand(*distributions.shape[:-1], 1)
    return distributions.gather(-1, index).squeeze(-1)


class DoublePasses(NamedTuple):
    """The outputs of :func:`double_passes`.

    Attributes:
        online (Tensor): that of the online network at s, with gradients.
        online_next (Tensor): at s', of the network that chooses the action there: the online one, or the target
            network without double Q-learning.
        target_next (Tensor): that of the target network at s'.
    """

    online: Tensor
    online_next: Tensor
    target_next: Tensor


def double_passes(
    owner: nn.Module,
    network: TensorDictModuleBase,
    parameters: tuple[Parameters, Parameters],
    batch: tuple[TensorDictBase, TensorDictBase],
    out_key: NestedKey,
    *,
    double: bool = True,
) -> DoublePasses:
    """Runs a network at s with the online parameters, and at s' with the online and the target parameters.

    Args:
        owner (nn.Module): the module of the parameters: the network, or an actor around it.
        network (TensorDictModuleBase): writes ``out_key``.
        parameters (tuple): the online and the target parameters of ``owner``.
        batch (tuple): s and s', which are not changed.
        out_key (NestedKey): the output to return.

    Keyword Args:
        double (bool, optional): whether the online network chooses at s'; otherwise the target network does.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo._fast.losses import double_passes
        >>> net = TensorDictModule(torch.nn.Linear(2, 3), in_keys=["x"], out_keys=["q"])
        >>> own = TensorDict.from_module(net)
        >>> root_td, next_td = (TensorDict({"x": torch.randn(5, 2)}, [5]) for _ in range(2))
        >>> passes = double_passes(net, net, (own, own * 2), (root_td, next_td), "q")
        >>> passes.online.requires_grad, torch.allclose(2 * passes.online_next, passes.target_next)
        (True, True)
    """
    (own_parameters, target_parameters), (root_td, next_td) = parameters, batch
    online_next = None
    with swapped(owner, own_parameters):
        online = output_of(network, root_td, out_key)
        if double:
            with torch.no_grad():
                online_next = output_of(network, next_td, out_key)
    with torch.no_grad(), swapped(owner, target_parameters):
        target_next = output_of(network, next_td, out_key)
    return DoublePasses(online, target_next if online_next is None else online_next, target_next)


def weights_of(loss: LossModule, tensordict: TensorDictBase) -> Tensor | None:
    """The batch's importance weights, if it has them and ``use_prioritized_weights`` allows them."""
    if loss.use_prioritized_weights not in (True, "auto"):
        return None
    return tensordict.get(loss.tensor_keys.priority_weight, None)


class TDGradient(NamedTuple):
    """The outputs of :func:`td_gradient`.

    Attributes:
        loss (Tensor): the loss, a number.
        gradient (Tensor): of all values, ``[B, …, A]``.
        error (Tensor): value minus target, ``[B, …]``.
    """

    loss: Tensor
    gradient: Tensor
    error: Tensor


def td_gradient(
    values: Tensor,
    index: Tensor,
    taken: Tensor,
    target: Tensor,
    loss_function: str,
    weights: Tensor | None,
) -> TDGradient:
    r"""The loss :math:`\sum_b w_b \sum_o \ell(Q_{bo} - Y_{bo}) / \sum_b w_b` and its gradient, without a graph.

    Args:
        values (Tensor): of all actions, ``[B, A]`` or ``[B, N, A]``.
        index (Tensor): of the actions taken, with a last dimension of 1.
        taken (Tensor): their values, ``[B]`` or ``[B, N]``.
        target (Tensor): Y, the same shape.
        loss_function (str): ``"smooth_l1"``, ``"l2"`` or ``"l1"``.
        weights (Tensor, optional): w, ``[B]``; 1 where it is missing.

    Examples:
        >>> import torch
        >>> from torchrl_dceo._fast.losses import td_gradient
        >>> values, index = torch.tensor([[1.0, 5.0]]), torch.tensor([[1]])
        >>> td_gradient(values, index, values[:, 1], torch.tensor([4.5]), "smooth_l1", None)[:2]
        (tensor(0.1250), tensor([[0.0000, 0.5000]]))
    """
    error = taken - target
    if loss_function == "smooth_l1":
        slope = error.clamp(-1, 1)
        loss = slope * torch.sub(error, slope, alpha=0.5)
    elif loss_function == "l2":
        slope, loss = 2 * error, error.square()
    else:
        slope, loss = error.sign(), error.abs()
    if weights is None:
        size = error.shape[0]
        loss, slope = loss.sum() / size, slope / size
    else:
        shares = (weights / weights.sum()).view(-1, *(1,) * (error.ndim - 1))
        loss, slope = (loss * shares).sum(), slope * shares
    gradient = torch.zeros_like(values).scatter_(-1, index, slope.unsqueeze(-1))
    return TDGradient(loss, gradient, error)


# On a small network TorchRL's loss spends half of its time on swapping parameters module by module, copying the batch
# and `step_mdp` (1.3 ms of 2.7 for the grid network with a batch of 32). Keys, arguments, target parameters, value
# estimator and reduction are inherited; only the three passes through the network are ours.
class DoubleDQNLoss(DirectLoss, DQNLoss):
    r"""TorchRL's :class:`~torchrl.objectives.DQNLoss` with ``double_dqn=True`` and less overhead around its network.

    .. math:: Y = R + \gamma^m (1 - \text{terminated})\, Q_{\theta^-}(s_{t+m}, \arg\max_{a'} Q_\theta(s_{t+m}, a'))

    Losses, gradients and priorities are the same to the last bit. For actors other than a
    :class:`~torchrl_dceo._fast.actors.GreedyActor` with categorical actions the code of ``DQNLoss`` runs.

    Args:
        value_network (QValueActor): the actor.

    Keyword Args:
        kwargs: those of :class:`~torchrl.objectives.DQNLoss`, except ``double_dqn``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl_dceo._fast.actors import GreedyActor
        >>> from torchrl_dceo._fast.losses import DoubleDQNLoss
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
            is_fast()
            and isinstance(network, GreedyActor)
            and network.is_direct
            and action.dtype == torch.long
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

    def direct_inputs(self, tensordict: TensorDictBase) -> Inputs | None:
        """Its networks, if they are convolutional, the estimator is TD(0) and the batch plain."""
        network, estimator = self.value_network, self.value_estimator
        if not (
            inherits(type(self), DoubleDQNLoss, "forward", "_values")
            and isinstance(network, GreedyActor)
            and network.is_direct
            and is_plain(network.module[0])
            and len(network.in_keys) == 1
            and self.reduction == "mean"
            and self.loss_function in ("smooth_l1", "l2", "l1")
            and type(estimator) is TD0Estimator
            and not estimator.average_rewards
            and tensordict.batch_dims == 1
            and tensordict.get(self.tensor_keys.action).dtype == torch.long
            and not is_masked(self, tensordict)
        ):
            return None
        key, net = network.in_keys[0], network.module[0].module
        parameters = (self.value_network_params, self.target_value_network_params)
        forms = [form_of(net, nested(each, "module", "0", "module")) for each in parameters]
        return checked_inputs(forms, (tensordict.get(key), tensordict.get("next").get(key)))

    def direct_passes(self, inputs: Inputs) -> list[Pass]:
        """The online network at s and s', the target network at s'."""
        (online, target), (here, there) = inputs
        return [Pass(online, (here, there), learned=1), Pass(target, (there,))]

    def direct_gradients(
        self, outputs: list[list[Tensor]], tensordict: TensorDictBase, factor: Tensor | None
    ) -> tuple[list[list[Tensor]], dict[str, Tensor]]:
        """The loss of ``forward``, and its gradient with respect to the values at s."""
        keys, estimator = self.value_estimator.tensor_keys, self.value_estimator
        next_td = tensordict.get("next")
        (values, online_next), (target_next,) = outputs
        index = tensordict.get(self.tensor_keys.action).view(-1, 1)
        next_value = target_next.gather(-1, online_next.argmax(-1, keepdim=True))
        steps = tensordict.get(keys.steps_to_next_obs, None)
        gamma = estimator.gamma
        discount = gamma if steps is None else gamma ** steps.view(-1, 1)
        terminated = next_td.get(keys.terminated, None)
        if terminated is None:
            terminated = next_td.get(keys.done)
        target = next_td.get(keys.reward) + discount * ~terminated * next_value
        taken = values.gather(-1, index).squeeze(-1)
        found = td_gradient(
            values,
            index,
            taken,
            target.squeeze(-1),
            self.loss_function,
            weights_of(self, tensordict),
        )
        tensordict.set(self.tensor_keys.priority, found.error.square().unsqueeze(-1))
        gradient = found.gradient if factor is None else found.gradient * factor
        return [[gradient], []], {"loss": found.loss}

    def _values(self, actor: GreedyActor, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The values at s, ``[*, A]``, and the bootstrap value at s', ``[*, 1]``."""
        online, online_next, target_next = double_passes(
            actor,
            actor.module[0],
            (self.value_network_params, self.target_value_network_params),
            (tensordict, tensordict.get("next")),
            self.tensor_keys.action_value,
        )
        return online, target_next.gather(-1, online_next.argmax(-1, keepdim=True))


# TorchRL's loss is correct for `steps_to_next_obs` of shape [B, 1] (with [B] it fails, silently if B equals the number
# of atoms), and is the reference in our tests. But it computes the target on the host, whatever the device: five copies
# and two `.item()` per update, each of which synchronises an accelerator. It also clones the batch, with its images.
# Keys, arguments and target parameters are inherited; only the computation is ours.
class CategoricalDQNLoss(DistributionalDQNLoss):
    r"""Double DQN on distributions of returns (C51, `Bellemare et al., 2017 <https://arxiv.org/abs/1707.06887>`_).

    The loss of Rainbow: with :math:`a^* = \arg\max_a \sum_k z_k\, p_\theta(s_{t+m}, a)_k` chosen by the online
    network, the target is the projection onto the atoms of

    .. math:: R + \gamma^m (1 - \text{terminated})\, z, \quad z \sim p_{\theta^-}(s_{t+m}, a^*),

    and the loss its cross-entropy with :math:`p_\theta(s_t, a_t)`, weighted by ``priority_weight`` if the batch has it.
    R and m (``steps_to_next_obs``, ``[*, 1]``) are those of :func:`~torchrl_dceo.data.make_replay_buffer`. The
    results are those of TorchRL's :class:`~torchrl.objectives.DistributionalDQNLoss`, for any batch shape and without
    synchronisation with the host.

    Args:
        value_network (DistributionalQValueActor): writes log-probabilities ``[*, atoms, A]`` at ``action_value``, e.g.
            a :class:`~torchrl_dceo._fast.actors.DistributionalGreedyActor`.

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
        >>> from torchrl_dceo._fast.actors import DistributionalGreedyActor
        >>> from torchrl_dceo.modules.distributional import DuelingDistribution, make_support
        >>> from torchrl_dceo._fast.losses import CategoricalDQNLoss
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
        next_keys = (keys.reward, keys.done, keys.terminated, *observations)
        return [keys.action, *observations, *(("next", key) for key in next_keys)]

    def _distributions(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Log-probabilities at s ``[*, K, A]``, and the probabilities ``[*, K]`` of the best action at s'."""
        network, support = self.value_network, self.value_network_params.get("support")
        online, online_next, target_next = double_passes(
            network,
            network,
            (self.value_network_params, self.target_value_network_params),
            (tensordict, tensordict.get("next")),
            self.tensor_keys.action_value,
        )
        best = expected_value(online_next, support).argmax(-1)
        return online, taken_distribution(target_next, best).exp()

    def _target(self, tensordict: TensorDictBase, probabilities: Tensor, support: Tensor) -> Tensor:
        keys, next_td = self.tensor_keys, tensordict.get("next")
        rows = probabilities.shape[:-1]
        discount = self.gamma
        steps = tensordict.get(keys.steps_to_next_obs, None)
        if steps is not None:
            discount = discount ** steps.view(*rows, 1)
        terminated = next_td.get(keys.terminated, None)
        if terminated is None:
            terminated = next_td.get(keys.done)
        reward = next_td.get(keys.reward).view(*rows, 1)
        returns = reward + discount * ~terminated.view(*rows, 1) * support
        return project(probabilities, returns, support)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Computes the loss of a batch, and writes its priorities into it."""
        if not is_fast():
            return self._torchrl(tensordict)
        keys = self.tensor_keys
        taken, target = self._compared(tensordict)
        error = cross_entropy(target, taken)
        tensordict.set(keys.priority, error.detach().unsqueeze(-1))
        loss = self._reduce_loss(error, tensordict=tensordict, weights=weights_of(self, tensordict))
        self._clear_weakrefs(tensordict, "value_network_params", "target_value_network_params")
        return TensorDict({"loss": loss, **self._means(taken, target)})

    def _compared(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The log-probabilities of the actions taken and the projected targets, ``[*, K]`` each."""
        online, target_next = self._distributions(tensordict)
        action = tensordict.get(self.tensor_keys.action)
        if self.action_space != "categorical":
            action = action.to(torch.int64).argmax(-1)
        taken = taken_distribution(online, action.reshape(online.shape[:-2]))
        with torch.no_grad():
            support = self.value_network_params.get("support")
            return taken, self._target(tensordict, target_next, support)

    def _means(self, taken: Tensor, target: Tensor) -> dict[str, Tensor]:
        support = self.value_network_params.get("support")
        return {
            "main_value": (taken.detach().exp() @ support).mean(),
            "main_target": (target @ support).mean(),
        }

    def _torchrl(self, tensordict: TensorDictBase) -> TensorDict:
        # It supports one batch dimension, and interprets an action of shape [1] as one with a last dimension.
        flat, key = tensordict.reshape(-1).copy(), self.tensor_keys.action
        if self.action_space == "categorical":
            flat.set(key, flat.get(key).reshape(-1, 1))
        out = super().forward(flat)
        priority = flat.get(self.tensor_keys.priority)
        tensordict.set(self.tensor_keys.priority, priority.view(*tensordict.shape, 1))
        if out.get("loss").ndim:
            out.set("loss", out.get("loss").view(tensordict.shape))
        with torch.no_grad():
            out.update(self._means(*self._compared(tensordict)))
        return out
