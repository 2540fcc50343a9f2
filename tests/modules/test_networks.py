from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.envs.grid.maps import MAPS, nine_rooms
from torchrl_dceo.modules.networks import (
    ConvNet,
    MultiHeadNet,
    StackedNet,
    grid_net,
    mlp_net,
    nature_net,
)


def test_grid_net_is_the_papers():
    layers = [m for m in grid_net((3, 19, 19), 7).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    first, second, hidden, out = layers
    for conv in (first, second):
        assert conv.kernel_size == (3, 3) and conv.stride == (2, 2) and conv.out_channels == 32
    assert hidden.out_features == 256 and out.out_features == 7


def test_uint8_pixels_are_scaled_to_one():
    net = grid_net((3, 19, 19), 4)
    pixels = torch.randint(256, (5, 3, 19, 19), dtype=torch.uint8)
    before = pixels.clone()
    torch.testing.assert_close(net(pixels), net(pixels / 255))
    assert (pixels == before).all()


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_any_leading_batch_shape(shape):
    pixels = torch.rand(*shape, 3, 19, 19)
    net = grid_net((3, 19, 19), 4)
    expected = net.layers(pixels.reshape(-1, 3, 19, 19)).reshape(*shape, 4)
    torch.testing.assert_close(net(pixels), expected)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
@pytest.mark.parametrize("head_shape", [5, (5,), (7, 5)])
@pytest.mark.parametrize("cls", [MultiHeadNet, StackedNet])
def test_heads_have_their_shape(cls, head_shape, shape):
    net = cls(lambda out: mlp_net(6, out, (8,)), 3, head_shape)
    tail = (head_shape,) if isinstance(head_shape, int) else head_shape
    assert net(torch.randn(*shape, 6)).shape == (*shape, 3, *tail)


@pytest.mark.parametrize(
    "make", [lambda out: mlp_net(6, out, (8, 8)), lambda out: grid_net((3, 13, 13), out)]
)
def test_stacked_net_equals_a_loop_over_its_networks(make):
    made = []

    def network_fn(out):
        made.append(make(out))
        return made[-1]

    torch.manual_seed(0)
    net = StackedNet(network_fn, 4, 5).double()
    torch.manual_seed(0)
    copies = [make(5).double() for _ in range(4)]
    x = torch.rand(3, 6) if isinstance(made[0], nn.Sequential) else torch.rand(3, 3, 13, 13)
    x = x.double()
    expected = torch.stack([copy(x) for copy in copies], 1)
    torch.testing.assert_close(net(x), expected)
    net(x).square().sum().backward()
    expected.square().sum().backward()
    for i, copy in enumerate(copies):
        for stacked, own in zip(net.stacked, copy.parameters(), strict=True):
            torch.testing.assert_close(stacked.grad[i], own.grad)


def test_stacked_networks_share_no_weights_and_start_different():
    net = StackedNet(lambda out: mlp_net(6, out, (8,)), 3, 2)
    x = torch.randn(5, 6)
    assert not torch.allclose(net(x)[:, 0], net(x)[:, 1])
    net(x)[:, 1].sum().backward()
    for parameter in net.stacked:
        assert parameter.grad[0].abs().sum() == 0 and parameter.grad[1].abs().sum() > 0


def test_stacked_net_follows_functional_parameters_and_state_dict():
    first, second = (StackedNet(lambda out: mlp_net(6, out, (8,)), 3, 2) for _ in range(2))
    x = torch.randn(5, 6)
    expected = first(x)
    assert not torch.allclose(second(x), expected)
    with TensorDict.from_module(first).to_module(second):
        torch.testing.assert_close(second(x), expected)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(x), expected)
    assert len(list(first.parameters())) == 4


@pytest.mark.parametrize("name", [*MAPS, "small NineRooms", "EscapeRoom"])
def test_every_state_of_every_map_looks_different_to_the_grid_network(name):
    """Strides that leave out the rim of an image would make states alike."""
    if name == "EscapeRoom":
        images = torch.zeros(2, 3, 13, 13, dtype=torch.uint8)
        images[1, :, 12, 12] = 255
    else:
        text = nine_rooms(3) if name == "small NineRooms" else MAPS[name]()
        env = GridWorldEnv(text)
        images = env.observe(torch.arange(env.num_states))
    torch.manual_seed(0)
    out = grid_net(images.shape[1:], 8).double()(images)
    assert len(out.unique(dim=0)) == len(images)


@pytest.mark.parametrize("size", range(3, 24))
def test_every_pixel_reaches_the_output(size):
    net = ConvNet(
        (1, size, size), 4, channels=(8, 8), kernel_sizes=(3, 3), strides=(2, 2), num_cells=16
    )
    net.fused = False
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.abs_()  # nothing cancels, no unit is dead
    pixels = torch.rand(1, 1, size, size, requires_grad=True)
    net(pixels).sum().backward()
    assert (pixels.grad > 0).all()


def test_the_papers_size_needs_no_padding():
    assert grid_net((3, 19, 19), 4)._padding == (0, 0, 0, 0)
    assert nature_net((4, 84, 84), 4)._padding == (0, 0, 0, 0)


@pytest.mark.parametrize("shape", [(3, 13, 13), (3, 11, 17), (3, 3, 3)])
def test_padded_networks_agree_fused_and_not(shape):
    net = grid_net(shape, 4)
    pixels = torch.randint(256, (6, *shape), dtype=torch.uint8)
    fused = net(pixels)
    net.fused = False
    torch.testing.assert_close(fused, net(pixels))


def test_a_shape_that_is_no_image_is_named():
    with pytest.raises(ValueError, match=r"\(channels, height, width\), got \(19, 19\)"):
        nature_net((19, 19), 2)
    with pytest.raises(ValueError, match="at least one pixel per side, got 0"):
        grid_net((3, 0, 5), 2)


def test_networks_with_buffers_cannot_be_stacked():
    with pytest.raises(ValueError, match="buffers"):
        StackedNet(lambda out: nn.Sequential(nn.Linear(6, out), nn.BatchNorm1d(out)), 3, 2)


@pytest.mark.parametrize("cls", [MultiHeadNet, StackedNet])
def test_no_heads_is_refused(cls):
    with pytest.raises(ValueError, match="num_heads must be at least 1, got 0"):
        cls(lambda out: mlp_net(6, out), 0, 4)
