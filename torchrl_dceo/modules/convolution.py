"""A convolution for small images on the CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["SmallImageConv2d"]

# With at least this many channels a pixel's channels are copied as a block; below it, element by element.
_BLOCK_CHANNELS = 8


class SmallImageConv2d(nn.Conv2d):
    """A drop-in :class:`torch.nn.Conv2d` that is 2-3 times as fast on the CPU for images of some 20x20 pixels.

    On such images torch's CPU convolutions spend their time on preparing, not on arithmetic, above all backward. Here
    the
    receptive fields are laid out as rows of a matrix, once, and forward and backward are three matrix products with it.
    Equal to ``nn.Conv2d`` up to rounding, with the same parameters; on other devices it *is* ``nn.Conv2d``. It can be
    differentiated once, and :func:`torch.vmap` turns it into one batched product over stacked parameters.
    ``benchmarks/update.py`` measures it.

    Args:
        in_channels (int): channels of the image.
        out_channels (int): channels of the output.
        kernel_size (int): side of the square kernel.
        stride (int, optional): default 1.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules.convolution import SmallImageConv2d
        >>> conv = SmallImageConv2d(3, 32, kernel_size=3, stride=2)
        >>> conv(torch.rand(8, 3, 19, 19)).shape
        torch.Size([8, 32, 9, 9])
    """

    bias: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride)

    def forward(self, image: Tensor) -> Tensor:
        """Convolves ``[B, C, H, W]``."""
        if image.device.type != "cpu":
            return super().forward(image)
        out, _, _ = _GroupedConvolution.apply(
            image.unsqueeze(0), self.weight.unsqueeze(0), self.bias.unsqueeze(0), self.stride[0]
        )
        return out.squeeze(0)


class _GroupedConvolution(torch.autograd.Function):
    """Convolves G batches of images ``[G, B, C, H, W]``, each with its own kernels ``[G, O, C, k, k]``."""

    @staticmethod
    def forward(
        image: Tensor, weight: Tensor, bias: Tensor, stride: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        groups, batch, _, height, width = image.shape
        kernel = weight.shape[-1]
        rows, columns = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        fields = _receptive_fields(image, kernel, stride)
        kernels = weight.permute(0, 3, 4, 2, 1).reshape(groups, -1, weight.shape[1])
        out = torch.baddbmm(bias.unsqueeze(1), fields, kernels)
        # Channels last in memory, so that the next layer copies whole pixels.
        out = out.view(groups, batch, rows, columns, -1).permute(0, 1, 4, 2, 3)
        return out, fields, kernels

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
        image, weight, _, stride = inputs
        _, fields, kernels = output
        ctx.mark_non_differentiable(fields, kernels)
        ctx.save_for_backward(fields, kernels)
        ctx.image_shape, ctx.weight_shape, ctx.stride = image.shape, weight.shape, stride

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, Tensor, Tensor, None]:
        fields, kernels = ctx.saved_tensors
        groups, out_channels, channels, kernel, _ = ctx.weight_shape
        rows, columns = grad.shape[-2:]
        grad = grad.permute(0, 1, 3, 4, 2).reshape(groups, -1, out_channels)
        grad_weight = torch.bmm(grad.transpose(1, 2), fields)
        grad_weight = grad_weight.view(groups, out_channels, kernel, kernel, channels).permute(
            0, 1, 4, 2, 3
        )
        grad_image = None
        if ctx.needs_input_grad[0]:
            grad_fields = torch.bmm(grad, kernels.transpose(1, 2))
            grad_image = _sum_of_fields(
                grad_fields, rows, columns, kernel, ctx.stride, ctx.image_shape
            )
        return grad_image, grad_weight, grad.sum(1), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, image: Tensor, weight: Tensor, bias: Tensor, stride: int
    ) -> tuple:
        image_dim, weight_dim, bias_dim, _ = in_dims
        size = info.batch_size
        weight = _stack_to_front(weight, weight_dim, size)
        bias = _stack_to_front(bias, bias_dim, size)
        if image_dim is None:
            # All see the same images: the stack becomes further output channels of one product.
            wide = weight.transpose(0, 1).flatten(1, 2)
            out, fields, kernels = _GroupedConvolution.apply(
                image, wide, bias.transpose(0, 1).flatten(1), stride
            )
            out = out.unflatten(2, (size, -1)).movedim(2, 0)
            return (out, fields, kernels), (0, None, None)
        image = image.movedim(image_dim, 0).flatten(0, 1)
        out, fields, kernels = _GroupedConvolution.apply(
            image, weight.flatten(0, 1), bias.flatten(0, 1), stride
        )
        outputs = tuple(x.unflatten(0, (size, -1)) for x in (out, fields, kernels))
        return outputs, (0, 0, 0)


def _stack_to_front(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _receptive_fields(image: Tensor, kernel: int, stride: int) -> Tensor:
    """One row per output pixel: the ``k * k * C`` inputs it sees, ``[G, B * h * w, k * k * C]``."""
    groups, batch, channels, height, width = image.shape
    if channels < _BLOCK_CHANNELS:
        index = _field_index(channels, height, width, kernel, stride)
        fields = image.reshape(groups * batch, -1).index_select(1, index)
        return fields.view(groups, -1, kernel * kernel * channels)
    image = image.permute(0, 1, 3, 4, 2).contiguous()
    rows, columns = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    line = width * channels
    fields = image.as_strided(
        (groups * batch, rows, columns, kernel, kernel * channels),
        (height * line, stride * line, stride * channels, line, 1),
    )
    return fields.reshape(groups, -1, kernel * kernel * channels)


@lru_cache(maxsize=64)
def _field_index(channels: int, height: int, width: int, kernel: int, stride: int) -> Tensor:
    index = torch.arange(channels * height * width).view(channels, height, width)
    fields = index.unfold(1, kernel, stride).unfold(2, kernel, stride)
    return fields.permute(1, 2, 3, 4, 0).flatten()


def _sum_of_fields(
    fields: Tensor, rows: int, columns: int, kernel: int, stride: int, image_shape: torch.Size
) -> Tensor:
    """The transpose of :func:`_receptive_fields`: adds every field back onto the pixels it was read from.

    Fields are cut into blocks of ``stride`` x ``stride``: the same block of all fields tiles the image without
    overlap, so a
    block is one strided addition, and a 3x3 kernel of stride 2 needs four.
    """
    groups, batch, channels, height, width = image_shape
    reach = -(-kernel // stride)
    fields = fields.view(groups * batch, rows, columns, kernel, kernel, channels).transpose(2, 3)
    image = fields.new_zeros(
        groups * batch, rows + reach - 1, stride, columns + reach - 1, stride, channels
    )
    for y in range(reach):
        down = min(stride, kernel - y * stride)
        for x in range(reach):
            right = min(stride, kernel - x * stride)
            block = fields[:, :, y * stride : y * stride + down, :, x * stride : x * stride + right]
            image[:, y : y + rows, :down, x : x + columns, :right] += block
    image = image.flatten(3, 4).flatten(1, 2)
    below, beside = height - image.shape[1], width - image.shape[2]
    if below > 0 or beside > 0:  # pixels at the rim that no field reaches
        image = nn.functional.pad(image, (0, 0, 0, max(0, beside), 0, max(0, below)))
    image = image[:, :height, :width]
    return image.view(groups, batch, *image.shape[1:]).permute(0, 1, 4, 2, 3)
