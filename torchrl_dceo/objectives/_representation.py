"""Base class of the losses for the Laplacian representation, and the automatic barrier."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, TensorDictParams, unravel_key
from tensordict.nn import TensorDictModule, TensorDictModuleBase, dispatch
from torch import Tensor, nn
from torchrl.objectives import LossModule

from torchrl_dceo._fast.parameters import is_plain, nested, output_of, swapped
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
    "AutomaticBarrier",
    "Barrier",
    "Estimator",
    "Reduction",
    "RepresentationLoss",
]

_LOGGER = logging.getLogger("torchrl_dceo")


_LARGEST_EIGENVALUE = 2.0  # an upper bound for the Laplacian of any stationary random walk


_FLOOR = 5e-3  # lowest eigenvalue used: the barrier stays positive if the graph is disconnected and λ_d = 0


_RIDGE = 1e-7  # relative to the mean second moment, so that the Cholesky factorisation exists


_CHECK_PERIOD = 500  # forward passes between two checks for collapsed dimensions


class AutomaticBarrier(nn.Module):
    r"""Keeps a barrier safely above :math:`\lambda_d / 2` in any environment.

    With a barrier :math:`\beta` the optimum of the penalty objectives is shrunk to
    :math:`\mathbb E f_i^2 = 1 - \lambda_i / (2\beta)`: below :math:`\lambda_d / 2` dimensions collapse; far above it
    the noise of the orthogonality term hides the differences between eigenvalues. The spectrum is unknown before
    training, so the module keeps running averages of :math:`A = \tfrac12 E (f(s) - f(s'))(f(s) - f(s'))^\top` and
    :math:`M = E f f^\top`. The barrier is ``factor`` times the largest :math:`\lambda` of
    :math:`A r = \lambda M r`, the Rayleigh quotient of the least smooth direction in the span of f. It
    starts high, because an untrained network is not smooth, and decreases during training.

    A dimension that is (almost) linearly dependent on the previous ones, by the Cholesky factor of M, has collapsed
    or is not learned yet. Meanwhile the barrier is that of the largest possible eigenvalue, 2, at which no dimension
    stays collapsed. :attr:`collapsed` marks these dimensions, and a warning is logged if they persist.

    Args:
        factor (float): the barrier in units of the estimated :math:`\lambda_d`. At 1, twice the minimum, the last
            dimension converges to :math:`E f_d^2 = 1/2`.

    Keyword Args:
        least (float): lower bound of the barrier. While the data distribution changes, as during exploration, f
            adapts faster with a higher barrier. Default: ``0.0``.
        rate (float): update rate of the running averages, per batch. Default: ``0.02``.
        threshold (float): a dimension has collapsed if its own second moment is below this fraction of the mean.
            Default: ``0.05``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.objectives._representation import AutomaticBarrier
        >>> barrier = AutomaticBarrier(1.0)
        >>> f = torch.tensor([[1.0, 1.0], [1.0, -1.0]])  # eigenfunctions of a walk that ...
        >>> barrier.update(f, f.flip(0))  # ... alternates between two states: λ is 0 and 2
        >>> round(float(barrier.value), 3), barrier.collapsed.tolist()
        (2.0, [False, False])
    """

    smoothness: Tensor
    moments: Tensor
    weight: Tensor
    value: Tensor
    collapsed: Tensor

    def __init__(
        self, factor: float, *, least: float = 0.0, rate: float = 0.02, threshold: float = 0.05
    ) -> None:
        super().__init__()
        self.factor = factor
        self.least = least
        self.rate = rate
        self.threshold = threshold
        # [d, d]; d is known at the first batch or when a state_dict is loaded.
        self.register_buffer("smoothness", torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("moments", torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))
        self.register_buffer("value", torch.tensor(factor * _LARGEST_EIGENVALUE))
        self.register_buffer("collapsed", torch.zeros(0, dtype=torch.bool))
        self._passes = 0
        self._reported: list[int] = []

    @torch.no_grad()
    def update(self, f: Tensor, f_successor: Tensor) -> None:
        """Adds a batch of pairs, ``[B, d]`` each, to the averages and updates the barrier."""
        size, dimensions = f.shape
        if self.moments.shape[0] != dimensions or self.moments.device != f.device:
            self._set_dimensions(dimensions, f.device)
        # Double precision: an almost collapsed direction is a small difference of large moments.
        rows = f.detach().to(self.moments.dtype)
        change = rows - f_successor.detach().to(self.moments.dtype)
        self.smoothness.lerp_(change.mT @ change / (2 * size), self.rate)
        self.moments.lerp_(rows.mT @ rows / size, self.rate)
        self.weight.lerp_(torch.ones_like(self.weight), self.rate)
        moments = self.moments / self.weight
        scale = moments.diagonal().mean()
        identity = torch.eye(dimensions, dtype=moments.dtype, device=moments.device)
        root, _ = torch.linalg.cholesky_ex(moments + (_RIDGE * scale + 1e-30) * identity)
        # The squared diagonal is the part of a dimension that is orthogonal to the previous ones.
        self.collapsed = ~(root.diagonal().square() > self.threshold * scale + 1e-20)
        half = torch.linalg.solve_triangular(root, self.smoothness / self.weight, upper=False)
        quotients = torch.linalg.solve_triangular(root, half.mT, upper=False)
        # eigvalsh needs finite entries, also if all representations are 0 or not finite.
        whole = torch.nan_to_num((quotients + quotients.mT) / 2, posinf=_LARGEST_EIGENVALUE)
        largest = torch.linalg.eigvalsh(whole)[-1]
        largest = torch.where(self.collapsed.any(), _LARGEST_EIGENVALUE, largest)
        value = self.factor * largest.clamp(_FLOOR, _LARGEST_EIGENVALUE)
        self.value.copy_(value.clamp(min=self.least))
        if not torch.compiler.is_compiling():
            self._passes += 1
            if self._passes % _CHECK_PERIOD == 0:
                self._report()

    def _report(self) -> None:
        """Logs which dimensions have collapsed, once, and when all have recovered."""
        if self.collapsed.is_meta:
            return
        now = (self.collapsed.nonzero().flatten() + 1).tolist()
        if now and now != self._reported:
            _LOGGER.warning(
                "dimensions %s of the Laplacian representation have collapsed after %d updates; the barrier is "
                "raised to %.3g until they recover",
                now,
                self._passes,
                float(self.value),
            )
        elif self._reported and not now:
            _LOGGER.info("all dimensions of the Laplacian representation have recovered")
        self._reported = now

    def _set_dimensions(self, dimensions: int, device: torch.device) -> None:
        self.smoothness = torch.zeros(dimensions, dimensions, dtype=torch.float64, device=device)
        self.moments = torch.zeros_like(self.smoothness)
        self.weight = torch.zeros((), dtype=torch.float64, device=device)
        self.value = self.value.to(device)
        self.collapsed = torch.zeros(dimensions, dtype=torch.bool, device=device)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: object) -> None:
        # A new module takes the saved size, so that no forward pass is needed before loading.
        saved = state_dict.get(f"{prefix}moments")
        if saved is not None and saved.shape != self.moments.shape:
            self._set_dimensions(saved.shape[0], self.moments.device)
        super()._load_from_state_dict(state_dict, prefix, *args)


Barrier = float | Literal["auto"]


Estimator = Literal["pairs", "split"]


Reduction = Literal["mean", "sum", "none"]


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises an error for a mode that is not one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_positive(name: str, value: float) -> None:
    """Raises an error for a number that is not positive and finite."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value}.")


