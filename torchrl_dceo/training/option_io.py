"""Saves and loads options as files without pickle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Categorical, OneHot
from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.data.persistence import load_state, save_state
from torchrl_dceo.modules import EigenReward, OptionQValueActor
from torchrl_dceo.settings import choices
from torchrl_dceo.training.architectures import build_network, describe_network

__all__ = [
    "OptionSet",
    "find_options",
    "find_reward",
    "list_options",
    "load_options",
    "save_options",
]

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
            reward = find_reward(agent)
        found = find_options(agent)
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


def find_options(agent: Agent) -> OptionQValueActor | None:
    """The options of an agent's policy; ``None`` if it has none."""
    return next((m for m in agent.policy.modules() if isinstance(m, OptionQValueActor)), None)


def find_reward(agent: Agent) -> EigenReward | None:
    """The reward that an agent's options follow; ``None`` if it is not an :class:`EigenReward`."""
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
            needed if :func:`~torchrl_dceo.training.architectures.describe_network` does not support them.
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
