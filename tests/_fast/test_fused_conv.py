"""The fused network against the layers it stands for."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Categorical
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, HardUpdate

from torchrl_dceo._fast import convolution
from torchrl_dceo._fast.convolution import fused_conv_net
from torchrl_dceo.modules import OptionQValueActor, networks
from torchrl_dceo.modules.networks import ConvNet, MultiHeadNet, StackedNet, grid_net, nature_net
from torchrl_dceo.objectives import OptionDQNLoss

SHAPE = (3, 19, 19)
# Image, channels, kernels, strides: the paper's network; no overlap and an image that is padded; one convolution;
# three with overlaps of several strides; a 1x1 kernel and stride 1.
GEOMETRIES = [
    (SHAPE, (32, 32), (3, 3), (2, 2)),
    ((2, 12, 9), (4, 6), (2, 2), (2, 3)),
    ((1, 5, 7), (3,), (3,), (1,)),
    ((4, 21, 17), (5, 4, 3), (5, 4, 3), (2, 1, 1)),
    ((3, 6, 6), (4, 5), (1, 3), (1, 1)),
]


def make_net(geometry, dtype=torch.float64, out=5, cells=7):
    shape, channels, kernels, strides = geometry
    net = ConvNet(
        shape, out, channels=channels, kernel_sizes=kernels, strides=strides, num_cells=cells
    )
    return net.to(dtype)


def parameters_of(net):
    return list(net.layers.parameters())


@pytest.fixture
def fused_calls(monkeypatch):
    """Counts how often a ConvNet takes the fused way."""
    calls = []

    def counted(*arguments, **keywords):
        calls.append(arguments)
        return fused_conv_net(*arguments, **keywords)

    monkeypatch.setattr(networks, "fused_conv_net", counted)
    return calls


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_and_gradients_are_those_of_the_layers(geometry, batch, dtype, fused_calls):
    torch.manual_seed(0)
    net = make_net(geometry, dtype)
    pixels = torch.randn(batch, *geometry[0], dtype=dtype)
    weights = torch.randn(batch, 5, dtype=dtype)
    fused, plain = net(pixels), net.layers(nn.functional.pad(pixels, net._padding))
    assert len(fused_calls) == 1
    tolerance = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {}
    torch.testing.assert_close(fused, plain, **tolerance)
    with torch.no_grad():
        torch.testing.assert_close(net(pixels), plain, **tolerance)
    ours = torch.autograd.grad(fused, parameters_of(net), weights)
    theirs = torch.autograd.grad(plain, parameters_of(net), weights)
    tolerance = tolerance or {"rtol": 1e-4, "atol": 1e-5}
    for own, expected in zip(ours, theirs, strict=True):
        assert own.shape == expected.shape and own.is_contiguous()
        assert expected.abs().sum() > 0  # or the comparison would say nothing
        torch.testing.assert_close(own, expected, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("pixel_dtype", [torch.uint8, torch.int64])
def test_bytes_are_scaled_with_gradients(dtype, pixel_dtype):
    torch.manual_seed(0)
    net = make_net(GEOMETRIES[0], dtype)
    pixels = torch.randint(256, (4, *SHAPE), dtype=pixel_dtype)
    fused = net(pixels)
    plain = net.layers(pixels.to(dtype) / 255)
    torch.testing.assert_close(fused, plain)
    ours = torch.autograd.grad(fused.square().sum(), parameters_of(net))
    theirs = torch.autograd.grad(plain.square().sum(), parameters_of(net))
    for own, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3)])
def test_batch_shapes_and_strided_images(shape, fused_calls):
    net = grid_net(SHAPE, 4)
    pixels = torch.rand(*shape, 19, 3, 19).transpose(-3, -2)
    expected = net.layers(pixels.reshape(-1, *SHAPE)).reshape(*shape, 4)
    torch.testing.assert_close(net(pixels), expected)
    assert len(fused_calls) == 1


def test_linear_layers_may_be_one_or_many():
    torch.manual_seed(0)
    pixels = torch.rand(3, 2, 7, 7)
    for widths in [(18, 5), (18, 6, 5), (18, 8, 6, 5)]:
        layers = [nn.Conv2d(2, 2, 3, 2), nn.ReLU(), nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        net = nn.Sequential(*layers[:-1])
        parameters = list(net.parameters())
        fused = fused_conv_net(pixels, 1.0, (2,), parameters)
        torch.testing.assert_close(fused, net(pixels))
        ours = torch.autograd.grad(fused.square().sum(), parameters)
        theirs = torch.autograd.grad(net(pixels).square().sum(), parameters)
        torch.testing.assert_close(ours, theirs)


def test_pixels_that_no_window_reads_get_no_gradient():
    """The rest of a division by the stride, in the image and between the layers."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(2, 3, 2, 3), nn.ReLU(), nn.Conv2d(3, 4, 2, 3), nn.ReLU()]
    net = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(8, 5)).double()
    pixels = torch.rand(3, 2, 21, 13, dtype=torch.float64)  # 7 x 4 windows, then 2 x 1
    parameters = list(net.parameters())
    with torch.no_grad():
        parameters[1].fill_(0.5)
    fused = fused_conv_net(pixels, 1.0, (3, 3), parameters)
    torch.testing.assert_close(fused, net(pixels))
    ours = torch.autograd.grad(fused.square().sum(), parameters)
    theirs = torch.autograd.grad(net(pixels).square().sum(), parameters)
    torch.testing.assert_close(ours, theirs)
    assert all(gradient.abs().sum() > 0 for gradient in theirs)


