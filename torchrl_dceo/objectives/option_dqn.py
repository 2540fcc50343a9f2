"""n-step Double DQN for all options at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModule, dispatch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.objectives.common import LossModule
from torchrl.objectives.utils import ValueEstimators, dispatch_value_estimator, distance_loss

from torchrl_dceo._fast.losses import DoublePasses, double_passes, weights_of

__all__ = ["OptionDQNLoss", "OptionErrors"]


class OptionErrors(NamedTuple):
    """What a batch says of every option, ``[*, N]`` each: the loss, the values learned, their targets, priorities."""

    loss: Tensor
    value: Tensor
    target: Tensor
    priority: Tensor


class OptionDQNLoss(LossModule):
    r"""The n-step Double DQN loss of every option, from one batch, in one vectorised pass (the paper's Eq. 1).

    Option o learns off-policy from whatever the agent did, with its own reward :math:`r_o`:

    .. math::
        Y_o = r_o + \gamma^m (1 - \text{terminated})\,
              Q_{\theta^-}(s_{t+m}, \arg\max_{a'} Q_\theta(s_{t+m}, a'; o); o)

    and the loss is the sum over options of the mean over the batch of :math:`\ell(Q_\theta(s_t, a_t; o), Y_o)`, so each
    option's gradient is that of a :class:`~torchrl.objectives.DQNLoss` of its own. An option's random end after D
    steps is
    not terminal in its target; the episode's termination is.

    It reads ``option_reward`` ``[*, N]``, written before by a reward module such as
    :class:`~torchrl_dceo.modules.EigenReward`: the loss owns no encoder, and no gradient reaches one. The discount
    comes from
    :meth:`make_value_estimator`; with ``steps_to_next_obs`` in the batch it is raised to that power, as in ``DQNLoss``.

    Args:
        option_actor (TensorDictModule): writes ``option_action_value`` ``[*, N, A]``, e.g. an
            :class:`~torchrl_dceo.modules.OptionQValueActor`.

    Keyword Args:
        double_dqn (bool, optional): choose the next action with the online network. Default: ``True``.
        delay_value (bool, optional): keep target networks, moved by TorchRL's ``SoftUpdate`` or ``HardUpdate``.
            Default: ``True``.
        loss_function (str, optional): ``"smooth_l1"``, ``"l2"`` or ``"l1"``. Default: ``"smooth_l1"``.
        successor (NestedKey, optional): where the state after the transition is. With anything but ``"next"`` the
            transitions are taken as single steps, whatever ``steps_to_next_obs`` says of ``"next"``: ``"successor"`` of
            :func:`~torchrl_dceo.data.make_replay_buffer` lets options learn from one step while the main learner takes
            n. The steps in between were another policy's, and over n of them the first action counts for little: one
            step makes far better options. Default: ``"next"``.
        options_per_update (int, optional): train only this many options, drawn anew without replacement at each call;
            1 is the variant of the DCEO authors' released code. Default: ``None``, all of them.
        reduction (str, optional): over the batch: ``"mean"``, ``"sum"`` or ``"none"`` (the result is ``[*]``, summed
        over
            options). Default: ``"mean"``.
        use_prioritized_weights (bool or "auto", optional): weigh the transitions by ``priority_weight`` if the batch
        has it.
            Default: ``"auto"``.

    The output has ``loss_option`` and, detached and one value per option for logging, ``option_td_error`` (mean
    absolute),
    ``option_value`` (mean of the taken actions) and ``option_target``. As in ``DQNLoss``, a priority is written into
    the input,
    here under ``option_priority``: the squared TD error, averaged over options.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl.objectives import SoftUpdate
        >>> from torchrl_dceo.modules import OptionQValueActor
        >>> from torchrl_dceo.modules.networks import MultiHeadNet, mlp_net
        >>> from torchrl_dceo.objectives import OptionDQNLoss
        >>> net = MultiHeadNet(lambda out: mlp_net(6, out), num_heads=3, head_shape=4)
        >>> actor = OptionQValueActor(net, num_options=3, in_keys=["observation"], spec=Categorical(4))
        >>> loss = OptionDQNLoss(actor)
        >>> loss.make_value_estimator(gamma=0.99)
        >>> updater = SoftUpdate(loss, tau=0.005)
        >>> batch = TensorDict({"observation": torch.randn(8, 6), "action": torch.randint(4, (8,)),
        ...     "option_reward": torch.randn(8, 3), "next": {"observation": torch.randn(8, 6),
        ...     "done": torch.zeros(8, 1, dtype=torch.bool), "terminated": torch.zeros(8, 1, dtype=torch.bool)}}, [8])
        >>> loss(batch)["loss_option"].backward()
        >>> updater.step()
    """

    @dataclass
    class _AcceptedKeys:
        """Names of the entries; see :class:`~torchrl.objectives.DQNLoss` for those it shares."""

        action: NestedKey = "action"
        option_reward: NestedKey = "option_reward"
        option_action_value: NestedKey = "option_action_value"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"
        steps_to_next_obs: NestedKey = "steps_to_next_obs"
        priority: NestedKey = "option_priority"
        priority_weight: NestedKey = "priority_weight"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    default_value_estimator = ValueEstimators.TD0
    out_keys = ["loss_option", "option_td_error", "option_value", "option_target"]

    option_network: TensorDictModule
    option_network_params: TensorDictParams
    target_option_network_params: TensorDictParams

    def __init__(
        self,
        option_actor: TensorDictModule,
        *,
        double_dqn: bool = True,
        delay_value: bool = True,
        loss_function: str = "smooth_l1",
        successor: NestedKey = "next",
        options_per_update: int | None = None,
        reduction: str = "mean",
        use_prioritized_weights: str | bool = "auto",
    ) -> None:
        super().__init__()
        if double_dqn and not delay_value:
            raise ValueError("double_dqn=True needs target networks: set delay_value=True")
        if loss_function not in ("l1", "l2", "smooth_l1"):
            raise ValueError(
                f'loss_function must be "l1", "l2" or "smooth_l1", got {loss_function!r}'
            )
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(f'reduction must be "none", "mean" or "sum", got {reduction!r}')
        num_options = option_actor.num_options
        if options_per_update is not None and not 1 <= options_per_update <= num_options:
            raise ValueError(
                f"options_per_update must lie between 1 and the {num_options} options, got {options_per_update}"
            )
        self.convert_to_functional(option_actor, "option_network", create_target_params=delay_value)
        self.num_options = num_options
        self.action_space = option_actor.action_space
        self.double_dqn = double_dqn
        self.delay_value = delay_value
        self.loss_function = loss_function
        self.successor = successor
        self.options_per_update = options_per_update
        self.reduction = reduction
        self.use_prioritized_weights = use_prioritized_weights

    @property
    def in_keys(self) -> list[NestedKey]:
        """The entries that the loss reads."""
        observations = self.option_network.in_keys
        return [
            self.tensor_keys.action,
            self.tensor_keys.option_reward,
            unravel_key((self.successor, self.tensor_keys.done)),
            unravel_key((self.successor, self.tensor_keys.terminated)),
            *observations,
            *(unravel_key((self.successor, key)) for key in observations),
        ]

    def _forward_value_estimator_keys(self, **kwargs: Any) -> None:
        """Nothing to forward: of the estimator only the discount is read."""

    def make_value_estimator(
        self, value_type: ValueEstimators | None = None, **hyperparams: Any
    ) -> None:
        """Sets the options' discount: ``make_value_estimator(gamma=0.99)``. Only TD(0), as targets are n-step
        already."""
        dispatch_value_estimator(
            self,
            self.default_value_estimator if value_type is None else value_type,
            supported=(ValueEstimators.TD0,),
            **hyperparams,
        )

    def _values(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The values of every option and action at s, ``[*, N, A]``, and the bootstrap values at s', ``[*, N]``."""
        here, chooser, later = self._passes(tensordict, self.tensor_keys.option_action_value)
        return here, later.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1)

    def _passes(self, tensordict: TensorDictBase, key: NestedKey) -> DoublePasses:
        return double_passes(
            self.option_network,
            self.option_network,
            (self.option_network_params, self.target_option_network_params),
            (tensordict, tensordict.get(self.successor)),
            key,
            double=self.double_dqn,
        )

    def _discount(self, tensordict: TensorDictBase, reward: Tensor) -> Tensor:
        r"""What the next value counts, :math:`\gamma^m (1 - \text{terminated})`, ``[*, 1]``.

        In place of the estimator's own ``value_estimate``, which would want every flag expanded to the reward's shape.
        """
        keys = self.tensor_keys
        discount = self.value_estimator.gamma
        single = self.successor != "next"
        steps = None if single else tensordict.get(keys.steps_to_next_obs, None)
        if steps is not None:
            discount = discount ** steps.view(*reward.shape[:-1], 1)
        following = tensordict.get(self.successor)
        terminated = following.get(keys.terminated, None)
        if terminated is None:
            terminated = following.get(keys.done)
        return discount * ~terminated

    def _errors(self, tensordict: TensorDictBase, reward: Tensor) -> OptionErrors:
        """Compares the values of the actions taken with Eq. 1's :math:`Y`, for every option."""
        values, next_value = self._values(tensordict)
        action = self._action(tensordict, values.shape[:-2])
        index = action[..., None, None].expand(*values.shape[:-1], 1)
        taken = values.gather(-1, index).squeeze(-1)
        target = reward + self._discount(tensordict, reward) * next_value
        error = distance_loss(taken, target, self.loss_function)
        value = taken.detach()
        return OptionErrors(error, value, target, priority=(value - target).square())

    def _options_trained(self, device: torch.device) -> Tensor | None:
        if self.options_per_update is None:
            return None
        return torch.randperm(self.num_options, device=device)[: self.options_per_update]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Computes the loss from a batch that carries ``option_reward``."""
        keys = self.tensor_keys
        reward = tensordict.get(keys.option_reward, None)
        if reward is None:
            raise KeyError(
                f"{type(self).__name__} reads {keys.option_reward!r}, which is not in the batch: run a reward module "
                "such as EigenReward before it"
            )
        if reward.shape[-1] != self.num_options:
            raise ValueError(
                f"the batch holds rewards for {reward.shape[-1]} options but the actor has {self.num_options}"
            )
        errors = self._errors(tensordict, reward.detach())
        trained = self._options_trained(reward.device)
        error = errors.loss if trained is None else errors.loss[..., trained]
        per_transition = error.sum(-1)

        loss = self._reduce_loss(
            per_transition, tensordict=tensordict, weights=weights_of(self, tensordict)
        )

        batch = tuple(range(reward.ndim - 1))
        tensordict.set(keys.priority, errors.priority.mean(-1, keepdim=True))
        diagnostics = {
            "option_td_error": (errors.value - errors.target).abs().mean(batch),
            "option_value": errors.value.mean(batch),
            "option_target": errors.target.mean(batch),
        }
        self._clear_weakrefs(tensordict, "option_network_params", "target_option_network_params")
        return TensorDict({"loss_option": loss, **diagnostics})

    def _action(self, tensordict: TensorDictBase, shape: torch.Size) -> Tensor:
        """The taken action as an index, in the shape of the batch."""
        action = tensordict.get(self.tensor_keys.action)
        if self.action_space == "one_hot":
            action = action.to(torch.int64).argmax(-1)
        return action.reshape(shape)
