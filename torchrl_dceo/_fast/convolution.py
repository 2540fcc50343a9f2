"""A small convolutional network as one autograd node, for images and batches with a large overhead on a CPU.

On 3x19x19 images torch's CPU convolutions spend a third of their time on computing and the rest on reordering weights
and images, and each layer is a separate autograd node. Here every convolution is a gather of its windows and a matrix
product, and nothing is reordered twice:

- the windows of the input are gathered in the memory order of the first kernel, which also contains the scaling of the
  input to [0, 1];
- later layers store each pixel as a row of channels, so that a window is a few contiguous rows;
- the gradient of a gather is a sum of rows for every pixel, which :func:`torch.embedding_bag` computes in one call (a
  quarter of the time of adding the taps one by one);
- the products use oneDNN where torch has it, with the ReLU in the same call: on x86 processors other than Intel's,
  torch's own float products use half of a 512-bit vector unit.

With ``bf16`` all layers but the last multiply in bf16 and accumulate in float32; weights, their gradients, losses and
optimizer do not change.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = [
    "PreparedNetwork",
    "bf16_is_native",
    "fused_conv_net",
    "prepared_conv_net",
    "prepared_network",
]

_threshold_backward_ = torch.ops.aten.threshold_backward.grad_input


def _found_onednn() -> Callable[..., Tensor] | None:
    """oneDNN's linear layer, a private operator of torch; chosen by the build, not by timing, so that runs repeat."""
    if not torch.backends.mkldnn.is_available() or platform.machine() not in ("x86_64", "AMD64"):
        return None
    packet = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return None if packet is None else packet.default


_onednn = _found_onednn()
_BF16 = torch.bfloat16


@lru_cache(maxsize=1)
def bf16_is_native() -> bool:
    """Whether oneDNN has bf16 products on this CPU; elsewhere torch's own layers run under autocast.

    Examples:
        >>> from torchrl_dceo._fast.convolution import bf16_is_native
        >>> bf16_is_native() in (True, False)
        True
    """
    found = torch.cpu.get_capabilities() if _onednn is not None else {}
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


_ALWAYS = 2**62


def _small_product(cpuinfo: str) -> int:
    """Number of multiplications up to which torch's own products are as fast as oneDNN's, which have more overhead.

    On AMD processors before Zen 5 (family 26) a 512-bit vector operation takes two steps, so that torch's own 256-bit
    products are only slightly slower even where the overhead is negligible. On Intel's, torch's own products are MKL's,
    which use the whole vector unit and do not copy transposed matrices: faster at every size (an update takes 0.87 of
    the time on a Cascade Lake).
    """
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    found = {name.strip(): value.strip() for name, _, value in lines}
    family = found.get("cpu family", "")
    if found.get("vendor_id") == "GenuineIntel" and torch.backends.mkl.is_available():
        return _ALWAYS
    if found.get("vendor_id") == "AuthenticAMD" and family.isdigit() and int(family) <= 25:
        return 2**24
    return 2**19


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""


_SMALL = _small_product(_cpuinfo())


def affine(
    rows: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False
) -> Tensor:
    """``rows @ weight.T + bias``, and its positive part on request, without a gradient.

    Examples:
        >>> import torch
        >>> from torchrl_dceo._fast.convolution import affine
        >>> affine(torch.eye(2), torch.tensor([[1.0, -2.0]]), relu=True)
        tensor([[1.],
                [0.]])
    """
    if rows.dtype == _BF16:
        if relu or bias is not None:
            assert _onednn is not None
            return _onednn(rows, weight, bias, "relu" if relu else "none", [], None)
        return rows @ weight.t()
    if (
        _onednn is not None
        and rows.dtype == torch.float32
        and rows.shape[0] * weight.numel() >= _SMALL
    ):
        return _onednn(rows, weight, bias, "relu" if relu else "none", [], None)
    out = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
    return out.relu_() if relu else out


class _Windows(NamedTuple):
    """The pixels that each window of a convolution reads."""

    first: Tensor  # indices of the flat image (channels, height, width): windows, in the kernel's memory order
    rows: Tensor  # indices of the flat pixels (height, width): windows, then the taps of the kernel
    kernel: Tensor  # indices of the flat kernel (out, in, taps), as (out, taps, in)
    kernel_back: Tensor  # the inverse
    size: tuple[int, int]  # of the output