def test_large_images_agree_with_and_without_gradient(fused_calls):
    torch.manual_seed(0)
    net = nature_net((4, 84, 84), 6).double()
    pixels = torch.randint(256, (10, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        plain = net(pixels)
    learned = net(pixels)
    assert not fused_calls  # torch's own convolutions win there
    torch.testing.assert_close(learned, plain)
    own = torch.autograd.grad(learned.square().sum(), parameters_of(net))
    expected = torch.autograd.grad(
        net.layers(pixels.double() / 255).square().sum(), parameters_of(net)
    )
    torch.testing.assert_close(own, expected, rtol=1e-8, atol=1e-10)


def test_frozen_layers_get_no_gradient_and_the_others_theirs():
    net, pixels = make_net(GEOMETRIES[0]), torch.rand(4, *SHAPE, dtype=torch.float64)
    trained = [net.layers[2].weight, net.layers[7].bias]
    for parameter in net.parameters():
        parameter.requires_grad_(any(parameter is other for other in trained))
    net(pixels).square().sum().backward()
    expected = torch.autograd.grad(net.layers(pixels).square().sum(), trained)
    torch.testing.assert_close([parameter.grad for parameter in trained], list(expected))
    assert sum(parameter.grad is not None for parameter in net.parameters()) == 2
    net.requires_grad_(False)
    assert not net(pixels).requires_grad


def test_gradients_add_up_over_passes_and_leave_the_first_pass_alone():
    net = make_net(GEOMETRIES[0])
    first, second = torch.rand(2, 4, *SHAPE, dtype=torch.float64)
    (net(first).square().sum() + net(second).sum()).backward()
    loss = net.layers(first).square().sum() + net.layers(second).sum()
    expected = torch.autograd.grad(loss, parameters_of(net))
    torch.testing.assert_close([p.grad for p in net.parameters()], list(expected))


def test_weights_changed_before_the_backward_pass_are_noticed():
    net = make_net(GEOMETRIES[0])
    loss = net(torch.rand(2, *SHAPE, dtype=torch.float64)).sum()
    with torch.no_grad():
        net.layers[5].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_gradient_of_a_gradient_needs_the_layers():
    net, pixels = make_net(GEOMETRIES[0]), torch.rand(2, *SHAPE, dtype=torch.float64)

    def penalty():
        loss = net(pixels).square().sum()
        (gradient,) = torch.autograd.grad(loss, net.layers[0].weight, create_graph=True)
        return gradient.square().sum()

    with pytest.raises(RuntimeError, match="once_differentiable"):
        penalty().backward()
    net.fused = False
    penalty().backward()
    assert net.layers[0].weight.grad.abs().sum() > 0


def test_pixels_that_need_a_gradient_get_one(fused_calls):
    net, pixels = grid_net(SHAPE, 4), torch.rand(2, *SHAPE, requires_grad=True)
    net(pixels).sum().backward()
    assert pixels.grad.abs().sum() > 0 and not fused_calls


def test_state_dict_deepcopy_and_pickle_round_trips(fused_calls):
    torch.manual_seed(0)
    net, other = grid_net(SHAPE, 4), grid_net(SHAPE, 4)
    pixels = torch.rand(3, *SHAPE)
    expected = net(pixels)
    names = [f"layers.{i}.{kind}" for i in (0, 2, 5, 7) for kind in ("weight", "bias")]
    assert list(net.state_dict()) == names
    other.load_state_dict(net.state_dict())
    copied, pickled = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    for twin in (other, copied, pickled):
        assert torch.equal(twin(pixels), expected)
        with torch.no_grad():  # the twin's weights are its own, and the ones it computes with
            twin.layers[7].bias.add_(1)
        torch.testing.assert_close(twin(pixels), expected + 1)
    assert torch.equal(net(pixels), expected)
    assert len(fused_calls) == 8


def test_stacked_networks_and_transforms_fall_back_to_the_layers(fused_calls):
    torch.manual_seed(0)
    stacked = StackedNet(lambda out: grid_net(SHAPE, out), 3, 4)
    torch.manual_seed(0)
    nets = [grid_net(SHAPE, 4) for _ in range(3)]
    pixels = torch.randint(256, (5, *SHAPE), dtype=torch.uint8)
    values = stacked(pixels)
    assert not fused_calls
    torch.testing.assert_close(values, torch.stack([net(pixels) for net in nets], 1))
    assert len(fused_calls) == 3

    net, named = nets[0], dict(nets[0].named_parameters())

    def loss(parameters, image):
        return torch.func.functional_call(net, parameters, (image,)).square().sum()

    per_image = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(named, pixels)
    assert len(fused_calls) == 3
    net(pixels).square().sum().backward()
    for name, parameter in named.items():
        torch.testing.assert_close(per_image[name].sum(0), parameter.grad, rtol=1e-4, atol=1e-6)


def _replace(net):
    net.layers[-1] = nn.Linear(256, 4)


def _drop(net):
    net.layers = net.layers[:-2]


def _hook(net):
    net.layers[1].register_forward_hook(lambda module, inputs, output: 2 * output)


def _parametrize(net):
    nn.utils.parametrize.register_parametrization(net.layers[0], "weight", nn.Tanh())


def _switch_off(net):
    net.fused = False


@pytest.mark.parametrize("change", [_replace, _drop, _hook, _parametrize, _switch_off])
def test_changed_layers_run_as_they_are(change, fused_calls):
    torch.manual_seed(0)
    net, pixels = grid_net(SHAPE, 4), torch.rand(2, *SHAPE)
    before = net(pixels)
    change(net)
    after = net(pixels)
    assert torch.equal(after, net.layers(pixels))
    assert change is _switch_off or not torch.equal(after[:, :4], before)
    assert len(fused_calls) == 1


def test_a_hook_on_a_copy_is_noticed(fused_calls):
    copied, pixels = copy.deepcopy(grid_net(SHAPE, 4)), torch.rand(2, *SHAPE)
    _hook(copied)
    assert torch.equal(copied(pixels), copied.layers(pixels))
    assert not fused_calls


def test_autocast_empty_batches_and_other_sizes_run_the_layers(fused_calls):
    net = grid_net(SHAPE, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert net(torch.rand(2, *SHAPE)).dtype == torch.bfloat16
    assert net(torch.rand(0, *SHAPE)).shape == (0, 4)
    assert net(torch.rand(2, 3, 20, 20)).shape == (2, 4)  # as many windows as in 19x19
    with pytest.raises(RuntimeError, match="channels"):
        net(torch.rand(2, 6, 19, 19))
    with pytest.raises(RuntimeError):
        net(torch.rand(2, *SHAPE).double())
    assert not fused_calls


def make_batch(size=6):
    def pixels():
        return torch.randint(256, (size, *SHAPE), dtype=torch.uint8)

    flags = torch.rand(2, size, 1) < 0.3
    following = {
        "pixels": pixels(),
        "reward": torch.rand(size, 1),
        "done": flags[0] | flags[1],
        "terminated": flags[0],
    }
    batch = {"pixels": pixels(), "action": torch.randint(4, (size,)), "next": following}
    return TensorDict({**batch, "option_reward": torch.randn(size, 3)}, [size])


def _main_loss():
    return DQNLoss(QValueActor(grid_net(SHAPE, 4), in_keys=["pixels"], spec=Categorical(4)))


def _option_loss():
    net = MultiHeadNet(lambda out: grid_net(SHAPE, out), 3, 4)
    actor = OptionQValueActor(net, num_options=3, in_keys=["pixels"], spec=Categorical(4))
    return OptionDQNLoss(actor)


@pytest.mark.parametrize("make_loss", [_main_loss, _option_loss])
def test_losses_with_targets_agree_with_the_layers(make_loss, fused_calls):
    """TorchRL's functional parameters and target networks reach the fused node."""

    def train(fused):
        torch.manual_seed(0)
        loss = make_loss()
        networks_inside = loss.value_network if make_loss is _main_loss else loss.option_network
        for module in networks_inside.modules():
            if isinstance(module, ConvNet):
                module.fused = fused
        loss.make_value_estimator(gamma=0.9)
        updater = HardUpdate(loss, value_network_update_interval=2)
        optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3, eps=1e-3)
        values = []
        for _ in range(4):
            value = next(v for k, v in loss(make_batch()).items() if k.startswith("loss"))
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            updater.step()
            values.append(value.detach())
        return torch.stack(values)

    plain = train(False)
    assert not fused_calls
    fused = train(True)
    assert len(fused_calls) >= 8
    assert fused.unique().numel() == 4
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("cpuinfo", "power"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\n", 24),  # Zen 4
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\n", 19),  # Zen 5
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\n", 62),
        ("", 19),
    ],
)
def test_where_torchs_own_products_take_over_depends_on_the_processor_alone(cpuinfo, power):
    assert convolution._small_product(cpuinfo) == 2**power
