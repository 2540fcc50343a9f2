"""What every Laplacian loss shares: reading s and s', one encoder pass, masks and the reduction."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, TensorDictParams, unravel_key
from tensordict.nn import TensorDictModule, TensorDictModuleBase, dispatch
from torch import Tensor
from torchrl.objectives import LossModule

from torchrl_dceo._fast.parameters import output_of, swapped
from torchrl_dceo.objectives._barrier import AutomaticBarrier

__all__ = ["Barrier", "Estimator", "Reduction", "RepresentationLoss"]

Barrier = float | Literal["auto"]
Estimator = Literal["pairs", "split"]
Reduction = Literal["mean", "sum", "none"]


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a mode that is not one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_positive(name: str, value: float) -> None:
    """Refuse a number that is not positive and finite."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value}.")


def check_barrier(value: Barrier) -> None:
    """Refuse a barrier that is neither a positive number nor ``"auto"``."""
    if isinstance(value, str) and value != "auto":
        raise ValueError(f"barrier must be 'auto' or a positive number, got {value!r}.")
    if not isinstance(value, str):
        check_positive("barrier", value)


class RepresentationLoss(LossModule):
    """Base of the losses that learn f: S -> R^d from pairs of consecutive states.

    A subclass turns the flat representations of the valid states and of their successors, both
    ``[B, d]``, into three vectors of length B (:meth:`_terms`): the loss, its smoothness part and
    its orthogonality part, such that the mean over the samples is the objective.
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change.

        Attributes:
            successor (NestedKey): where the successor s' of every state is found; the encoder's
                ``in_keys`` are read under it. Defaults to ``"next"``.
            representation (NestedKey, optional): where f(s) is written, and, under ``successor``,
                f(s'). Defaults to ``None``: the encoder's ``out_key``.
        """

        successor: NestedKey = "next"
        representation: NestedKey | None = None

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    out_keys = ["loss_laplacian", "smoothness", "orthogonality"]

    encoder_network: TensorDictModule
    encoder_network_params: TensorDictParams
    target_encoder_network_params: TensorDictParams
    # The barrier that follows the data; None where the user chose a number, or where there is no barrier.
    automatic_barrier: AutomaticBarrier | None

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        *,
        estimator: Estimator,
        successor: NestedKey,
        reduction: Reduction,
    ) -> None:
        super().__init__()
        if not isinstance(encoder, TensorDictModuleBase):
            raise TypeError(
                f"encoder must be a TensorDictModule, got {type(encoder).__name__}: wrap it as "
                "TensorDictModule(module, in_keys=['observation'], out_keys=['representation'])."
            )
        if len(encoder.out_keys) != 1:
            raise ValueError(
                f"encoder must have exactly one out_key, got {list(encoder.out_keys)}: "
                "keep one with encoder.select_out_keys(...)."
            )
        check_choice("estimator", estimator, get_args(Estimator))
        check_choice("reduction", reduction, get_args(Reduction))
        self.estimator = estimator
        self.reduction = reduction
        self.automatic_barrier = None
        self.convert_to_functional(encoder, "encoder_network", create_target_params=False)
        self.set_keys(successor=successor)

    def _forward_value_estimator_keys(self, **kwargs: NestedKey) -> None:
        """There is no value estimator to tell; ``in_keys`` follows ``tensor_keys`` by itself."""

    @property
    def in_keys(self) -> list[NestedKey]:
        """The encoder's keys, then the same keys under ``successor``."""
        keys = list(self.encoder_network.in_keys)
        return keys + [unravel_key((self.tensor_keys.successor, key)) for key in keys]

    @abstractmethod
    def _terms(self, f: Tensor, f_successor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, smoothness and orthogonality of every sample, from ``[B, d]`` representations."""

    # Without the automatic batch size, which would take the observation's own dimensions for batch
    # dimensions.
    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the loss, and write f(s) and f(s') into ``tensordict``, detached.

        Args:
            tensordict (TensorDictBase): a batch of transitions, of any batch shape, drawn
            uniformly.

        Returns:
            TensorDict: ``loss_laplacian`` (a scalar, or of the batch's shape with
            ``reduction="none"``), and the detached scalars ``smoothness`` and ``orthogonality``
            (always means over the batch). With ``barrier="auto"`` also ``barrier``, as used for this
            batch, and ``collapsed``, the number of dimensions that have collapsed (not among ``out_keys``).
        """
        f, f_successor = self._encode(tensordict)
        batch_shape, dimensions = f.shape[:-1], f.shape[-1]
        rows, successor_rows = f.reshape(-1, dimensions), f_successor.reshape(-1, dimensions)
        valid = self._valid_rows(tensordict, batch_shape)
        if valid is not None:
            rows, successor_rows = rows[valid], successor_rows[valid]
        size = rows.shape[0]
        if self.estimator == "pairs" and size < 2:
            raise ValueError(f"estimator='pairs' needs a batch of at least 2 states, got {size}.")
        if self.estimator == "split" and (size < 2 or size % 2):
            raise ValueError(
                f"estimator='split' needs an even batch of at least 2 states, got {size}."
            )
        automatic = self.automatic_barrier
        if automatic is not None and torch.is_grad_enabled():
            automatic.update(rows, successor_rows)
        loss, smoothness, orthogonality = self._terms(rows, successor_rows)
        if self.reduction == "mean":
            loss = loss.mean()
        elif self.reduction == "sum":
            loss = loss.sum()
        elif valid is not None:
            loss = loss.new_zeros(valid.shape).masked_scatter(valid, loss).reshape(batch_shape)
        else:
            loss = loss.reshape(batch_shape)
        out = TensorDict(
            {
                "loss_laplacian": loss,
                "smoothness": smoothness.detach().mean(),
                "orthogonality": orthogonality.detach().mean(),
            }
        )
        if automatic is not None:
            out.set("barrier", automatic.value.clone())
            out.set("collapsed", automatic.collapsed.sum().to(torch.float32))
        self._clear_weakrefs(tensordict, out, "encoder_network_params")
        return out

    def _encode(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """f(s) and f(s'), each ``[*batch, d]``; both are written back, detached."""
        encoder, successor = self.encoder_network, self.tensor_keys.successor
        states, successors = {}, {}
        for key in encoder.in_keys:
            states[key] = self._read(tensordict, key)
            successors[key] = self._read(tensordict, unravel_key((successor, key)))
        out_key = encoder.out_keys[0]
        with swapped(encoder, self.encoder_network_params):
            if tensordict.batch_dims:
                # One pass over 2B states is faster than two over B: small networks are bound by
                # overhead.
                both = {key: torch.cat([states[key], successors[key]]) for key in states}
                size = 2 * tensordict.shape[0]
                f, f_successor = output_of(
                    encoder, TensorDict(both, batch_size=[size]), out_key
                ).chunk(2)
            else:
                f = output_of(encoder, TensorDict(states), out_key)
                f_successor = output_of(encoder, TensorDict(successors), out_key)
        key = self.tensor_keys.representation
        key = out_key if key is None else key
        tensordict.set(key, f.detach())
        tensordict.set(unravel_key((successor, key)), f_successor.detach())
        return f, f_successor

    def _read(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            raise KeyError(
                f"{type(self).__name__} reads {key!r}, which the batch does not hold: the state's entry is one of the "
                f"encoder's in_keys and the successor's is the same key under {self.tensor_keys.successor!r} "
                "(change it with successor=...)."
            )
        return value

    def _valid_rows(self, tensordict: TensorDictBase, batch_shape: torch.Size) -> Tensor | None:
        """The flat mask that TorchRL's ``loss_mask_key`` names, if the batch holds one.

        Masked states are left out before anything is computed: a pair of states is valid only if
        both are.
        """
        valid = None
        for key in self._loss_mask_keys():
            mask = tensordict.get(key, None)
            if mask is not None:
                mask = self._expand_loss_mask(mask, mask.new_empty(batch_shape)).reshape(-1)
                valid = mask if valid is None else valid & mask
        return valid
