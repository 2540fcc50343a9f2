"""The networks of the paper, and two kinds of Q-network for a set of options.

Every network accepts any number of leading batch dimensions. Images may stay ``uint8``: networks scale them to [0, 1],
so that replay buffer, collector and workers need one byte per pixel.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchrl_dceo._fast import is_fast
from torchrl_dceo._fast.convolution import (
    PreparedNetwork,
    bf16_is_native,
    fused_conv_net,
    prepared_conv_net,
    prepared_network,
)
from torchrl_dceo._fast.passes import Form, inner_form

__all__ = [
    "ConvNet",
    "MultiHeadNet",
    "OptionNet",
    "StackedNet",
    "grid_net",
    "mlp_net",
    "nature_net",
    "small_nature_net",
]

# The largest image, in entries, for the fused node: on 3x30x40 torch's convolutions take 0.75 to 0.9 of its time.
# Chosen by size, not by timing, so that two runs with one seed always use the same one.
_FUSED_IMAGE = 2**11
# The same for an update without autograd, which gathers the windows of an image once for all networks: on 3x30x40
# images it takes 0.9 of the time of torch's convolutions, in bf16 0.7.
_PASSED_IMAGE = 2**13
# Without a gradient, torch's convolutions are faster above about 240 images of 3x19x19.
_LARGE = 2**18
# With one, they are fastest with channels last on images of more entries than this. The weights keep their order: an
# optimizer's moments from a checkpoint would not have the new one in memory.
_LARGE_IMAGE = 2**13


class ConvNet(nn.Module, PreparedNetwork):
    """A convolutional network for images of any leading batch shape, ``uint8`` or float.

    TorchRL's ``ConvNet`` has no ``uint8`` scaling and infers its flattened width at the first call. Here the width is
    computed when the network is built, so that optimizers and functional losses can be built immediately.

    On a CPU, for images up to 2048 entries, all layers run as one autograd node,
    :func:`~torchrl_dceo._fast.convolution.fused_conv_net`: the same values and gradients up to rounding, in two thirds
    (forward) to three quarters (with backward) of the time for the grid network at batch 32. The layers themselves
    run on other devices, inside :mod:`torch.func` transforms (such as :class:`StackedNet`), :func:`torch.compile` and
    autocast, when the pixels need a gradient, and after a layer was replaced, hooked or parametrized. Set
    ``net.fused = False`` for second derivatives, and ``net.bf16 = True`` to multiply in bf16: all layers but the last
    in the fused node, as autocast does elsewhere. Weights, their gradients and the output keep their dtype.

    Images are padded with zeros on the right and at the bottom until the windows of every layer cover every pixel. The
    grid network needs no padding for 3x19x19; without padding it would ignore two of the 13 rows and columns of a
    small map.

    Args:
        in_shape (sequence of int): ``(channels, height, width)`` of one observation.
        out_features (int): width of the output.
        channels (sequence of int): output channels of each convolution.
        kernel_sizes (sequence of int): kernel size of each convolution.
        strides (sequence of int): stride of each convolution.
        num_cells (int): width of the fully connected layer.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules.networks import ConvNet
        >>> net = ConvNet((3, 19, 19), 4, channels=(32, 32), kernel_sizes=(3, 3), strides=(2, 2), num_cells=256)
        >>> net(torch.zeros(5, 2, 3, 19, 19, dtype=torch.uint8)).shape
        torch.Size([5, 2, 4])
    """

    def __init__(
        self,
        in_shape: Sequence[int],
        out_features: int,
        *,
        channels: Sequence[int],
        kernel_sizes: Sequence[int],
        strides: Sequence[int],
        num_cells: int,
    ) -> None:
        super().__init__()
        if len(in_shape) != 3:
            raise ValueError(f"in_shape must be (channels, height, width), got {tuple(in_shape)}")
        in_channels, *size = in_shape
        full = [_full_length(length, kernel_sizes, strides) for length in size]
        # Without padding, strides may leave out the last rows and columns.
        self._padding = (0, full[1] - size[1], 0, full[0] - size[0])
        self._is_padded = any(self._padding)
        size = full
        layers: list[nn.Module] = []
        for out_channels, kernel, stride in zip(channels, kernel_sizes, strides, strict=True):
            layers += [nn.Conv2d(in_channels, out_channels, kernel, stride), nn.ReLU()]
            size = [(length - kernel) // stride + 1 for length in size]
            in_channels = out_channels
        layers += [nn.Flatten(), nn.Linear(in_channels * size[0] * size[1], num_cells), nn.ReLU()]
        layers.append(nn.Linear(num_cells, out_features))
        self.layers = nn.Sequential(*layers)
        self._padded_shape = torch.Size((in_shape[0], *full))
        self.fused = True
        self.bf16 = False
        self._built = layers
        # nn.Module's own dictionaries of hooks: empty unless a layer is hooked.
        self._hooks = [
            hooks
            for layer in layers
            for hooks in (
                layer._forward_hooks,
                layer._forward_pre_hooks,
                layer._backward_hooks,
                layer._backward_pre_hooks,
            )
        ]
        self._types = [type(layer) for layer in layers]
        self._fits = 0 < self._padded_shape.numel() <= _FUSED_IMAGE
        self._fits_passes = 0 < self._padded_shape.numel() <= _PASSED_IMAGE
        self._weighted = [layer for layer in layers if isinstance(layer, nn.Conv2d | nn.Linear)]
        # Their names in the sequence.
        self._numbers = [str(layers.index(layer)) for layer in self._weighted]
        self._strides = tuple(strides)

    def forward(self, pixels: Tensor) -> Tensor:
        """Maps images ``[*, C, H, W]`` to features ``[*, out_features]``."""
        images = pixels if pixels.ndim == 4 else pixels.reshape(-1, *pixels.shape[-3:])
        if self._is_padded:
            images = nn.functional.pad(images, self._padding)
        dtype, is_float = self._weighted[0].weight.dtype, images.is_floating_point()
        if (
            self.fused
            and is_fast()
            and self._is_fusible(images)
            and (images.dtype == dtype or not is_float)
        ):
            scale = 1.0 if is_float else 1 / 255
            parameters = [p for layer in self._weighted for p in (layer.weight, layer.bias)]
            features = fused_conv_net(
                images, scale, self._strides, cast("list[Tensor]", parameters), bf16=self.bf16
            )
        else:
            features = self._run_layers(images, dtype, is_float)
        return (
            features if pixels.ndim == 4 else features.view(*pixels.shape[:-3], features.shape[-1])
        )

    def prepared(self, pixels: Tensor) -> Callable[[Tensor], Tensor] | None:
        """The fused node with its kernels reordered once, for images like these."""
        images = pixels if pixels.ndim == 4 else pixels.reshape(-1, *pixels.shape[-3:])
        dtype, is_float = self._weighted[0].weight.dtype, images.is_floating_point()
        if (
            self._is_padded
            or not self.fused
            or type(self).forward is not ConvNet.forward
            or not self._is_fusible(images)
            or (is_float and images.dtype != dtype)
        ):
            return None
        parameters = [p for layer in self._weighted for p in (layer.weight, layer.bias)]
        run = prepared_conv_net(
            images,
            1.0 if is_float else 1 / 255,
            self._strides,
            cast("list[Tensor]", parameters),
            bf16=self.bf16,
        )
        if pixels.ndim == 4:
            return run
        shape, batch = images.shape[1:], pixels.shape[:-3]
        return lambda pixels: run(pixels.reshape(-1, *shape)).view(*batch, -1)

    def _run_layers(self, images: Tensor, dtype: torch.dtype, is_float: bool) -> Tensor:
        order = torch.preserve_format
        if (
            self._padded_shape.numel() > _LARGE_IMAGE
            and torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and not torch._C._are_functorch_transforms_active()
        ):
            order = torch.channels_last
        if is_float:
            images = images.to(images.dtype, memory_format=order)
        else:
            images = images.to(dtype, memory_format=order).div_(255)
        if not self.bf16:
            return self.layers(images)
        with torch.autocast(images.device.type, torch.bfloat16):
            return self.layers(images).to(dtype)

    def _is_fusible(self, images: Tensor) -> bool:
        """Whether the fused node gives the result of the layers and is not slower."""
        return (
            not torch.compiler.is_compiling()
            and images.device.type == "cpu"
            and not images.requires_grad
            and images.shape[1:] == self._padded_shape
            and self._fits
            and images.shape[0] > 0
            and (torch.is_grad_enabled() or images.numel() <= _LARGE)
            and not torch._C._are_functorch_transforms_active()
            and not torch.is_autocast_enabled("cpu")
            and (not self.bf16 or bf16_is_native())
            and self._is_as_built()
        )

    def _is_as_built(self) -> bool:
        return (
            list(self.layers._modules.values()) == self._built
            and not any(self._hooks)
            and list(map(type, self._built)) == self._types  # a parametrization changes the class
        )

    def fused_form(self, entries: dict[str, Any]) -> Form | None:
        """The network with the given tensors instead of its own; ``None`` if tensors do not describe it."""
        if not (
            self.fused
            and self._fits_passes
            and (not self.bf16 or bf16_is_native())
            and self._compiled_call_impl is None
            and type(self).forward is ConvNet.forward
            and self._is_as_built()
        ):
            return None
        layers = entries["layers"]._tensordict
        parameters = tuple(
            layers[number]._tensordict[name]
            for number in self._numbers
            for name in ("weight", "bias")
        )
        return self.empty_form()._replace(parameters=parameters)

    def empty_form(self) -> Form:
        """The form without its tensors."""
        return Form((), self._strides, self._padded_shape, self._padding, bf16=self.bf16)

    @property
    def parameter_names(self) -> list[str]:
        """The parameters in the order of a form."""
        return [
            f"layers.{number}.{name}" for number in self._numbers for name in ("weight", "bias")
        ]


def _full_length(length: int, kernel_sizes: Sequence[int], strides: Sequence[int]) -> int:
    """The shortest length, at least ``length``, that the windows of every layer cover to the last pixel."""
    if length < 1:
        raise ValueError(f"an observation needs at least one pixel per side, got {length}")
    outputs = length
    for kernel, stride in zip(kernel_sizes, strides, strict=True):
        outputs = max(1, -(-(outputs - kernel) // stride) + 1)
    for kernel, stride in zip(reversed(kernel_sizes), reversed(strides), strict=True):
        outputs = (outputs - 1) * stride + kernel
    return outputs


def grid_net(in_shape: Sequence[int], out_features: int) -> ConvNet:
    """The paper's grid network: two convolutions of 32 channels, 3x3, stride 2, then a layer of 256 units.

    Examples:
        >>> from torchrl_dceo.modules.networks import grid_net
        >>> sum(p.numel() for p in grid_net((3, 19, 19), 4).parameters())
        142500
    """
    return ConvNet(
        in_shape,
        out_features,
        channels=(32, 32),
        kernel_sizes=(3, 3),
        strides=(2, 2),
        num_cells=256,
    )


def nature_net(in_shape: Sequence[int], out_features: int) -> ConvNet:
    """The network of Mnih et al. (2015), which the paper uses in 3D and for the Laplacian on Atari.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules.networks import nature_net
        >>> nature_net((4, 84, 84), 18)(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape
        torch.Size([2, 18])
    """
    return ConvNet(
        in_shape,
        out_features,
        channels=(32, 64, 64),
        kernel_sizes=(8, 4, 3),
        strides=(4, 2, 1),
        num_cells=512,
    )


def small_nature_net(in_shape: Sequence[int], out_features: int) -> ConvNet:
    """The network of Mnih et al. (2013): on 3x30x40 two fifths of the multiplications of :func:`nature_net`.

    Examples:
        >>> from torchrl_dceo.modules.networks import small_nature_net
        >>> sum(p.numel() for p in small_nature_net((3, 30, 40), 4).parameters())
        110900
    """
    return ConvNet(
        in_shape,
        out_features,
        channels=(16, 32),
        kernel_sizes=(8, 4),
        strides=(4, 2),
        num_cells=256,
    )


def mlp_net(
    in_features: int, out_features: int, num_cells: Sequence[int] = (256, 256, 256)
) -> nn.Sequential:
    """Fully connected ReLU layers; the default is the paper's network for the cube.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules.networks import mlp_net
        >>> mlp_net(144, 9)(torch.zeros(7, 144)).shape
        torch.Size([7, 9])
    """
    widths = [in_features, *num_cells]
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], out_features))


class OptionNet(nn.Module):
    """A network with one head per option that can also be run with the parameters of some of the options.

    Some of its parameters consist of one block of rows per option. With the blocks of only k options the network
    returns ``[*, k, ...]``; :class:`~torchrl_dceo.objectives.OptionDQNLoss` uses this for ``options_per_update``.
    """

    @abstractmethod
    def rows_per_option(self) -> dict[str, int]:
        """The number of rows per option, by the name of each parameter that has rows per option."""


class MultiHeadNet(OptionNet, PreparedNetwork):
    """One trunk, ``num_heads`` heads: the output of any network, reshaped to ``[*, num_heads, *head_shape]``.

    The last linear layer of the network consists of the heads. The options share all other layers, at the cost of a
    single network.

    Args:
        network_fn (callable): builds a network from the number of its outputs.
        num_heads (int): number of options, N.
        head_shape (int or sequence of int): shape of one head, e.g. the number of actions.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules.networks import MultiHeadNet, mlp_net
        >>> net = MultiHeadNet(lambda out: mlp_net(6, out), num_heads=10, head_shape=4)
        >>> net(torch.zeros(5, 6)).shape
        torch.Size([5, 10, 4])
    """

    def __init__(
        self,
        network_fn: Callable[[int], nn.Module],
        num_heads: int,
        head_shape: int | Sequence[int],
    ) -> None:
        super().__init__()
        self.head_shape = _checked_shape(num_heads, head_shape)
        self.network = network_fn(self.head_shape.numel())

    def forward(self, observation: Tensor) -> Tensor:
        """Maps observations to the outputs of all heads."""
        return self.network(observation).unflatten(-1, (-1, *self.head_shape[1:]))

    def fused_form(self, entries: dict[str, Any]) -> Form | None:
        """The form of its network, without the reshape."""
        own = type(self).forward is MultiHeadNet.forward
        return inner_form(self, "network", entries) if own else None

    def prepared(self, pixels: Tensor) -> Callable[[Tensor], Tensor] | None:
        """The prepared network, followed by the reshape."""
        own = type(self).forward is MultiHeadNet.forward
        run = prepared_network(self.network, pixels) if own else None
        shape = (-1, *self.head_shape[1:])
        return None if run is None else lambda pixels: run(pixels).unflatten(-1, shape)

    def rows_per_option(self) -> dict[str, int]:
        """The last linear layer, if it consists of the heads."""
        linear = [
            (name, layer)
            for name, layer in self.network.named_modules(prefix="network")
            if isinstance(layer, nn.Linear)
        ]
        if not linear or linear[-1][1].out_features != self.head_shape.numel():
            return {}
        name, layer = linear[-1]
        rows = self.head_shape[1:].numel()
        return {f"{name}.{parameter}": rows for parameter, _ in layer.named_parameters()}


class StackedNet(OptionNet):
    """``num_heads`` independent networks with stacked parameters, evaluated in one vectorised pass.

    Each network has its own initialisation. :func:`torch.vmap` turns convolutions into one grouped convolution and
    linear layers into one batched matrix product, so there is no Python loop over options.

    Args:
        network_fn (callable): builds one network from the number of its outputs. It must have no buffers.
        num_heads (int): number of options, N.
        head_shape (int or sequence of int): shape of one network's output, e.g. the number of actions.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules.networks import StackedNet, mlp_net
        >>> net = StackedNet(lambda out: mlp_net(6, out), num_heads=10, head_shape=4)
        >>> net(torch.zeros(5, 6)).shape
        torch.Size([5, 10, 4])
    """

    def __init__(
        self,
        network_fn: Callable[[int], nn.Module],
        num_heads: int,
        head_shape: int | Sequence[int],
    ) -> None:
        super().__init__()
        self.head_shape = _checked_shape(num_heads, head_shape)[1:]
        networks = [network_fn(self.head_shape.numel()) for _ in range(num_heads)]
        parameters, buffers = torch.func.stack_module_state(networks)
        if buffers:
            raise ValueError(
                f"StackedNet cannot stack networks with buffers, got {sorted(buffers)}; use MultiHeadNet"
            )
        self._names = list(parameters)
        self.stacked = nn.ParameterList(list(parameters.values()))
        # In a tuple, so that the template's own parameters are not registered: the stacked ones replace them.
        self._template = (networks[0].to("meta"),)

    def fused_form(self, entries: dict[str, Any]) -> Form | None:
        """The form of its networks, with all of their parameters."""
        network = self._template[0]
        if type(self).forward is not StackedNet.forward or type(network) is not ConvNet:
            return None
        stacked = entries["stacked"]._tensordict
        parameters = tuple(stacked[str(i)] for i in range(len(self.stacked)))
        if self._names != network.parameter_names or not network.fused:
            return None
        if network.bf16 and not bf16_is_native():
            return None
        return network.empty_form()._replace(parameters=parameters, stack=len(parameters[0]))

    def rows_per_option(self) -> dict[str, int]:
        """All parameters, one row each."""
        return {f"stacked.{index}": 1 for index in range(len(self.stacked))}

    def _single(self, parameters: tuple[Tensor, ...], observation: Tensor) -> Tensor:
        named = dict(zip(self._names, parameters, strict=True))
        return torch.func.functional_call(self._template[0], named, (observation,))

    def forward(self, observation: Tensor) -> Tensor:
        """Maps observations to the outputs of all networks, ``[*, num_heads, *head_shape]``."""
        out = torch.vmap(self._single, in_dims=(0, None), out_dims=-2)(
            tuple(self.stacked), observation
        )
        return out.unflatten(-1, self.head_shape)


def _checked_shape(num_heads: int, head_shape: int | Sequence[int]) -> torch.Size:
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    head_shape = (head_shape,) if isinstance(head_shape, int) else tuple(head_shape)
    return torch.Size((num_heads, *head_shape))
