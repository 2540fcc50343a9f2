"""All forward and backward passes of an update through its convolutional networks, without autograd.

An update with options runs five networks on three sets of images, some of them twice. Here the images are centred and
their windows gathered once for all networks, and every network runs once on all of its images. The losses give the
gradients of its outputs in closed form, from which those of its parameters are computed without a graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations
from typing import Any, NamedTuple, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from torch import Tensor, nn
from torchrl.objectives.common import LossModule

from torchrl_dceo._fast import is_fast
from torchrl_dceo._fast.convolution import (
    Geometry,
    backward_layers,
    first_columns,
    forward_layers,
    geometry_of,
    kernel_matrices,
)

__all__ = [
    "DirectLoss",
    "Form",
    "Inputs",
    "Pass",
    "Passes",
    "checked_inputs",
    "form_of",
    "inherits",
    "inner_form",
    "is_masked",
    "is_possible",
]

Entries: TypeAlias = dict[str, Any]


class Form(NamedTuple):
    """A convolutional network as tensors: the computation of a module with some parameters.

    Attributes:
        parameters (tuple of Tensor): weight and bias of each convolution, then of each linear layer; for a stack
            with the networks as first dimension.
        strides (tuple of int): of the convolutions.
        image (torch.Size): ``(channels, height, width)`` of one image, padded.
        padding (tuple of int): the padding of that image, as for :func:`torch.nn.functional.pad`.
        centre (Tensor, optional): the tensor subtracted from an image.
        scale (Tensor or float, optional): the factor of the centred image; ``None``: 1/255 for bytes.
        stack (int): number of networks; 0 if it is not a stack.
        bf16 (bool): whether all layers but the last multiply in bf16.
    """

    parameters: tuple[Tensor, ...]
    strides: tuple[int, ...]
    image: torch.Size
    padding: tuple[int, ...]
    centre: Tensor | None = None
    scale: Tensor | float | None = None
    stack: int = 0
    bf16: bool = False


class Pass(NamedTuple):
    """A network and its images in one loss.

    Attributes:
        form (Form): the network.
        images (tuple of Tensor): batches of images ``[B, C, H, W]``.
        learned (int): number of batches with gradients, the first ones.
        options (tuple of int): the options computed, in this order; empty: all.
        rows (int): rows of the last layer per option; 0 where options have a network each.
    """

    form: Form
    images: tuple[Tensor, ...]
    learned: int = 0
    options: tuple[int, ...] = ()
    rows: int = 0


Inputs: TypeAlias = tuple[tuple[Form, ...], tuple[Tensor, ...]]


class DirectLoss:
    """Mixin for a loss whose gradients with respect to the outputs of its networks are known in closed form."""

    def direct_inputs(self, tensordict: TensorDictBase) -> Inputs | None:
        """Its networks and their images; ``None`` if this batch needs ``forward``."""
        raise NotImplementedError

    def direct_passes(self, inputs: Inputs) -> list[Pass]:
        """The passes: which networks run on which images."""
        raise NotImplementedError

    def direct_gradients(
        self, outputs: list[list[Tensor]], tensordict: TensorDictBase, factor: Tensor | None
    ) -> tuple[list[list[Tensor]], dict[str, Tensor]]:
        """The gradients of the loss, and what ``forward`` returns.

        Args:
            outputs (list): for each pass and each of its images: ``[B, out]``, or ``[B, k, out]`` for a stack.
            tensordict (TensorDictBase): the batch.
            factor (Tensor, optional): a factor of the loss.

        Returns:
            tuple: the gradients of each pass's learned outputs, and the entries of the loss's output.
        """
        raise NotImplementedError


def _is_unhooked(module: nn.Module) -> bool:
    """Whether the module has no hooks."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def form_of(module: nn.Module, parameters: TensorDictParams | TensorDictBase | None) -> Form | None:
    """The form of a module that has a method ``fused_form``, with the given parameters.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo._fast.passes import form_of
        >>> form_of(torch.nn.Linear(1, 1), TensorDict()) is None
        True
    """
    inner: Any = parameters._param_td if isinstance(parameters, TensorDictParams) else parameters
    if type(inner) is not TensorDict or not _is_unhooked(module):
        return None
    make = getattr(module, "fused_form", None)
    return None if make is None else make(inner._tensordict)


