"""DIAYN's discriminator: predicts the skill that led to a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, TensorDictParams, unravel_key
from tensordict.nn import TensorDictModule, TensorDictModuleBase, dispatch
from torch import Tensor, nn
from torchrl.objectives import LossModule

from torchrl_dceo._fast.parameters import swapped

__all__ = ["DIAYNLoss", "SkillLoss"]

Reduction = Literal["mean", "sum", "none"]
NO_SKILL = -1


class SkillLoss(LossModule):
    """Base of the losses over the steps at which a skill was active; they have no value target.

    Args:
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``.
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change.

        Attributes:
            option (NestedKey): the skill active during the step, −1 for none. Defaults to ``"option"``.
            successor (NestedKey): prefix of the entries of the state after the step. Defaults to ``"next"``.
        """

        option: NestedKey = "option"
        successor: NestedKey = "next"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys

    def __init__(self, reduction: Reduction) -> None:
        super().__init__()
        if reduction not in get_args(Reduction):
            raise ValueError(f"reduction must be one of {get_args(Reduction)}, got {reduction!r}")
        self.reduction = reduction

    def _forward_value_estimator_keys(self, **kwargs: NestedKey) -> None:
        """There is no value estimator."""

    def _read(self, tensordict: TensorDictBase, key: NestedKey, fix: str) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            raise KeyError(
                f"{type(self).__name__} reads {key!r}, which the batch does not contain: {fix}"
            )
        return value

    def _read_skill(self, tensordict: TensorDictBase) -> Tensor:
        return self._read(
            tensordict,
            self.tensor_keys.option,
            "store it with the steps, e.g. make_replay_buffer(step_keys=['action', 'option'])",
        )


class DIAYNLoss(SkillLoss):
    r"""The cross-entropy of DIAYN's discriminator, :math:`-\mathbb E[\log q(z \mid s')]`.

    From Eysenbach et al., "Diversity is All You Need" (ICLR 2019, https://arxiv.org/abs/1802.06070). A step from s to
    s' taken while skill z was active is a sample of the states of z. s' is always the state after one step, also in a
    batch of n-step transitions, because another skill may be active later. Steps without a skill (``option`` −1) are
    ignored: the mean is over the others, and 0 (with a gradient of 0) if there are none.

    Args:
        discriminator (TensorDictModuleBase): maps a state to the N logits of :math:`q(z \mid s)`, its one out_key.
            :class:`~torchrl_dceo.modules.DIAYNReward` computes the skills' rewards from the same module.

    Keyword Args:
        successor (NestedKey, optional): where s' is read, with the keys of the discriminator under it. Default:
            ``"next"``; with n-step transitions pass the key of the state after one step.
        reduction (str, optional): ``"mean"``, ``"sum"`` or ``"none"`` (0 where no skill was active). Default:
            ``"mean"``.

    The returned TensorDict holds ``loss_discriminator`` and, detached, ``skill_accuracy``: the fraction of steps with a
    skill whose skill the discriminator predicts (1/N is chance; 0 without such steps).

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.objectives import DIAYNLoss
        >>> net = torch.nn.Linear(2, 3)
        >>> discriminator = TensorDictModule(net, in_keys=["observation"], out_keys=["skill_logits"])
        >>> loss = DIAYNLoss(discriminator)
        >>> batch = TensorDict(
        ...     {"option": torch.tensor([0, 2, -1]), "next": {"observation": torch.randn(3, 2)}}, [3]
        ... )
        >>> loss(batch)["loss_discriminator"].backward()
    """

    out_keys = ["loss_discriminator", "skill_accuracy"]

    discriminator_network: TensorDictModule
    discriminator_network_params: TensorDictParams
    target_discriminator_network_params: TensorDictParams

    def __init__(
        self,
        discriminator: TensorDictModuleBase,
        *,
        successor: NestedKey = "next",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        if len(discriminator.out_keys) != 1:
            raise ValueError(
                f"the discriminator must have one out_key, got {list(discriminator.out_keys)}"
            )
        self.convert_to_functional(
            discriminator, "discriminator_network", create_target_params=False
        )
        self.set_keys(successor=successor)

    @property
    def in_keys(self) -> list[NestedKey]:
        """The skill, and the discriminator's keys under ``successor``."""
        keys, observations = self.tensor_keys, self.discriminator_network.in_keys
        return [keys.option, *(unravel_key((keys.successor, key)) for key in observations)]

    def _logits(self, tensordict: TensorDictBase) -> Tensor:
        network, successor = self.discriminator_network, self.tensor_keys.successor
        states = TensorDict(
            {
                key: self._read(
                    tensordict, unravel_key((successor, key)), "set its key with successor=…"
                )
                for key in network.in_keys
            },
            batch_size=tensordict.batch_size,
        )
        with swapped(network, self.discriminator_network_params):
            return network(states).get(network.out_keys[0])

    # Without the automatic batch size, which would take an observation's own dimensions for batch dimensions.
    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Computes the loss from a batch of steps with the skills that were active."""
        option = self._read_skill(tensordict)
        logits = self._logits(tensordict)
        skill = option.reshape(logits.shape[:-1])
        loss = nn.functional.cross_entropy(
            logits.flatten(0, -2) if logits.ndim > 1 else logits,
            skill.flatten() if logits.ndim > 1 else skill,
            ignore_index=NO_SKILL,
            reduction="none",
        ).view(skill.shape)
        active = skill != NO_SKILL
        count = active.sum().clamp(min=1)
        if self.reduction == "mean":
            loss = loss.sum() / count
        elif self.reduction == "sum":
            loss = loss.sum()
        with torch.no_grad():
            accuracy = (logits.argmax(-1) == skill).sum() / count
        self._clear_weakrefs(tensordict, "discriminator_network_params")
        return TensorDict({"loss_discriminator": loss, "skill_accuracy": accuracy})
