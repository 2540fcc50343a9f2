"""Loads agents from run directories, and saves and loads options as files without pickle."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Categorical, OneHot
from torchrl.envs import EnvBase

from torchrl_dceo.agents import make_agent
from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.data.persistence import load_state, save_state
from torchrl_dceo.envs import make_env, prepare_env
from torchrl_dceo.modules import Centred, EigenReward, OptionQValueActor
from torchrl_dceo.modules.networks import ConvNet, MultiHeadNet, StackedNet
from torchrl_dceo.settings import choices
from torchrl_dceo.training.checkpoint import Checkpoints
from torchrl_dceo.training.checkpoint.run_directory import RunDirectory, load_settings
from torchrl_dceo.training.collection.workers import with_transforms

__all__ = [
    "LearnedAgent",
    "OptionSet",
    "build_network",
    "describe_network",
    "list_options",
    "load_agent",
    "load_options",
    "plain_settings",
    "read_settings",
    "save_options",
    "store_settings",
]


def describe_network(network: Any) -> dict[str, Any]:
    """Describes the architecture of a network in plain values, without weights.

    Supports the networks of :mod:`torchrl_dceo.modules.networks` and modules of ``Linear``, ``ReLU``, ``Flatten``
    and ``Sequential``. Of any other network only the class name is stored.

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


_KIND = "torchrl_dceo options 1"
_PRETRAINED = Path(__file__).parent / "pretrained"


class OptionSet(NamedTuple):
    """The result of :func:`load_options`.

    Attributes:
        options (OptionQValueActor): writes ``option_action_value`` ``[*, N, A]``; put it before an
            :class:`~torchrl_dceo.modules.OptionExplorationModule`.
        encoder (TensorDictModule or None): the representation f.
        reward (EigenReward or None): the options' rewards, computed from the encoder. Both are ``None`` for skills that
            do not depend on a representation.
    """

    options: OptionQValueActor
    encoder: TensorDictModule | None
    reward: EigenReward | None


def save_options(
    path: str | os.PathLike[str],
    options: Agent | OptionQValueActor,
    *,
    encoder: TensorDictModule | None = None,
    reward: EigenReward | None = None,
) -> None:
    """Saves options, and the encoder that they follow, into a directory.

    Writes raw tensors, and JSON that describes the networks, with a checksum for every file; see
    :func:`~torchrl_dceo.data.persistence.save_state`.

    Args:
        path (path-like): the directory; created if missing.
        options (Agent or OptionQValueActor): an agent with options (``dceo``, ``dceo_two_phase``, ``dco``, ``diayn``,
            ``cic``, or your own), whose encoder and reward are saved too, or the options themselves.

    Keyword Args:
        encoder (TensorDictModule, optional): the representation f. Default: the encoder of ``reward``.
        reward (EigenReward, optional): the options' rewards. Default: the agent's.

    Examples:
        >>> import tempfile
        >>> from torchrl.data import Categorical
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.modules import OptionQValueActor
        >>> from torchrl_dceo.modules.networks import MultiHeadNet, mlp_net
        >>> from torchrl_dceo.training import load_options, save_options
        >>> agent = make_agent("dceo", make_env("NineRooms"), num_options=4, signs="+")
        >>> other = make_env("NineRooms", slip=0.0)  # another environment, of the same kind
        >>> with tempfile.TemporaryDirectory() as path:
        ...     save_options(path, agent)
        ...     options, encoder, reward = load_options(path, other)
        >>> options(other.reset())["option_action_value"].shape
        torch.Size([4, 4])
        >>> net = MultiHeadNet(lambda out: mlp_net(2, out), num_heads=3, head_shape=4)
        >>> plain = OptionQValueActor(net, num_options=3, in_keys=["observation"], spec=Categorical(4))
        >>> with tempfile.TemporaryDirectory() as path:  # options of any pipeline
        ...     save_options(path, plain)
        ...     load_options(path).options.num_options
        3
    """
    if isinstance(options, Agent):
        agent = options
        if reward is None:
            reward = _find_reward(agent)
        found = _find_options(agent)
        if found is None:
            raise ValueError("this agent has no options: its policy holds no OptionQValueActor")
        options = found
    if encoder is None and reward is not None:
        encoder = reward.encoder
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
        "reward": None,
    }
    if encoder is not None:
        state["encoder"] = {
            "in_keys": _keys(encoder.in_keys),
            "out_keys": _keys(encoder.out_keys),
            "network": describe_network(encoder.module),
            "weights": dict(encoder.module.state_dict()),
        }
    if reward is not None:
        names = ("num_options", "skip_first", "signs", "mode", "gamma")
        state["reward"] = {name: getattr(reward, name) for name in names}
    save_state(path, state)