def inner_form(module: nn.Module, name: str, entries: Entries) -> Form | None:
    """The form of a child module, whose parameters are stored under its name."""
    child, inner = module._modules.get(name), entries.get(name)
    if child is None or type(inner) is not TensorDict:
        return None
    return form_of(child, inner)


class _Network:
    """One network in an update: all of its images, and those with gradients."""

    __slots__ = (
        "form",
        "geometry",
        "gradients",
        "learned",
        "output",
        "parameters",
        "places",
        "saved",
        "scale",
        "shown",
    )

    def __init__(self, form: Form, parameters: Sequence[Tensor]) -> None:
        self.form = form
        self.parameters = parameters
        count = 2 * len(form.strides)
        kernels = tuple(weight.shape for weight in parameters[:count:2])
        self.geometry: Geometry = geometry_of(form.image, kernels, form.strides)
        self.shown: dict[int, int] = {}  # indices of its images
        self.learned: set[int] = set()
        self.places: dict[int, tuple[int, int]] = {}  # their rows in the output
        self.gradients: dict[int, Tensor] = {}
        self.saved: list[Tensor] = []
        self.output: Tensor
        self.scale: Tensor | float


class Passes:
    """All passes of an update.

    Args:
        passes (sequence of Pass): those of all losses; repeated networks and images run once.

    Attributes:
        outputs (list): for each pass, the output for each of its images.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from torchrl_dceo._fast.passes import Form, Pass, Passes
        >>> layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
        >>> form = Form(tuple(layers.parameters()), (1,), torch.Size((1, 3, 3)), (), scale=1.0)
        >>> images = torch.randn(5, 1, 3, 3)
        >>> passes = Passes([Pass(form, (images,), learned=1)])
        >>> passes.outputs[0][0].shape
        torch.Size([5, 2])
        >>> _ = passes.backward([[torch.ones(5, 2)]])
        >>> layers[3].bias.grad
        tensor([5., 5.])
    """

    def __init__(self, passes: Sequence[Pass]) -> None:
        self._passes = passes
        self._networks: dict[tuple[int, int], _Network] = {}
        self._of: list[list[_Network]] = []
        images: dict[int, int] = {}
        held: list[Tensor] = []
        self._shown: list[list[int]] = []
        for each in passes:
            networks = self._networks_of(each)
            indices = []
            for place, image in enumerate(each.images):
                index = images.get(id(image))
                if index is None:
                    index = images[id(image)] = len(held)
                    held.append(image)
                indices.append(index)
                for network in networks:
                    network.shown[index] = index
                    if place < each.learned:
                        network.learned.add(index)
            self._of.append(networks)
            self._shown.append(indices)
        with torch.no_grad():
            self._run(held)
            self.outputs = [
                [self._output(each, networks, index) for index in indices]
                for each, networks, indices in zip(passes, self._of, self._shown, strict=True)
            ]

    def _networks_of(self, each: Pass) -> list[_Network]:
        form, networks = each.form, []
        if not form.stack:
            parameters: Sequence[Tensor] = form.parameters
            if each.options:
                parameters = (*parameters[:-2], *_head_rows(parameters[-2:], each))
            key = (id(form.parameters[0]), -1)
            if key not in self._networks:
                self._networks[key] = _Network(form, parameters)
            return [self._networks[key]]
        chosen = each.options or tuple(range(form.stack))
        slices = None
        for option in chosen:
            key = (id(form.parameters[0]), option)
            if key not in self._networks:
                if slices is None:
                    slices = [tensor.detach().unbind(0) for tensor in form.parameters]
                self._networks[key] = _Network(form, [part[option] for part in slices])
            networks.append(self._networks[key])
        return networks

    def _run(self, images: list[Tensor]) -> None:
        networks = list(self._networks.values())
        signature = tuple(
            (tuple(sorted(network.shown)), tuple(sorted(network.learned))) for network in networks
        )
        order = _order(len(images), signature)
        starts, start = {}, 0
        for index in order:
            starts[index] = start
            start += images[index].shape[0]
        joined = torch.cat([images[index] for index in order]) if len(order) > 1 else images[0]
        gathered: list[tuple[Form, Geometry, Tensor]] = []
        for network in networks:
            columns = _gathered(network, joined, gathered)
            windows = columns.shape[0] // joined.shape[0]
            shown = sorted(network.shown, key=lambda index: starts[index])
            sizes = {index: images[index].shape[0] for index in shown}
            begin, total = starts[shown[0]], sum(sizes.values())
            adjacent = starts[shown[-1]] + sizes[shown[-1]] - begin == total
            if not (adjacent and _together(shown, network.learned)):
                shown.sort(key=lambda index: index not in network.learned)
                parts = [
                    columns[starts[i] * windows : (starts[i] + sizes[i]) * windows] for i in shown
                ]
                columns = torch.cat(parts)
            elif total < joined.shape[0]:
                columns = columns[begin * windows : (begin + total) * windows]
            place = 0
            for index in shown:
                network.places[index] = (place, place + sizes[index])
                place += sizes[index]
            network.scale = _scale(network.form, joined)
            network.output = forward_layers(
                columns,
                total,
                network.geometry,
                kernel_matrices(
                    network.scale, network.geometry, network.parameters, bf16=network.form.bf16
                ),
                network.parameters,
                network.saved if network.learned else None,
            )

    @staticmethod
    def _output(each: Pass, networks: list[_Network], index: int) -> Tensor:
        parts = []
        for network in networks:
            begin, end = network.places[index]
            parts.append(network.output[begin:end])
        return torch.stack(parts, 1) if each.form.stack else parts[0]

    @torch.no_grad()
    def backward(self, gradients: Sequence[Sequence[Tensor]]) -> dict[int, list[Tensor]]:
        """Writes the gradients of all trained parameters into their ``grad``.

        Args:
            gradients (sequence): for each pass, those of its learned outputs.

        Returns:
            dict: for stacks of which only some networks are trained, their gradients instead, by the ``id`` of the
            parameter and in the order of the pass's options.
        """
        for each, given, networks, indices in zip(
            self._passes, gradients, self._of, self._shown, strict=True
        ):
            for gradient, index in zip(given, indices, strict=False):
                parts = gradient.unbind(1) if each.form.stack else (gradient,)
                for network, part in zip(networks, parts, strict=True):
                    before = network.gradients.get(index)
                    network.gradients[index] = part if before is None else before + part
        rows: dict[int, list[Tensor]] = {}
        finished: set[int] = set()
        for each, networks in zip(self._passes, self._of, strict=True):
            if not each.learned or id(each.form.parameters[0]) in finished:
                continue
            finished.add(id(each.form.parameters[0]))
            rows.update(_leave(each, [_backward(network) for network in networks]))
        return rows


