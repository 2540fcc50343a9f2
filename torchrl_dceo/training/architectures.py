"""Architectures of networks as plain values, so that options are saved without pickle."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchrl_dceo.modules import Centred
from torchrl_dceo.modules.networks import ConvNet, MultiHeadNet, StackedNet

__all__ = ["build_network", "describe_network"]


def describe_network(network: Any) -> dict[str, Any]:
    """Describes the architecture of a network in plain values, without weights.

    Supports the networks of :mod:`torchrl_dceo.modules.networks` and modules of ``Linear``, ``ReLU``, ``Flatten``
    and ``Sequential``. Of any other network only the class name is stored.

    Args:
        network (nn.Module): any network.

    Examples:
        >>> from torchrl_dceo.modules.networks import mlp_net
        >>> from torchrl_dceo.training.architectures import build_network, describe_network
        >>> spec = describe_network(mlp_net(6, 4, num_cells=(8,)))
        >>> spec["layers"][0]
        {'kind': 'Linear', 'in_features': 6, 'out_features': 8, 'bias': True}
        >>> build_network(spec)
        Sequential(
          (0): Linear(in_features=6, out_features=8, bias=True)
          (1): ReLU()
          (2): Linear(in_features=8, out_features=4, bias=True)
        )
    """
    kind = type(network)
    spec: dict[str, Any] = {"kind": kind.__name__}
    if kind is ConvNet:
        return {**spec, **_describe_conv_net(network)}
    if kind is Centred:
        inner = describe_network(network.network)
        return {**spec, "shape": list(network.centre.shape), "network": inner}
    if kind is MultiHeadNet:
        heads, *shape = network.head_shape
        return {
            **spec,
            "num_heads": heads,
            "head_shape": shape,
            "network": describe_network(network.network),
        }
    if kind is StackedNet:
        heads = network.stacked[0].shape[0]
        one = describe_network(network._template[0])
        return {**spec, "num_heads": heads, "head_shape": list(network.head_shape), "network": one}
    if kind is nn.Sequential:
        return {**spec, "layers": [describe_network(layer) for layer in network]}
    if kind is nn.Linear:
        names = {"in_features": network.in_features, "out_features": network.out_features}
        return {**spec, **names, "bias": network.bias is not None}
    if kind is nn.Flatten:
        return {**spec, "start_dim": network.start_dim, "end_dim": network.end_dim}
    return spec


def _describe_conv_net(network: Any) -> dict[str, Any]:
    convolutions = [layer for layer in network.layers if isinstance(layer, nn.Conv2d)]
    hidden, last = (layer for layer in network.layers if isinstance(layer, nn.Linear))
    channels, height, width = network._padded_shape
    _, right, _, below = network._padding
    return {
        "in_shape": [channels, height - below, width - right],
        "out_features": last.out_features,
        "channels": [layer.out_channels for layer in convolutions],
        "kernel_sizes": [layer.kernel_size[0] for layer in convolutions],
        "strides": [layer.stride[0] for layer in convolutions],
        "num_cells": hidden.out_features,
    }


def build_network(spec: dict[str, Any]) -> nn.Module:
    """Builds a network with new weights from the output of :func:`describe_network`."""
    kind, rest = spec["kind"], {key: value for key, value in spec.items() if key != "kind"}
    if kind == "Sequential":
        return nn.Sequential(*(build_network(layer) for layer in rest["layers"]))
    if kind == "Centred":
        return Centred(build_network(rest["network"]), rest["shape"])
    if kind in ("MultiHeadNet", "StackedNet"):
        stack = MultiHeadNet if kind == "MultiHeadNet" else StackedNet
        inner = rest["network"]
        return stack(lambda out: build_network(inner), rest["num_heads"], rest["head_shape"])
    kinds = {"ConvNet": ConvNet, "Linear": nn.Linear, "Flatten": nn.Flatten, "ReLU": nn.ReLU}
    if kind not in kinds:
        raise ValueError(
            f"a network of class {kind} cannot be built from its description: pass one built by yourself"
        )
    return kinds[kind](**rest)