def _find_options(agent: Agent) -> OptionQValueActor | None:
    return next((m for m in agent.policy.modules() if isinstance(m, OptionQValueActor)), None)


def _find_reward(agent: Agent) -> EigenReward | None:
    return next((m for m in agent.objectives.values() if isinstance(m, EigenReward)), None)


def load_options(
    path: str | os.PathLike[str],
    env: EnvBase | None = None,
    *,
    frozen: bool = True,
    option_network: nn.Module | None = None,
    encoder_network: nn.Module | None = None,
) -> OptionSet:
    """Loads options saved with :func:`save_options`, or an option set of the package.

    Args:
        path (path-like): the directory, or the name of an option set of the package (:func:`list_options`).
        env (EnvBase, optional): the environment in which they will be used; raises an error if its observations or
            actions do not fit the options.

    Keyword Args:
        frozen (bool, optional): whether the weights require no gradient. Default: ``True``.
        option_network, encoder_network (nn.Module, optional): your own networks, into which the weights are loaded;
            needed if :func:`~torchrl_dceo.training.option_io.describe_network` does not support them.
    """
    path = _in_package(path)
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
        if state.get("reward") is not None:
            reward = EigenReward(encoder, **state["reward"])
    if frozen:
        for module in (options, encoder):
            if module is not None:
                module.requires_grad_(False).eval()
    if env is not None:
        _check_env(options, env)
    return OptionSet(options, encoder, reward)


def list_options() -> list[str]:
    """The names of the package's pretrained option sets, for :func:`load_options`.

    Examples:
        >>> from torchrl_dceo.training import list_options, load_options
        >>> "nine_rooms" in list_options()
        True
        >>> load_options("nine_rooms").options.num_options
        10
    """
    return sorted(path.name for path in _PRETRAINED.iterdir() if path.is_dir())