@lru_cache(maxsize=64)
def _windows(
    out: int, channels: int, height: int, width: int, kernel: int, stride: int
) -> _Windows:
    pixels = torch.arange(height * width).view(height, width)
    windows = pixels.unfold(0, kernel, stride).unfold(1, kernel, stride)
    size = (windows.shape[0], windows.shape[1])
    rows = windows.reshape(-1, 1, kernel * kernel)
    first = rows + height * width * torch.arange(channels).view(-1, 1)
    weights = torch.arange(out * channels * kernel * kernel).view(out, channels, -1)
    back = weights.view(out, -1, channels).transpose(1, 2)
    return _Windows(
        first.flatten(), rows.flatten(), weights.transpose(1, 2).flatten(), back.flatten(), size
    )


@lru_cache(maxsize=64)
def _transposition(rows: int, columns: int) -> Tensor:
    """Indices of a flat matrix's transpose; for rows of a few hundred entries 2/3 of the time of a strided copy."""
    return torch.arange(rows * columns).view(rows, columns).t().flatten()


@lru_cache(maxsize=64)
def _folding(
    batch: int, height: int, width: int, kernel: int, stride: int
) -> tuple[Tensor, Tensor]:
    """The positions of each pixel's copies among the gathered rows, one bag per pixel, and the bags' offsets."""
    rows = _windows(1, 1, height, width, kernel, stride).rows
    pixel = (rows + height * width * torch.arange(batch).view(-1, 1)).flatten()
    counts = torch.bincount(pixel, minlength=batch * height * width)
    return torch.argsort(pixel, stable=True), counts.cumsum(0) - counts


class Geometry(NamedTuple):
    """The convolutions of a network for images of one size."""

    windows: tuple[_Windows, ...]
    kernels: tuple[torch.Size, ...]
    inputs: tuple[
        tuple[int, int, int], ...
    ]  # channels, height and width of each convolution's input
    strides: tuple[int, ...]
    output: tuple[int, int]  # channels and pixels of the last convolution


@lru_cache(maxsize=64)
def geometry_of(
    image: torch.Size, kernels: tuple[torch.Size, ...], strides: tuple[int, ...]
) -> Geometry:
    """The convolutions of kernels ``(out, in, k, k)`` and strides on images ``(channels, height, width)``."""
    channels, height, width = image
    windows, inputs = [], []
    for (out, _, kernel, _), stride in zip(kernels, strides, strict=True):
        inputs.append((channels, height, width))
        windows.append(_windows(out, channels, height, width, kernel, stride))
        channels, (height, width) = out, windows[-1].size
    return Geometry(tuple(windows), kernels, tuple(inputs), strides, (channels, height * width))


def first_columns(images: Tensor, geometry: Geometry, *, bf16: bool = False) -> Tensor:
    """The windows of the first convolution as rows, in the order of its kernel, for images ``[B, C, H, W]``."""
    first = geometry.windows[0].first
    _, _, kernel, _ = geometry.kernels[0]
    rows = images.reshape(images.shape[0], -1).index_select(1, first)
    rows = rows.view(-1, images.shape[1] * kernel * kernel)
    # After the gather, which takes five times as long on single 16-bit numbers.
    return rows.to(_BF16) if bf16 else rows


def kernel_matrices(
    scale: Tensor | float,
    geometry: Geometry,
    parameters: Sequence[Tensor],
    *,
    bf16: bool = False,
) -> list[Tensor]:
    """The kernels of the convolutions as matrices, in the order of the gathered windows."""
    first = parameters[0].reshape(geometry.kernels[0][0], -1)
    # Scales the few weights instead of the many pixels.
    matrices = [first if isinstance(scale, float) and scale == 1.0 else first * scale]
    for i, windows in enumerate(geometry.windows[1:], 1):
        weight = parameters[2 * i]
        matrices.append(weight.reshape(-1).index_select(0, windows.kernel).view(len(weight), -1))
    return [matrix.to(_BF16) for matrix in matrices] if bf16 else matrices