def _backward(network: _Network) -> list[Tensor]:
    """The gradients of a network's parameters."""
    indices = sorted(network.gradients, key=lambda index: network.places[index])
    begin, end = network.places[indices[0]][0], network.places[indices[-1]][1]
    parts = [network.gradients[index] for index in indices]
    gradient = torch.cat(parts) if len(parts) > 1 else parts[0]
    saved, total = network.saved, network.output.shape[0]
    if end - begin < total:
        # Convolutions save windows, matrix and output, linear layers input and weight.
        convolved = 3 * len(network.geometry.windows)
        of_weights = [
            i % 3 == 1 if i < convolved else (i - convolved) % 2 == 1 for i in range(len(saved))
        ]
        saved = [
            tensor if weight else _rows_of(tensor, begin, end, total)
            for tensor, weight in zip(saved, of_weights, strict=True)
        ]
    return backward_layers(gradient, network.scale, network.geometry, saved)


def _rows_of(tensor: Tensor, begin: int, end: int, total: int) -> Tensor:
    each = tensor.shape[0] // total
    return tensor[begin * each : end * each]


def _leave(each: Pass, gradients: list[list[Tensor]]) -> dict[int, list[Tensor]]:
    """Writes gradients into ``grad``; returns them where only some networks of a stack are trained."""
    form, options = each.form, each.options
    if form.stack:
        columns = [list(column) for column in zip(*gradients, strict=True)]
        if options:
            return {id(p): column for p, column in zip(form.parameters, columns, strict=True)}
        for parameter, column in zip(form.parameters, columns, strict=True):
            parameter.grad = torch.stack(column)
        return {}
    for i, (parameter, gradient) in enumerate(zip(form.parameters, gradients[0], strict=True)):
        if options and i >= len(form.parameters) - 2:
            shape, index = (-1, each.rows, *parameter.shape[1:]), torch.tensor(options)
            whole = torch.zeros_like(parameter)
            whole.view(shape).index_copy_(0, index, gradient.view(shape))
            gradient = whole
        parameter.grad = gradient
    return {}