def _in_package(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The given directory or, if it does not exist, that of the package's option set of this name."""
    named = isinstance(path, str) and path.isidentifier() and not os.path.exists(path)
    if not named:
        return path
    if path not in list_options():
        raise FileNotFoundError(
            f"no directory and no options of the package: {choices(str(path), list_options())}"
        )
    return _PRETRAINED / path


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
            f"the options have {options.num_actions} actions, this environment has {num_actions}"
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


class LearnedAgent(NamedTuple):
    """The result of :func:`load_agent`.

    Attributes:
        policy (TensorDictModuleBase): writes ``action``; explores unless the exploration type is deterministic.
        options (OptionQValueActor or None): the agent's options, if it has any.
        encoder (TensorDictModule or None): the representation of the options, if any.
        metadata (dict): the run's settings, as stored, and its ``frames``.
        agent (Agent): the complete agent.
        env (EnvBase): the environment, with the transforms that the policy needs.
    """

    policy: Any
    options: OptionQValueActor | None
    encoder: TensorDictModule | None
    metadata: dict[str, Any]
    agent: Agent
    env: EnvBase


def load_agent(
    run_dir: str | os.PathLike[str],
    env: Any = None,
    *,
    agent: Agent | None = None,
    **env_settings: Any,
) -> LearnedAgent:
    """Loads a trained agent from the directory of its run: policy, options, encoder and settings.

    Args:
        run_dir (path-like): the directory of a run of :func:`~torchrl_dceo.training.train` or of the command line.
        env (EnvBase or gymnasium.Env, optional): the environment in which to use it. Default: built as in the run, by
            :func:`~torchrl_dceo.envs.make_env`; a run that was started from Python with an environment of your own
            needs it.

    Keyword Args:
        agent (Agent, optional): an agent built as in the run, into which the weights are loaded; needed for agents that
            :func:`~torchrl_dceo.agents.make_agent` cannot build again.
        **env_settings: settings that replace the run's: ``batch_size=20``, ``slip=0.0``, ``seed=1``.

    Examples:
        >>> import tempfile
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training import load_agent, train
        >>> env = make_env("NineRooms", room_size=3, seed=0)
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     _ = train(make_agent("dceo", env, num_options=3, signs="+"), env, total_frames=200,
        ...               run_dir=run_dir, learning_starts=100, progress=False)
        ...     learned = load_agent(run_dir, env)
        >>> learned.metadata["agent"]["name"], learned.metadata["frames"], learned.options.num_options
        ('dceo', 200, 3)
    """
    run_dir = Path(run_dir)
    settings = read_settings(run_dir)
    made_from = settings.get("agent")
    if env is None:
        if settings.get("env") is None:
            raise ValueError(
                f"{run_dir} does not hold the environment of its run, which was started from Python: pass it, "
                "load_agent(run_dir, env)"
            )
        env_arguments = dict(settings["env"])
        if (made_from or {}).get("name") == "counts":
            env_settings.setdefault("visits", "counts")
        env = make_env(env_arguments.pop("name"), **{**env_arguments, **env_settings})
    elif env_settings:
        raise ValueError(
            f"{', '.join(env_settings)} cannot be combined with env: set them where env is built"
        )
    env = prepare_env(env)
    if agent is None:
        if made_from is None:
            raise ValueError(
                f"{run_dir} does not name the agent of its run: pass one that was built the same way, "
                "load_agent(run_dir, env, agent=…)"
            )
        own = dict(made_from)
        agent = make_agent(own.pop("name"), env, **own)
    state = Checkpoints(run_dir / "checkpoints").load_latest()
    agent.load_state_dict(state["agent"])
    env = with_transforms(env, agent.transforms)
    options, reward = _find_options(agent), _find_reward(agent)
    encoder = None if reward is None else reward.encoder
    metadata = {**settings, "frames": state["counters"]["frames"]}
    return LearnedAgent(agent.policy, options, encoder, metadata, agent, env)


_FILE = "config.yaml"


def store_settings(run_dir: Path, agent: Agent) -> None:
    """Writes the agent's arguments into the directory of a run, unless all settings are there already."""
    path = run_dir / _FILE
    if agent.made_from is not None and not path.exists():
        text = yaml.safe_dump({"agent": plain_settings(agent.made_from)}, sort_keys=False)
        path.write_text(text)


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Converts settings for a file: functions become their names.

    Examples:
        >>> from torchrl_dceo.training.option_io import plain_settings
        >>> plain_settings({"lr": 1e-3, "sizes": (8, 8), "termination": plain_settings})
        {'lr': 0.001, 'sizes': [8, 8], 'termination': 'torchrl_dceo.training.option_io:plain_settings'}
    """
    return {name: _as_text(value) for name, value in settings.items()}


def _as_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return plain_settings(value)
    if isinstance(value, list | tuple):
        return [_as_text(item) for item in value]
    plain = value is None or isinstance(value, bool | int | float | str)
    if plain or not callable(value):
        return value if plain else str(value)
    kind = value if isinstance(value, type | types.FunctionType) else type(value)
    return f"{kind.__module__}:{kind.__qualname__}"


def read_settings(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a run from its ``config.yaml``, with references resolved.

    Examples:
        >>> import pathlib, tempfile
        >>> from torchrl_dceo.training.option_io import read_settings
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "config.yaml").write_text("seed: 3\\nagent: {lr: 1e-3, seed: '${seed}'}")
        ...     read_settings(folder)
        {'seed': 3, 'agent': {'lr': 0.001, 'seed': 3}}
    """
    folder = Path(run_dir)
    path = folder / _FILE
    if not path.is_file():
        if RunDirectory(folder).holds_a_run:
            return {}
        raise FileNotFoundError(f"{folder} is not the directory of a run")
    settings = load_settings(path)
    return _resolved(settings, settings)


def _resolved(value: Any, settings: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(item, settings) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, settings) for item in value]
    if not isinstance(value, str):
        return value
    named = re.fullmatch(r"\$\{(\w+)\}", value)
    return settings.get(named[1]) if named else value
