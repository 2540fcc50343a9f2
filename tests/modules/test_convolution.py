from __future__ import annotations

import pytest
import torch
from torch import nn

from torchrl_dceo.modules.convolution import SmallImageConv2d

# (channels, out channels, kernel, stride, height, width): the grid network's two layers; few and many channels; a
# rim that no receptive field reaches; strides of one and above the kernel's side.
SHAPES = [
    (3, 32, 3, 2, 19, 19),
    (32, 32, 3, 2, 9, 9),
    (3, 8, 3, 1, 7, 9),
    (9, 5, 4, 2, 11, 12),
    (8, 5, 3, 2, 10, 8),
    (4, 6, 8, 4, 30, 34),
    (8, 4, 2, 3, 11, 10),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_equals_torchs_convolution_and_its_gradients(shape, memory_format):
    channels, out_channels, kernel, stride, height, width = shape
    ours = SmallImageConv2d(channels, out_channels, kernel, stride).double()
    theirs = nn.Conv2d(channels, out_channels, kernel, stride).double()
    theirs.load_state_dict(ours.state_dict())
    image = torch.randn(5, channels, height, width).double().contiguous(memory_format=memory_format)
    x, y = image.clone().requires_grad_(), image.clone().requires_grad_()
    expected = theirs(y)
    grad = torch.randn_like(expected)
    out = ours(x)
    torch.testing.assert_close(out, expected)
    out.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)


def test_without_gradient_of_the_image():
    conv = SmallImageConv2d(3, 4, 3, 2)
    conv(torch.rand(2, 3, 7, 7)).sum().backward()
    assert conv.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("batched", [(True, True), (False, True), (True, False)])
def test_vmap_over_images_kernels_or_both(batched):
    """With a stack of kernels, of images, or of both, values and gradients are those of a loop."""
    stack = 3
    conv = SmallImageConv2d(9, 4, 3, 2).double()
    images = torch.randn(stack, 2, 9, 8, 8).double().requires_grad_()
    weights = torch.randn(stack, 4, 9, 3, 3).double().requires_grad_()
    biases = torch.randn(stack, 4).double().requires_grad_()
    over_images, over_kernels = batched
    own = (weights, biases) if over_kernels else (weights[0], biases[0])
    image = images if over_images else images[0]

    def single(image, weight, bias):
        return torch.func.functional_call(conv, {"weight": weight, "bias": bias}, (image,))

    dims = (0 if over_images else None, *(0 if over_kernels else None for _ in own))
    out = torch.vmap(single, in_dims=dims)(image, *own)
    expected = torch.stack(
        [
            nn.functional.conv2d(
                images[i] if over_images else images[0],
                weights[i] if over_kernels else weights[0],
                biases[i] if over_kernels else biases[0],
                stride=2,
            )
            for i in range(stack)
        ]
    )
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(expected)
    leaves = (images, weights, biases)
    for mine, theirs in zip(
        torch.autograd.grad(out, leaves, grad),
        torch.autograd.grad(expected, leaves, grad),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
