"""Products in bf16: close to those in float32, with weights, gradients and outputs as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_update import gradients_of, make, make_batch
from torch import nn

from torchrl_dceo._fast import convolution, fast_path
from torchrl_dceo._fast.convolution import bf16_is_native, fused_conv_net, prepared_conv_net
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules.networks import ConvNet, StackedNet, grid_net, small_nature_net

native = pytest.mark.skipif(not bf16_is_native(), reason="this CPU has no products of bf16 numbers")
SHAPE = (3, 15, 15)  # no padding


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).detach().norm() / expected.detach().norm())


def rounded_reference(net: ConvNet, pixels: torch.Tensor) -> torch.Tensor:
    """The layers one by one, what goes into all products but the last rounded to bf16; with a gradient."""

    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value.bfloat16().float()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    hidden, last = pixels.float(), net.layers[-1]
    for layer in net.layers[:-1]:
        if isinstance(layer, nn.Conv2d):
            weight = Rounded.apply(layer.weight)
            hidden = nn.functional.conv2d(Rounded.apply(hidden), weight, layer.bias, layer.stride)
        elif isinstance(layer, nn.Linear):
            hidden = nn.functional.linear(
                Rounded.apply(hidden), Rounded.apply(layer.weight), layer.bias
            )
        else:
            hidden = layer(hidden)
    return last(Rounded.apply(hidden))


@native
def test_values_and_gradients_are_those_of_rounded_factors():
    torch.manual_seed(0)
    net = grid_net(SHAPE, 5)
    net.bf16 = True
    pixels, weights = torch.randn(6, *SHAPE), torch.randn(6, 5)
    found, expected = net(pixels), rounded_reference(net, pixels)
    assert found.dtype == torch.float32
    assert distance(found, expected) < 1e-3  # sums are in float32, whatever their order
    assert distance(expected, net.layers(pixels)) > 1e-4  # or nothing was rounded
    parameters = list(net.layers.parameters())
    ours = torch.autograd.grad(found, parameters, weights)
    theirs = torch.autograd.grad(expected, parameters, weights)
    for own, other in zip(ours, theirs, strict=True):
        assert own.dtype == torch.float32 and own.is_contiguous() and own.shape == other.shape
        assert distance(own, other) < 1e-2  # gradients are rounded as well


@native
def test_prepared_layers_give_the_same_to_the_last_bit():
    torch.manual_seed(0)
    net, pixels = grid_net(SHAPE, 5), torch.randn(4, *SHAPE)
    parameters = [p.detach() for p in net.layers.parameters()]
    run = prepared_conv_net(pixels, 1.0, (2, 2), parameters, bf16=True)
    assert torch.equal(run(pixels), fused_conv_net(pixels, 1.0, (2, 2), parameters, bf16=True))
    assert not torch.equal(run(pixels), fused_conv_net(pixels, 1.0, (2, 2), parameters))


@native
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"options_per_update": 3},
        {"independent_networks": True, "options_per_update": 2},
    ],
    ids=["shared", "three options", "two networks"],
)
def test_an_update_is_close_to_that_in_float32_and_to_autocasts(settings):
    full = gradients_of(make(**settings), make_batch(0), True)
    low = gradients_of(make(bf16=True, **settings), make_batch(0), True)
    cast = gradients_of(make(bf16=True, **settings), make_batch(0), False)
    assert low.keys() == full.keys() == cast.keys()
    for name, value in full.items():
        assert low[name].dtype == cast[name].dtype == value.dtype
        # Sums over images that all but cancel lose most.
        assert distance(low[name], value) < 0.3 and distance(cast[name], value) < 0.3
        assert distance(low[name], cast[name]) < 0.3
    # Main learner and encoder, at the last layer, where nothing cancels.
    weight = next(name for name in full if name.endswith("7.weight"))
    assert 0 < distance(low[weight], full[weight]) < 0.02


@native
def test_weights_and_moments_stay_in_float32():
    agent = make(bf16=True)
    for seed in range(2):
        agent.update(make_batch(seed), agent.phases[0])
    moments = agent.learning_state()["moments"].values()
    values = [*agent.parameters(), *(v for entry in moments for v in entry.values())]
    assert {value.dtype for value in values if value.is_floating_point()} == {torch.float32}


def test_without_native_products_autocast_runs(monkeypatch):
    for module in (convolution, "torchrl_dceo.modules.networks"):
        target = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{target}.bf16_is_native", lambda: False)
    seen = []
    forward = nn.Conv2d.forward

    def watched(self: nn.Conv2d, image: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return forward(self, image)

    monkeypatch.setattr(nn.Conv2d, "forward", watched)
    gradients_of(make(bf16=True), make_batch(0), True, expected=False)
    assert seen and all(seen)


@pytest.mark.parametrize("name", ["dceo", "ddqn", "rnd", "diayn", "cic", "dco", "rainbow_dceo"])
def test_every_network_of_an_agent_multiplies_so(name):
    agent = make_agent(name, make_env("NineRooms", room_size=3), bf16=True)
    found = [module for module in agent.modules() if isinstance(module, ConvNet)]
    assert found and all(net.bf16 for net in found)
    plain = make_agent(name, make_env("NineRooms", room_size=3))
    assert not any(net.bf16 for net in plain.modules() if isinstance(net, ConvNet))


def test_stacked_networks_too():
    agent = make_agent(
        "dceo", make_env("NineRooms", room_size=3), bf16=True, independent_networks=True
    )
    stacks = [module for module in agent.modules() if isinstance(module, StackedNet)]
    assert stacks and all(stack._template[0].bf16 for stack in stacks)


def test_off_it_changes_nothing():
    torch.manual_seed(0)
    net, pixels = small_nature_net((3, 30, 40), 4), torch.rand(2, 3, 30, 40)
    with fast_path(False):
        assert torch.equal(net(pixels), net.layers(nn.functional.pad(pixels, net._padding)))
