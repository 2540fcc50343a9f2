"""What losses that learn from the skill in charge have in common: their keys, and how they read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.objectives import LossModule

__all__ = ["NO_SKILL", "Reduction", "SkillLoss"]

Reduction = Literal["mean", "sum", "none"]
NO_SKILL = -1


class SkillLoss(LossModule):
    """A loss over steps of which some were taken while a skill was active; its target is no value.

    Args:
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``.
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change.

        Attributes:
            option (NestedKey): the skill active during the step, −1 for none. Defaults to ``"option"``.
            successor (NestedKey): where the state that the step led to is found. Defaults to ``"next"``.
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
        """There is no value estimator to tell."""

    def _read(self, tensordict: TensorDictBase, key: NestedKey, fix: str) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            raise KeyError(
                f"{type(self).__name__} reads {key!r}, which the batch does not hold: {fix}"
            )
        return value

    def _read_skill(self, tensordict: TensorDictBase) -> Tensor:
        return self._read(
            tensordict,
            self.tensor_keys.option,
            "store it with the steps, e.g. make_replay_buffer(step_keys=['action', 'option'])",
        )