def check_barrier(value: Barrier) -> None:
    """Raises an error for a barrier that is neither a positive number nor ``"auto"``."""
    if isinstance(value, str) and value != "auto":
        raise ValueError(f"barrier must be 'auto' or a positive number, got {value!r}.")
    if not isinstance(value, str):
        check_positive("barrier", value)


class RepresentationLoss(DirectLoss, LossModule):
    """Base of the losses that learn f: S -> R^d from pairs of consecutive states.

    A subclass turns the flat representations of the valid states and of their successors, both
    ``[B, d]``, into three vectors of length B (:meth:`_terms`): the loss, its smoothness part and
    its orthogonality part, such that the mean over the samples is the objective.
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change.

        Attributes:
            successor (NestedKey): prefix of the entries of the successor state s'; the encoder's
                ``in_keys`` are read under it. Defaults to ``"next"``.
            representation (NestedKey, optional): key of f(s) and, under ``successor``, of f(s').
                Defaults to ``None``: the encoder's ``out_key``.
        """

        successor: NestedKey = "next"
        representation: NestedKey | None = None

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    out_keys = ["loss_laplacian", "smoothness", "orthogonality"]

    encoder_network: TensorDictModule
    encoder_network_params: TensorDictParams
    target_encoder_network_params: TensorDictParams
    # None if the barrier is a number, or if the loss has no barrier.
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
        """There is no value estimator; ``in_keys`` follows ``tensor_keys`` by itself."""

    @property
    def in_keys(self) -> list[NestedKey]:
        """The encoder's keys, then the same keys under ``successor``."""
        keys = list(self.encoder_network.in_keys)
        return keys + [unravel_key((self.tensor_keys.successor, key)) for key in keys]

    @abstractmethod
    def _terms(self, f: Tensor, f_successor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, smoothness and orthogonality of every sample, from ``[B, d]`` representations."""

    # The automatic batch size would treat the observation's own dimensions as batch dimensions.
    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Computes the loss, and writes f(s) and f(s') into ``tensordict``, detached.

        Args:
            tensordict (TensorDictBase): a batch of transitions of any batch shape, sampled
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

    def direct_inputs(self, tensordict: TensorDictBase) -> Inputs | None:
        """The encoder's network, if it is convolutional and the batch is plain."""
        encoder, size = self.encoder_network, tensordict.shape
        if not (
            inherits(type(self), RepresentationLoss, "forward", "_encode")
            and is_plain(encoder)
            and len(encoder.in_keys) == 1
            and self.reduction == "mean"
            and len(size) == 1
            and size[0] > 1
            and (self.estimator == "pairs" or size[0] % 2 == 0)
            and not is_masked(self, tensordict)
        ):
            return None
        form = form_of(encoder.module, nested(self.encoder_network_params, "module"))
        key = encoder.in_keys[0]
        successor = unravel_key((self.tensor_keys.successor, key))
        images = (self._read(tensordict, key), self._read(tensordict, successor))
        return checked_inputs([form], images)

    def direct_passes(self, inputs: Inputs) -> list[Pass]:
        """One pass of the encoder over both states."""
        (form,), images = inputs
        return [Pass(form, images, learned=2)]

    def direct_gradients(
        self, outputs: list[list[Tensor]], tensordict: TensorDictBase, factor: Tensor | None
    ) -> tuple[list[list[Tensor]], dict[str, Tensor]]:
        """Same results as ``forward``, and the gradients with respect to both representations."""
        f, f_successor = outputs[0]
        self._write(tensordict, f, f_successor)
        automatic = self.automatic_barrier
        if automatic is not None:
            automatic.update(f, f_successor)
        gradients, terms = self._gradients(f, f_successor)
        if factor is not None:
            gradients = [gradient * factor for gradient in gradients]
        named = dict(zip(("loss_laplacian", "smoothness", "orthogonality"), terms, strict=True))
        if automatic is not None:
            named["barrier"] = automatic.value.clone()
            named["collapsed"] = automatic.collapsed.sum().to(torch.float32)
        return [gradients], named

    def _gradients(
        self, f: Tensor, f_successor: Tensor
    ) -> tuple[list[Tensor], tuple[Tensor, Tensor, Tensor]]:
        """The gradients of the mean loss with respect to f(s) and f(s'), and the means of the terms."""
        pair = [f.detach().requires_grad_(), f_successor.detach().requires_grad_()]
        with torch.enable_grad():
            loss, smoothness, orthogonality = self._terms(*pair)
            mean = loss.mean()
            gradients = torch.autograd.grad(mean, pair)
        return list(gradients), (
            mean.detach(),
            smoothness.detach().mean(),
            orthogonality.detach().mean(),
        )

    def _write(self, tensordict: TensorDictBase, f: Tensor, f_successor: Tensor) -> None:
        key = self.tensor_keys.representation
        key = self.encoder_network.out_keys[0] if key is None else key
        tensordict.set(key, f)
        tensordict.set(unravel_key((self.tensor_keys.successor, key)), f_successor)

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
        self._write(tensordict, f.detach(), f_successor.detach())
        return f, f_successor

    def _read(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            raise KeyError(
                f"{type(self).__name__} reads {key!r}, which the batch does not contain: it needs the encoder's "
                f"in_keys at the root and under {self.tensor_keys.successor!r} (change the latter with "
                "successor=...)."
            )
        return value

    def _valid_rows(self, tensordict: TensorDictBase, batch_shape: torch.Size) -> Tensor | None:
        """The flat mask at TorchRL's ``loss_mask_key``, if the batch has one.

        Masked states are removed before the computation: a pair of states is valid only if both are.
        """
        valid = None
        for key in self._loss_mask_keys():
            mask = tensordict.get(key, None)
            if mask is not None:
                mask = self._expand_loss_mask(mask, mask.new_empty(batch_shape)).reshape(-1)
                valid = mask if valid is None else valid & mask
        return valid
