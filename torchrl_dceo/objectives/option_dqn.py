"""n-step Double DQN for all options at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModule, TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn
from torchrl.data import OneHot, TensorSpec
from torchrl.objectives.common import LossModule
from torchrl.objectives.utils import ValueEstimators, dispatch_value_estimator, distance_loss

from torchrl_dceo._fast.losses import DoublePasses, double_passes, td_gradient, weights_of
from torchrl_dceo._fast.parameters import Parameters, is_plain, nested, with_rows
from torchrl_dceo._fast.passes import (
    DirectLoss,
    Inputs,
    Pass,
    checked_inputs,
    form_of,
    inherits,
    is_masked,
)
from torchrl_dceo._fast.steps import TrainedRows
from torchrl_dceo.modules.networks import OptionNet
from torchrl_dceo.modules.option_actor import OptionHead, OptionQValueActor, action_leaf

__all__ = ["OptionDQNLoss", "OptionErrors"]

ActionSpace = Literal["categorical", "one_hot"]


class OptionErrors(NamedTuple):
    """Per option and transition, ``[*, N]`` each: the loss, the learned values, their targets, the priorities."""

    loss: Tensor
    value: Tensor
    target: Tensor
    priority: Tensor


class OptionDQNLoss(DirectLoss, LossModule):
    r"""The n-step Double DQN loss of every option, from one batch, in one vectorised pass (the paper's Eq. 1).

    Option o learns off-policy from all transitions of the agent, with its own reward :math:`r_o`:

    .. math::
        Y_o = r_o + \gamma^m (1 - \text{terminated})\,
              Q_{\theta^-}(s_{t+m}, \arg\max_{a'} Q_\theta(s_{t+m}, a'; o); o)

    and the loss is the sum over options of the mean over the batch of :math:`\ell(Q_\theta(s_t, a_t; o), Y_o)`, so each
    option's gradient is that of a separate :class:`~torchrl.objectives.DQNLoss`. The random end of an option, after D
    steps on average, does not cut the bootstrap of its target; the termination of the episode does.

    It reads ``option_reward`` ``[*, N]``, which a reward module such as :class:`~torchrl_dceo.modules.EigenReward`
    has written before. The loss has no encoder and passes no gradient to one. The discount is set by
    :meth:`make_value_estimator`; with ``steps_to_next_obs`` in the batch it is raised to that power, as in ``DQNLoss``.

    Args:
        option_actor (TensorDictModule): writes ``option_action_value`` ``[*, N, A]``: an
            :class:`~torchrl_dceo.modules.OptionQValueActor` or any other module.

    Keyword Args:
        num_options (int, optional): N. Default: that of the :class:`~torchrl_dceo.modules.OptionQValueActor` in
            ``option_actor``.
        action_space (str or TensorSpec, optional): ``"categorical"``, ``"one_hot"``, or the action's spec. Default:
            that of the :class:`~torchrl_dceo.modules.OptionQValueActor` in ``option_actor``.
        double_dqn (bool, optional): choose the next action with the online network. Default: ``True``.
        delay_value (bool, optional): keep target networks, updated by TorchRL's ``SoftUpdate`` or ``HardUpdate``.
            Default: ``True``.
        loss_function (str, optional): ``"smooth_l1"``, ``"l2"`` or ``"l1"``. Default: ``"smooth_l1"``.
        single_step (bool, optional): treat the transitions as single steps, m = 1, and ignore ``steps_to_next_obs``.
            Options can learn from single steps while the main learner uses n steps. The later steps were chosen by
            other policies, and single steps give much better options. Also pass the key of the state after one
            step as ``successor``. Default: ``False``.
        successor (NestedKey, optional): prefix of the entries of the state after the transition, flags included, e.g.
            ``"successor"`` of :func:`~torchrl_dceo.data.make_replay_buffer`. Default: ``"next"``.
        options_per_update (int, optional): train only this many options, drawn without replacement at each call;
            1 is the variant of the DCEO authors' released code. With an
            :class:`~torchrl_dceo.modules.networks.OptionNet` in ``option_actor`` the others are not computed, and
            :meth:`trained_rows` returns the rows of the parameters that
            :class:`~torchrl_dceo._fast.steps.OptionAdam` updates. Any other optimizer with momentum
            updates all options. Default: ``None``, all of them.
        reduction (str, optional): over the batch: ``"mean"``, ``"sum"`` or ``"none"`` (the result is ``[*]``, summed
            over options). Default: ``"mean"``.
        use_prioritized_weights (bool or "auto", optional): weight the transitions by ``priority_weight`` if the batch
            has it. Default: ``"auto"``.

    The output has ``loss_option`` and, detached and one value per trained option for logging, ``option_td_error`` (mean
    absolute), ``option_value`` (mean of the taken actions) and ``option_target``. As in ``DQNLoss``, a priority is
    written into the input, here under ``option_priority``: the squared TD error, averaged over the options.

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

        Any module that writes values of this shape can be used:

        >>> from tensordict.nn import TensorDictModule
        >>> net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Unflatten(-1, (3, 4)))
        >>> module = TensorDictModule(net, in_keys=["observation"], out_keys=["option_action_value"])
        >>> loss = OptionDQNLoss(module, num_options=3, action_space="categorical")
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change; see :class:`~torchrl.objectives.DQNLoss` for those it shares.

        Attributes:
            action (NestedKey): the action taken.
            option_reward (NestedKey): the rewards of all options.
            option_action_value (NestedKey): where the actor writes the values.
            option_action_dist (NestedKey): where a distributional actor writes the log-probabilities.
            successor (NestedKey): prefix of the entries of the next state, flags included.
            done (NestedKey): under ``successor``, read where ``terminated`` is missing.
            terminated (NestedKey): under ``successor``, whether the episode terminated there.
            steps_to_next_obs (NestedKey): m, the steps of the transition; 1 where it is missing.
            priority (NestedKey): where the priority is written.
            priority_weight (NestedKey): the weights of the transitions.
        """

        action: NestedKey = "action"
        option_reward: NestedKey = "option_reward"
        option_action_value: NestedKey = "option_action_value"
        option_action_dist: NestedKey = "option_action_dist"
        successor: NestedKey = "next"
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
        option_actor: TensorDictModuleBase,
        *,
        num_options: int | None = None,
        action_space: ActionSpace | TensorSpec | None = None,
        double_dqn: bool = True,
        delay_value: bool = True,
        loss_function: str = "smooth_l1",
        single_step: bool = False,
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
        num_options, self.action_space = _described(option_actor, num_options, action_space)
        if options_per_update is not None and not 1 <= options_per_update <= num_options:
            raise ValueError(
                f"options_per_update must lie between 1 and the {num_options} options, got {options_per_update}"
            )
        self.convert_to_functional(option_actor, "option_network", create_target_params=delay_value)
        self.num_options = num_options
        self.double_dqn = double_dqn
        self.delay_value = delay_value
        self.loss_function = loss_function
        self.single_step = single_step
        self.options_per_update = options_per_update
        self.reduction = reduction
        self.use_prioritized_weights = use_prioritized_weights
        self._options: tuple[int, ...] = ()  # those trained by the last call
        # The parameters that hold a block of rows per option, and the number of rows in a block.
        self._divided = {
            tuple(f"{prefix}.{name}".split(".")): rows
            for prefix, module in self.option_network.named_modules()
            if isinstance(module, OptionNet)
            for name, rows in module.rows_per_option().items()
        }
        self.set_keys(successor=successor)

    @property
    def in_keys(self) -> list[NestedKey]:
        """The entries that the loss reads; one of ``terminated`` and ``done`` suffices, the last two are optional."""
        keys, observations = self.tensor_keys, self.option_network.in_keys
        return [
            keys.action,
            keys.option_reward,
            unravel_key((keys.successor, keys.done)),
            unravel_key((keys.successor, keys.terminated)),
            *observations,
            *(unravel_key((keys.successor, key)) for key in observations),
            *([] if self.single_step else [keys.steps_to_next_obs]),
            keys.priority_weight,
        ]

    def _forward_value_estimator_keys(self, **kwargs: Any) -> None:
        """Nothing to forward: only the discount of the estimator is used."""

    def make_value_estimator(
        self, value_type: ValueEstimators | None = None, **hyperparams: Any
    ) -> None:
        """Sets the options' discount: ``make_value_estimator(gamma=0.99)``.

        Args:
            value_type (ValueEstimators, optional): only TD(0), as targets are n-step already.
            hyperparams: ``gamma``.
        """
        dispatch_value_estimator(
            self,
            self.default_value_estimator if value_type is None else value_type,
            supported=(ValueEstimators.TD0,),
            **hyperparams,
        )

    def trained_rows(self) -> list[TrainedRows]:
        """The parameter rows of the options trained by the last call, for every parameter with rows per option.

        Empty if all options are trained, or if there is no :class:`~torchrl_dceo.modules.networks.OptionNet`.
        """
        if not self._options:
            return []
        parameters = self.option_network_params
        return [
            TrainedRows(parameters.get(key), rows, self._options)
            for key, rows in self._divided.items()
        ]

    def _values(self, tensordict: TensorDictBase, options: Tensor | None) -> tuple[Tensor, Tensor]:
        """The values of the options and actions at s, ``[*, N, A]``, and the bootstrap values at s', ``[*, N]``."""
        online, online_next, target_next = self._passes(
            tensordict, self.tensor_keys.option_action_value, options
        )
        best = online_next.argmax(-1, keepdim=True)
        return online, target_next.gather(-1, best).squeeze(-1)

    def _passes(
        self, tensordict: TensorDictBase, key: NestedKey, options: Tensor | None
    ) -> DoublePasses:
        if key not in self.option_network.out_keys:
            raise KeyError(
                f"{type(self).__name__} reads {key!r}, which the option actor does not write: it writes "
                f"{list(self.option_network.out_keys)}, choose one of them with set_keys"
            )
        parameters: tuple[Parameters, Parameters] = (
            self.option_network_params,
            self.target_option_network_params,
        )
        if options is not None and self._divided:
            rows = {entry: _rows(options, size) for entry, size in self._divided.items()}
            parameters = (with_rows(parameters[0], rows), with_rows(parameters[1], rows))
        with self._expecting(options):
            passes = double_passes(
                self.option_network,
                self.option_network,
                parameters,
                (tensordict, tensordict.get(self.tensor_keys.successor)),
                key,
                double=self.double_dqn,
            )
        if options is not None and not self._divided:
            dim = passes.online.ndim - self._option_dims
            passes = DoublePasses(*(each.index_select(dim, options) for each in passes))
        return passes

    _option_dims = 2  # number of trailing dimensions of an output that start with the options

    @contextmanager
    def _expecting(self, options: Tensor | None) -> Iterator[None]:
        """Sets the number of options that the heads check to that of the chosen ones."""
        heads: list[OptionHead] = []
        if options is not None and self._divided:
            heads = [m for m in self.option_network.modules() if isinstance(m, OptionHead)]
        try:
            for head in heads:
                head.num_options = len(self._options)
            yield
        finally:
            for head in heads:
                head.num_options = self.num_options

    def _discount(self, tensordict: TensorDictBase, reward: Tensor) -> Tensor:
        r"""The factor of the next value, :math:`\gamma^m (1 - \text{terminated})`, ``[*, 1]``.

        The estimator's own ``value_estimate`` would need flags of the reward's shape.
        """
        keys = self.tensor_keys
        discount = self.value_estimator.gamma
        steps = None if self.single_step else tensordict.get(keys.steps_to_next_obs, None)
        if steps is not None:
            discount = discount ** steps.view(*reward.shape[:-1], 1)
        next_td = tensordict.get(keys.successor)
        terminated = next_td.get(keys.terminated, None)
        if terminated is None:
            terminated = next_td.get(keys.done)
        return discount * ~terminated

    def _errors(
        self, tensordict: TensorDictBase, reward: Tensor, options: Tensor | None
    ) -> OptionErrors:
        """Compares the values of the taken actions with the targets :math:`Y_o` of Eq. 1, for every option."""
        values, next_value = self._values(tensordict, options)
        self._check_reward(reward, values.shape[:-2])
        action = self._action(tensordict, values.shape[:-2], values.shape[-1])
        index = action[..., None, None].expand(*values.shape[:-1], 1)
        taken = values.gather(-1, index).squeeze(-1)
        target = reward + self._discount(tensordict, reward) * next_value
        error = distance_loss(taken, target, self.loss_function)
        value = taken.detach()
        return OptionErrors(error, value, target, priority=(value - target).square())

    def _draw_options(self) -> Tensor | None:
        """Draws the options to train, on the host because the optimizer needs their rows."""
        if self.options_per_update is None:
            return None
        options = torch.randperm(self.num_options)[: self.options_per_update]
        self._options = tuple(options.tolist())
        return options

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Computes the loss from a batch that carries ``option_reward``."""
        keys = self.tensor_keys
        reward = self._reward(tensordict)
        options = self._draw_options()
        if options is not None:
            options = options.to(reward.device)
            reward = reward.index_select(-1, options)
        errors = self._errors(tensordict, reward, options)
        loss = self._reduce_loss(
            errors.loss.sum(-1), tensordict=tensordict, weights=weights_of(self, tensordict)
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

    def direct_inputs(self, tensordict: TensorDictBase) -> Inputs | None:
        """The networks, if they are convolutional with rows per option and the batch is plain."""
        network, keys = self.option_network, self.tensor_keys
        if not (
            inherits(type(self), OptionDQNLoss, "forward", "_errors", "_values")
            and is_plain(network)
            and len(network.in_keys) == 1
            and network.out_keys == [keys.option_action_value]
            and self.double_dqn
            and self.reduction == "mean"
            and self.action_space == "categorical"
            and (self.options_per_update is None or self._divided)
            and tensordict.batch_dims == 1
            and tensordict.get(keys.action).shape == tensordict.shape
            and not is_masked(self, tensordict)
        ):
            return None
        parameters = (self.option_network_params, self.target_option_network_params)
        forms = [form_of(network.module, nested(each, "module")) for each in parameters]
        key = network.in_keys[0]
        images = (tensordict.get(key), tensordict.get(keys.successor).get(key))
        return checked_inputs(forms, images)

    def direct_passes(self, inputs: Inputs) -> list[Pass]:
        """Passes of the online networks at s and s' and of the target networks at s', for the drawn options."""
        self._draw_options()
        (online, target), (here, there) = inputs
        chosen: dict[str, Any] = {}
        if self.options_per_update is not None:
            chosen["options"] = self._options
            chosen["rows"] = 0 if online.stack else next(iter(self._divided.values()))
        return [Pass(online, (here, there), 1, **chosen), Pass(target, (there,), 0, **chosen)]

    def direct_gradients(
        self, outputs: list[list[Tensor]], tensordict: TensorDictBase, factor: Tensor | None
    ) -> tuple[list[list[Tensor]], dict[str, Tensor]]:
        """Same results as ``forward``, and the gradients with respect to the values at s."""
        keys, reward = self.tensor_keys, self._reward(tensordict)
        count = self.num_options
        if self.options_per_update is not None:
            reward = reward[:, list(self._options)]
            count = len(self._options)
        (flat, online_next), (target_next,) = outputs
        size = flat.shape[0]
        values, online_next, target_next = (
            each.view(size, count, -1) for each in (flat, online_next, target_next)
        )
        self._check_reward(reward, values.shape[:-2])
        best = online_next.argmax(-1, keepdim=True)
        next_value = target_next.gather(-1, best).squeeze(-1)
        index = tensordict.get(keys.action).view(-1, 1, 1).expand(size, count, 1)
        taken = values.gather(-1, index).squeeze(-1)
        target = reward + self._discount(tensordict, reward) * next_value
        found = td_gradient(
            values, index, taken, target, self.loss_function, weights_of(self, tensordict)
        )
        gradient = found.gradient if factor is None else found.gradient * factor
        tensordict.set(keys.priority, found.error.square().mean(-1, keepdim=True))
        return [[gradient.view(flat.shape)], []], {
            "loss_option": found.loss,
            "option_td_error": found.error.abs().mean(0),
            "option_value": taken.mean(0),
            "option_target": target.mean(0),
        }

    def _reward(self, tensordict: TensorDictBase) -> Tensor:
        key = self.tensor_keys.option_reward
        reward = tensordict.get(key, None)
        if reward is None:
            raise KeyError(
                f"{type(self).__name__} reads {key!r}, which is not in the batch: run a reward module such as "
                "EigenReward before it"
            )
        if reward.shape[-1] != self.num_options:
            raise ValueError(
                f"the batch has rewards for {reward.shape[-1]} options but the actor has {self.num_options}"
            )
        return reward.detach()

    def _check_reward(self, reward: Tensor, shape: torch.Size) -> None:
        if reward.shape[:-1] != shape:
            raise ValueError(
                f"{self.tensor_keys.option_reward!r} must contain one reward for each option of each of the "
                f"{tuple(shape)} transitions, got the shape {tuple(reward.shape)}"
            )

    def _action(self, tensordict: TensorDictBase, shape: torch.Size, num_actions: int) -> Tensor:
        """The taken action as an index, in the shape of the batch."""
        key = self.tensor_keys.action
        action = tensordict.get(key, None)
        if action is None:
            raise KeyError(
                f"{type(self).__name__} reads {key!r}, which is not in the batch: store the action with the steps"
            )
        coded = (*shape, num_actions)
        if self.action_space == "one_hot":
            if action.shape != coded:
                raise ValueError(
                    f"action_space='one_hot' needs actions of shape {coded}, got {tuple(action.shape)}: pass "
                    "action_space='categorical' for indices"
                )
            return action.to(torch.int64).argmax(-1)
        if action.shape not in (shape, (*shape, 1)):
            raise ValueError(
                f"action_space='categorical' needs actions of shape {tuple(shape)}, got {tuple(action.shape)}: pass "
                "action_space='one_hot' for one-hot actions"
            )
        return action.reshape(shape)


def _rows(options: Tensor, size: int) -> Tensor:
    """The row indices of the given options in a parameter with ``size`` rows per option."""
    if size == 1:
        return options
    return (options[:, None] * size + torch.arange(size, device=options.device)).flatten()


def _described(
    actor: nn.Module, num_options: int | None, action_space: ActionSpace | TensorSpec | None
) -> tuple[int, ActionSpace]:
    """The number of options and the action space, as given or read from the option actor inside the module."""
    known = next((m for m in actor.modules() if isinstance(m, OptionQValueActor)), None)
    if num_options is None:
        if known is None:
            raise ValueError(
                f"num_options is not known from a {type(actor).__name__}: pass num_options"
            )
        num_options = known.num_options
    elif known is not None and num_options != known.num_options:
        raise ValueError(f"num_options={num_options}, but the actor has {known.num_options}")
    if action_space is None:
        if known is None:
            raise ValueError(
                f"action_space is not known from a {type(actor).__name__}: pass action_space='categorical' or "
                "'one_hot'"
            )
        return num_options, known.action_space
    if isinstance(action_space, TensorSpec):
        action_space = "one_hot" if isinstance(action_leaf(action_space), OneHot) else "categorical"
    if action_space not in ("categorical", "one_hot"):
        raise ValueError(
            f"action_space must be 'categorical', 'one_hot' or a spec, got {action_space!r}"
        )
    return num_options, action_space