def forward_layers(
    columns: Tensor,
    batch: int,
    geometry: Geometry,
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    saved: list[Tensor] | None,
) -> Tensor:
    """Runs all layers on the first windows; appends what :func:`backward_layers` needs to ``saved``."""
    hidden, convolutions, bf16 = columns, len(geometry.windows), columns.dtype == _BF16
    for i, (windows, matrix) in enumerate(zip(geometry.windows, matrices, strict=True)):
        bias = parameters[2 * i + 1]
        if i:
            channels = geometry.kernels[i][1]
            columns = hidden.view(batch, -1, channels).index_select(1, windows.rows)
            columns = columns.view(-1, matrix.shape[1])
        hidden = affine(columns, matrix, bias, relu=True)
        if saved is not None:
            saved += [columns, matrix, hidden]
    channels, pixels = geometry.output
    # The linear layers expect the order of nn.Flatten: channels first.
    if bf16:
        hidden = hidden.view(batch, pixels, channels).transpose(1, 2).reshape(batch, -1)
    else:
        hidden = hidden.view(batch, -1).index_select(1, _transposition(pixels, channels))
    last = len(parameters) // 2 - 1
    for i in range(convolutions, last + 1):
        weight, bias = parameters[2 * i : 2 * i + 2]
        if i == last:
            hidden = hidden.to(weight.dtype)
        elif bf16:
            weight = weight.to(_BF16)
        if saved is not None:
            saved += [hidden, weight]
        hidden = affine(hidden, weight, bias, relu=i < last)
    return hidden


def backward_layers(
    gradient: Tensor, scale: Tensor | float, geometry: Geometry, saved: Sequence[Tensor]
) -> list[Tensor]:
    """The gradients of all parameters, in their order, given the gradient of the output ``[B, out]``."""
    batch, convolutions = gradient.shape[0], len(geometry.windows)
    convolved, linear = saved[: 3 * convolutions], saved[3 * convolutions :]
    low, full = convolved[0].dtype, linear[-1].dtype
    gradients: list[Tensor] = []  # from the last parameter to the first
    for i in reversed(range(0, len(linear), 2)):
        hidden, weight = linear[i : i + 2]
        gradients += [gradient.sum(0), affine(gradient.t(), hidden.t())]
        gradient = affine(gradient, weight.t())
        if i:
            _threshold_backward_(gradient, hidden, 0, grad_input=gradient)
            gradient = gradient.to(low)
    channels, pixels = geometry.output
    if low == full:
        gradient = gradient.index_select(1, _transposition(channels, pixels))
    else:
        gradient = gradient.view(batch, channels, pixels).transpose(1, 2).contiguous()
    gradient = gradient.view(-1, channels)
    for i in reversed(range(convolutions)):
        columns, matrix, hidden = convolved[3 * i : 3 * i + 3]
        shape, (channels, height, width) = geometry.kernels[i], geometry.inputs[i]
        _threshold_backward_(gradient, hidden, 0, grad_input=gradient)
        gradients.append(gradient.sum(0))
        if i == 0:
            # In this order, the product of two tall matrices takes 0.6 of the time.
            kernel = (columns.t() @ gradient).to(full).mul_(scale).t()
            gradients.append(kernel.contiguous().view(shape))
            break
        kernel = affine(gradient.t(), columns.t()).to(full)
        back = geometry.windows[i].kernel_back
        gradients.append(kernel.view(-1).index_select(0, back).view(shape))
        gathered = affine(gradient, matrix.t()).view(-1, channels)
        bags = _folding(batch, height, width, shape[-1], geometry.strides[i])
        gradient = torch.embedding_bag(gathered, *bags)[0]
    gradients.reverse()
    return gradients if low == full else [gradient.to(full) for gradient in gradients]


class _FusedConvNet(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        pixels: Tensor,
        scale: float,
        strides: tuple[int, ...],
        bf16: bool,
        *parameters: Tensor,
    ) -> Tensor:
        saved: list[Tensor] = []
        ctx.geometry, features = _features(pixels, scale, strides, parameters, saved, bf16)
        ctx.save_for_backward(*saved)
        ctx.scale = scale
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = backward_layers(gradient, ctx.scale, ctx.geometry, ctx.saved_tensors)
        return (None, None, None, None, *gradients)


def _features(
    pixels: Tensor,
    scale: float,
    strides: tuple[int, ...],
    parameters: Sequence[Tensor],
    saved: list[Tensor] | None,
    bf16: bool,
) -> tuple[Geometry, Tensor]:
    kernels = tuple(weight.shape for weight in parameters[: 2 * len(strides) : 2])
    geometry = geometry_of(pixels.shape[1:], kernels, strides)
    columns = first_columns(pixels.to(parameters[0].dtype), geometry, bf16=bf16)
    matrices = kernel_matrices(scale, geometry, parameters, bf16=bf16)
    return geometry, forward_layers(columns, len(pixels), geometry, matrices, parameters, saved)