def _head_rows(head: Sequence[Tensor], each: Pass) -> list[Tensor]:
    index = torch.tensor(each.options)
    return [
        tensor.detach().view(-1, each.rows, *tensor.shape[1:]).index_select(0, index).flatten(0, 1)
        for tensor in head
    ]


def _gathered(
    network: _Network, images: Tensor, known: list[tuple[Form, Geometry, Tensor]]
) -> Tensor:
    """The first windows of all images, minus the network's mean image; shared with other networks where equal."""
    form, geometry = network.form, network.geometry
    first = geometry.windows[0].first
    for other, its_geometry, columns in known:
        if (
            its_geometry.windows[0].first is first
            and (other.padding, other.bf16) == (form.padding, form.bf16)
            and _equal(other.centre, form.centre)
        ):
            return columns
    centred = images.to(network.parameters[0].dtype)
    if form.centre is not None:
        centred = centred.sub_(form.centre) if centred is not images else centred - form.centre
    if any(form.padding):
        centred = nn.functional.pad(centred, form.padding)
    columns = first_columns(centred, geometry, bf16=form.bf16)
    known.append((form, geometry, columns))
    return columns


def _scale(form: Form, images: Tensor) -> Tensor | float:
    if form.scale is not None:
        return form.scale
    return 1.0 if images.is_floating_point() else 1 / 255


_compared: dict[tuple[int, int], tuple[Tensor, Tensor, tuple[int, int], bool]] = {}
_MOST_COMPARED = 32


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one is other:
        return True
    # Compared again only after either tensor was written to, not at every update.
    key, versions = (id(one), id(other)), (one._version, other._version)
    known = _compared.get(key)
    if known is None or known[0] is not one or known[1] is not other or known[2] != versions:
        if len(_compared) >= _MOST_COMPARED:
            _compared.clear()
        known = _compared[key] = (one, other, versions, torch.equal(one, other))
    return known[3]


def _together(order: Sequence[int], members: set[int]) -> bool:
    """Whether the members are adjacent in an order."""
    places = [place for place, index in enumerate(order) if index in members]
    return not places or places[-1] - places[0] + 1 == len(places)


@lru_cache(maxsize=64)
def _order(
    count: int, signature: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
) -> tuple[int, ...]:
    """The order of images in which most networks have their images, and those with gradients, adjacent."""
    if count > 6:
        return tuple(range(count))

    def fits(order: tuple[int, ...]) -> int:
        return sum(
            _together(order, set(shown)) and _together(order, set(learned))
            for shown, learned in signature
        )

    return max(permutations(range(count)), key=fits)


def checked_inputs(forms: Sequence[Form | None], images: Sequence[Tensor]) -> Inputs | None:
    """Networks and images, if these networks can run on these images."""
    first, found = images[0], []
    if first.ndim != 4 or first.requires_grad or not len(first):
        return None
    for image in images:
        if image.shape != first.shape or image.dtype != first.dtype:
            return None
    channels, height, width = first.shape[1:]
    for form in forms:
        if form is None:
            return None
        left, right, top, bottom = form.padding or (0, 0, 0, 0)
        weight = form.parameters[0]
        if (
            form.image != (channels, height + top + bottom, width + left + right)
            or weight.dtype != torch.float32
            or not (first.device.type == weight.device.type == "cpu")
            or (first.is_floating_point() and first.dtype != weight.dtype)
        ):
            return None
        found.append(form)
    return tuple(found), tuple(images)


_inherits: dict[tuple[Any, ...], bool] = {}


def inherits(kind: type, base: type, *methods: str) -> bool:
    """Whether a class has the methods of a base class, even if TorchRL has wrapped them in either class."""
    key = (kind, base, methods)
    known = _inherits.get(key)
    if known is None:
        known = _inherits[key] = all(
            inspect.unwrap(getattr(kind, name)) is inspect.unwrap(getattr(base, name))
            for name in methods
        )
    return known


def is_masked(loss: LossModule, tensordict: TensorDictBase) -> bool:
    """Whether the batch contains a mask of valid steps that the loss would use."""
    held = tensordict.keys()
    return any(
        (key if isinstance(key, str) else key[0]) in held and tensordict.get(key, None) is not None
        for key in loss._loss_mask_keys()
    )


def is_possible() -> bool:
    """Whether updates may skip autograd now: no tracing, function transform or autocast is active."""
    return (
        is_fast()
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not torch.is_autocast_enabled("cpu")
    )
