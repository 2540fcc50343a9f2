"""The networks of agents: from an environment's observation and the config, on centred images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torchrl.envs import EnvBase

from torchrl_dceo.agents.configs import LearnerConfig
from torchrl_dceo.modules import Centred
from torchrl_dceo.modules.networks import ConvNet, grid_net, mlp_net, nature_net, small_nature_net
from torchrl_dceo.settings import imported

__all__ = ["NetworkFn", "brightest", "centred", "make_network_fn", "observation_key"]

NetworkFn = Callable[[int], nn.Module]


_LARGE_IMAGE = 64  # pixels a side


def observation_key(env: EnvBase) -> str:
    """The input entry of the networks: ``pixels`` or ``observation``."""
    for key in ("pixels", "observation"):
        if key in env.observation_spec.keys():
            return key
    raise KeyError(
        f"agents read 'pixels' or 'observation'; this environment has {sorted(env.observation_spec.keys())}"
    )


def make_network_fn(
    env: EnvBase, config: LearnerConfig, kind: str | Callable[..., nn.Module] | None = None
) -> NetworkFn:
    """A function that builds networks for the environment's observation from their number of outputs.

    Args:
        env (EnvBase): the environment.
        config (LearnerConfig): its ``network`` and ``bf16``.
        kind (str or callable, optional): overrides ``network``.
    """
    make = _network_fn(env, config.network if kind is None else kind)
    if not config.bf16:
        return make

    def in_bf16(out: int) -> nn.Module:
        network = make(out)
        for module in network.modules():
            if isinstance(module, ConvNet):
                module.bf16 = True
        return network

    return in_bf16


def _network_fn(env: EnvBase, kind: str | Callable[..., nn.Module]) -> NetworkFn:
    shape = env.observation_spec[observation_key(env)].shape[len(env.batch_size) :]
    if kind == "auto":
        kind = "mlp" if len(shape) != 3 else "grid" if min(shape[1:]) < _LARGE_IMAGE else "nature"
    if kind == "mlp":
        size = shape.numel()
        flatten = [nn.Flatten(-len(shape))] if len(shape) > 1 else []
        return lambda out: nn.Sequential(*flatten, *mlp_net(size, out))
    nets: dict[Any, Callable[..., nn.Module]] = {
        "grid": grid_net,
        "nature": nature_net,
        "nature_small": small_nature_net,
    }
    if kind in nets:
        return lambda out: nets[kind](shape, out)
    if isinstance(kind, str) and ":" not in kind:
        raise ValueError(
            "network must be one of 'auto', 'grid', 'nature', 'nature_small', 'mlp', or one's own as "
            f"'package.module:function', got {kind!r}"
        )
    own = imported(kind)
    return lambda out: _checked_network(own(shape, out))


def _checked_network(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            raise ValueError(
                f"recurrent networks ({type(module).__name__}) are not supported: supported are networks of one "
                "observation, which may be a stack of frames (frame_stack of make_env('gym', …))"
            )
    return network


def centred(
    network: nn.Module, env: EnvBase, config: LearnerConfig, *, scale: float | None = None
) -> nn.Module:
    """The network on centred images, if observations are images and ``centre_pixels`` is set."""
    shape = env.observation_spec[observation_key(env)].shape[len(env.batch_size) :]
    return (
        Centred(network, shape, scale=scale)
        if config.centre_pixels and len(shape) == 3
        else network
    )


def brightest(env: EnvBase) -> float:
    """The largest value of the environment's images: 255, or less for images of indices (MiniGrid: up to 10)."""
    space = env.observation_spec[observation_key(env)].space
    return 255.0 if space is None else float(space.high.max())