def prepared_conv_net(
    pixels: Tensor,
    scale: float,
    strides: tuple[int, ...],
    parameters: Sequence[Tensor],
    *,
    bf16: bool = False,
) -> Callable[[Tensor], Tensor]:
    """:func:`fused_conv_net` without gradients, for several calls with the same weights and images like these.

    The kernels are reordered once. Results are the same to the last bit.

    Args:
        pixels, scale, strides, parameters: those of :func:`fused_conv_net`.

    Keyword Args:
        bf16 (bool, optional): as in :func:`fused_conv_net`.

    Examples:
        >>> import torch
        >>> from torchrl_dceo._fast.convolution import fused_conv_net, prepared_conv_net
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.Linear(72, 5))
        >>> pixels = torch.rand(4, 3, 7, 7)
        >>> with torch.no_grad():
        ...     again = prepared_conv_net(pixels, 1.0, (2,), list(net.parameters()))
        ...     torch.equal(again(pixels), fused_conv_net(pixels, 1.0, (2,), list(net.parameters())))
        True
    """
    kernels = tuple(weight.shape for weight in parameters[: 2 * len(strides) : 2])
    geometry = geometry_of(pixels.shape[1:], kernels, strides)
    matrices = kernel_matrices(scale, geometry, parameters, bf16=bf16)
    dtype = parameters[0].dtype

    def run(pixels: Tensor) -> Tensor:
        columns = first_columns(pixels.to(dtype), geometry, bf16=bf16)
        return forward_layers(columns, len(pixels), geometry, matrices, parameters, None)

    return run


def fused_conv_net(
    pixels: Tensor,
    scale: float,
    strides: tuple[int, ...],
    parameters: Sequence[Tensor],
    *,
    bf16: bool = False,
) -> Tensor:
    """Convolutions with ReLUs, then linear layers with ReLUs between them, as one autograd node.

    Equal to ``nn.Sequential(Conv2d, ReLU, ..., Flatten, Linear, ReLU, ..., Linear)`` up to rounding, with first
    derivatives for the parameters only. The convolutions have square kernels, one stride, no padding.

    Args:
        pixels (Tensor): images ``[B, C, H, W]`` of any dtype.
        scale (float): the factor of the pixels, e.g. 1 / 255 for bytes.
        strides (tuple of int): one stride per convolution.
        parameters (sequence of Tensor): weight and bias of each convolution, then of each linear layer.

    Keyword Args:
        bf16 (bool, optional): whether all layers but the last multiply in bf16; needs :func:`bf16_is_native`.
            Default: ``False``.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from torchrl_dceo._fast.convolution import fused_conv_net
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5))
        >>> pixels = torch.randint(256, (4, 3, 7, 7), dtype=torch.uint8)
        >>> features = fused_conv_net(pixels, 1 / 255, (2,), list(net.parameters()))
        >>> torch.allclose(features, net(pixels / 255), atol=1e-6)
        True
    """
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
        return _FusedConvNet.apply(pixels, scale, strides, bf16, *parameters)
    return _features(pixels, scale, strides, parameters, None, bf16)[1]


class PreparedNetwork:
    """Mixin for a network with work that can be done once for all calls between two updates."""

    def prepared(self, pixels: Tensor) -> Callable[[Tensor], Tensor] | None:
        """The network without gradients, with its current weights, for images like these.

        Args:
            pixels (Tensor): an example of its input.

        Returns:
            callable: the same results to the last bit; ``None`` where only ``forward`` is correct.
        """
        raise NotImplementedError


def prepared_network(network: nn.Module, pixels: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Calls :meth:`PreparedNetwork.prepared`; ``None`` for other networks and for hooked or compiled ones.

    Examples:
        >>> import torch
        >>> from torchrl_dceo._fast.convolution import prepared_network
        >>> prepared_network(torch.nn.Flatten(), torch.zeros(1, 3, 19, 19)) is None
        True
    """
    if (
        not isinstance(network, PreparedNetwork)
        or network._compiled_call_impl is not None
        or network._forward_hooks
        or network._forward_pre_hooks
        or network._backward_hooks
        or network._backward_pre_hooks
    ):
        return None
    return network.prepared(pixels)
