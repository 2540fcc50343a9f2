"""Options as files: networks described in plain values, saved and loaded without pickle."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Categorical, OneHot
from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.data.persistence import load_state, save_state
from torchrl_dceo.modules import Centred, EigenReward, OptionQValueActor
from torchrl_dceo.modules.networks import ConvNet, MultiHeadNet, StackedNet

__all__ = [
    "OptionSet",
    "build_network",
    "describe_network",
    "load_options",
    "save_options",
]


def describe_network(network: Any) -> dict[str, Any]:
    """Says in plain values how a network is built; not its weights.

    Knows the networks of :mod:`torchrl_dceo.modules.networks` and what is made of ``Linear``, ``ReLU``, ``Flatten``
    and ``Sequential``. Any other network is only named.

    Args:
        network (nn.Module): any network.

    Examples:
        >>> from torchrl_dceo.modules.networks import mlp_net
        >>> from torchrl_dceo.training.option_io import build_network, describe_network
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
    """Builds a network, with fresh weights, from what :func:`describe_network` said."""
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


_KIND = "torchrl_dceo options 1"


class OptionSet(NamedTuple):
    """What :func:`load_options` returns.

    Attributes:
        options (OptionQValueActor): writes ``option_action_value`` ``[*, N, A]``; put it before an
            :class:`~torchrl_dceo.modules.OptionExplorationModule`.
        encoder (TensorDictModule or None): the representation f.
        reward (EigenReward or None): the options' rewards, made from the encoder. Both are ``None`` for skills that do
            not follow a representation.
    """

    options: OptionQValueActor
    encoder: TensorDictModule | None
    reward: EigenReward | None


def save_options(path: str | os.PathLike[str], agent: Agent) -> None:
    """Saves the options of an agent, and the encoder they follow, into a directory.

    Raw tensors, and JSON that describes the networks, with a checksum for every file; see
    :func:`~torchrl_dceo.data.persistence.save_state`.

    Args:
        path (path-like): the directory; made if need be.
        agent (Agent): an agent with options: ``dceo``, ``dceo_two_phase``, ``dco``, ``diayn``, ``cic``, or your own.

    Examples:
        >>> import tempfile
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training import load_options, save_options
        >>> agent = make_agent("dceo", make_env("NineRooms"), num_options=4)
        >>> world = make_env("NineRooms", slip=0.0)  # another world, of the same kind
        >>> with tempfile.TemporaryDirectory() as path:
        ...     save_options(path, agent)
        ...     options, encoder, reward = load_options(path, world)
        >>> options(world.reset())["option_action_value"].shape
        torch.Size([4, 4])
    """
    options = next((m for m in agent.policy.modules() if isinstance(m, OptionQValueActor)), None)
    if options is None:
        raise ValueError("this agent has no options: its policy holds no OptionQValueActor")
    reward = next((m for m in agent.objectives.values() if isinstance(m, EigenReward)), None)
    network: nn.Module = options.module.module
    state: dict[str, Any] = {
        "kind": _KIND,
        "options": {
            "num_options": options.num_options,
            "num_actions": options.num_actions,
            "action_space": options.action_space,
            "in_keys": _keys(options.in_keys),
            "out_keys": _keys(options.out_keys),
            "network": describe_network(network),
            "weights": dict(network.state_dict()),
        },
        "encoder": None,
    }
    if reward is not None:
        state["encoder"] = {
            "in_keys": _keys(reward.encoder.in_keys),
            "out_keys": _keys(reward.encoder.out_keys),
            "network": describe_network(reward.encoder.module),
            "weights": dict(reward.encoder.module.state_dict()),
        }
        names = ("num_options", "skip_first", "signs", "mode", "gamma")
        state["reward"] = {name: getattr(reward, name) for name in names}
    save_state(path, state)


def load_options(
    path: str | os.PathLike[str],
    env: EnvBase | None = None,
    *,
    frozen: bool = True,
    option_network: nn.Module | None = None,
    encoder_network: nn.Module | None = None,
) -> OptionSet:
    """Loads what :func:`save_options` saved, ready to be used.

    Args:
        path (path-like): the directory.
        env (EnvBase, optional): the environment they are for: refused with a clear message if its observations or
            actions are not of the kind that the options know.

    Keyword Args:
        frozen (bool, optional): whether their weights take no gradient. Default: ``True``.
        option_network, encoder_network (nn.Module, optional): networks of your own kind, to be filled with the saved
            weights; only needed where :func:`~torchrl_dceo.training.option_io.describe_network` does not know them.
    """
    state = load_state(path)
    if state.get("kind") != _KIND:
        raise ValueError(f"{path} holds no option set: save one with save_options")
    saved, encoder, reward = state["options"], None, None
    network = _filled(option_network, saved, "option_network")
    space = OneHot if saved["action_space"] == "one_hot" else Categorical
    options = OptionQValueActor(
        network,
        num_options=saved["num_options"],
        in_keys=_unkeys(saved["in_keys"]),
        spec=space(saved["num_actions"]),
        action_value_key=_unkeys(saved["out_keys"])[0],
    )
    if state["encoder"] is not None:
        encoder = TensorDictModule(
            _filled(encoder_network, state["encoder"], "encoder_network"),
            in_keys=_unkeys(state["encoder"]["in_keys"]),
            out_keys=_unkeys(state["encoder"]["out_keys"]),
        )
        reward = EigenReward(encoder, **state["reward"])
    if frozen:
        for module in (options, encoder):
            if module is not None:
                module.requires_grad_(False).eval()
    if env is not None:
        _check_env(options, env)
    return OptionSet(options, encoder, reward)


def _filled(network: nn.Module | None, saved: dict[str, Any], name: str) -> nn.Module:
    if network is None:
        try:
            network = build_network(saved["network"])
        except ValueError as error:
            raise ValueError(f"{error} as {name}") from None
    network.load_state_dict(saved["weights"])
    return network


def _keys(keys: Any) -> list[str | list[str]]:
    return [key if isinstance(key, str) else list(key) for key in keys]


def _unkeys(keys: list[str | list[str]]) -> list[Any]:
    return [key if isinstance(key, str) else tuple(key) for key in keys]


def _check_env(options: OptionQValueActor, env: EnvBase) -> None:
    num_actions = int(env.action_spec_unbatched.space.n)
    if num_actions != options.num_actions:
        raise ValueError(
            f"the options choose among {options.num_actions} actions, this environment has {num_actions}"
        )
    known = env.observation_spec
    missing = [key for key in options.in_keys if key not in known.keys(True, True)]
    if missing:
        raise ValueError(
            f"the options read {missing[0]!r}, which this environment does not have; it has "
            f"{sorted(map(str, known.keys(True, True)))}"
        )
    shapes = [list(known[key].shape[len(env.batch_size) :]) for key in options.in_keys]
    try:
        with torch.no_grad():
            options(known.zero().select(*options.in_keys))
    except (RuntimeError, ValueError):
        raise ValueError(
            f"the options do not fit observations of shape {shapes[0]}: they were learned on others"
        ) from None
