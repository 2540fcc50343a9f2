"""What a run is made of, as plain values, so that a checkpoint can tell its own run from another."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.envs import Compose, EnvBase, Transform, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

from torchrl_dceo.training.agent import Agent

__all__ = ["describe_agent", "describe_env", "first_difference", "plain"]

_PLAIN = (bool, int, float, str)
# Public attributes that change while a thing is used.
_CHANGING = {"training", "is_closed", "initialized", "counter"}
# Numbers that are settings although they are kept as buffers, among those that are learned or annealed.
_SETTING_BUFFERS = {"gamma", "lmbda", "eps_init", "eps_end"}


def _kind(thing: object) -> str:
    return type(thing).__name__


def _settings(thing: object) -> dict[str, Any]:
    """The public attributes that are plain values: what a constructor kept of its arguments."""
    return {
        name: value
        for name, value in vars(thing).items()
        if isinstance(value, _PLAIN) and not name.startswith("_") and name not in _CHANGING
    }


def _describe_module(module: nn.Module) -> dict[str, Any]:
    numbers = {
        name: float(f"{float(buffer):.6g}")  # 0.99, and not what single precision makes of it
        for name, buffer in module.named_buffers(recurse=False)
        if name in _SETTING_BUFFERS
    }
    return {"kind": _kind(module), **_settings(module), **numbers}


def describe_agent(agent: Agent) -> dict[str, Any]:
    """The networks' shapes and every plain setting of an agent; nothing that training changes.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.fingerprint import describe_agent
        >>> agent = make_agent("ddqn", make_env("NineRooms"), lr=3e-4)
        >>> describe_agent(agent)["optimizer"]["groups"][0]["lr"]
        0.0003
    """
    groups = agent.optimizer.state_dict()["param_groups"]
    return {
        "objectives": list(agent.objectives),
        "modules": {name or ".": _describe_module(m) for name, m in agent.named_modules()},
        "shapes": {
            name: list(value.shape)
            for name, value in agent.state_dict().items()
            if isinstance(value, Tensor)
        },
        "optimizer": {"kind": _kind(agent.optimizer), "groups": plain(groups)},
        "targets": [{"kind": _kind(target), **_settings(target)} for target in agent.targets],
        "replay": plain(dataclasses.asdict(agent.replay)),
        "phases": [plain(dataclasses.asdict(phase)) for phase in agent.phases],
        "max_grad_norm": agent.max_grad_norm,
    }


def describe_env(env: EnvBase, ignored: tuple[type, ...] = ()) -> dict[str, Any]:
    """The world, what it shows, and its transforms.

    Args:
        env (EnvBase): any environment.
        ignored (tuple of types): transforms that do not count.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.fingerprint import describe_env
        >>> describe_env(make_env("NineRooms", slip=0.2))["world"]["slip"]
        0.2
    """
    base, transforms = env, []
    while isinstance(base, TransformedEnv):
        chain = [t for t in _chain(base.transform) if not isinstance(t, ignored)]
        transforms += [{"kind": _kind(t), **_settings(t)} for t in chain]
        base = base.base_env
    if isinstance(base, BatchedEnvBase):
        # Its workers may live in other processes, and some settings of its own depend on the machine.
        world: dict[str, Any] = {"workers": base.num_workers}
    else:
        # The tables that make a map or a cube; of other worlds, how they were made.
        made_from = getattr(base, "_constructor_kwargs", {})
        world = {**_settings(base), **plain(made_from), "tables": _checksum(base)}
    return {
        "kind": _kind(base),
        "batch_size": list(env.batch_size),
        "observation": {
            str(key): [list(spec.shape), str(spec.dtype)]
            for key, spec in base.full_observation_spec.items(True, True)
        },
        "actions": repr(env.full_action_spec[env.action_key].space),
        "world": world,
        "transforms": transforms,
    }


def _chain(transform: Transform) -> Iterator[Transform]:
    yield from transform.transforms if isinstance(transform, Compose) else (transform,)


def _checksum(module: nn.Module) -> int:
    checksum = 0
    for name, buffer in sorted(module.named_buffers()):
        data = buffer.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(data.data, zlib.crc32(name.encode(), checksum))
    return checksum


def plain(value: Any) -> Any:
    """Nested plain values as they come back from a checkpoint; anything else becomes its text.

    Examples:
        >>> from torchrl_dceo.training.fingerprint import plain
        >>> plain({"betas": (0.9, 0.999), 1: None})
        {'betas': [0.9, 0.999], '1': None}
    """
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)


def first_difference(saved: Any, own: Any, name: str = "") -> str | None:
    """Says where two descriptions differ first, or returns ``None``.

    Examples:
        >>> from torchrl_dceo.training.fingerprint import first_difference
        >>> first_difference({"env": {"slip": 0.0}}, {"env": {"slip": 0.15}})
        'env.slip is 0.0 there and 0.15 here'
    """
    if isinstance(saved, dict) and isinstance(own, dict):
        for key in [*own, *(key for key in saved if key not in own)]:
            inner = f"{name}.{key}" if name else key
            found = first_difference(saved.get(key, "missing"), own.get(key, "missing"), inner)
            if found:
                return found
        return None
    if isinstance(saved, list) and isinstance(own, list) and len(saved) == len(own):
        pairs = enumerate(zip(saved, own, strict=True))
        found_in = (first_difference(a, b, f"{name}[{i}]") for i, (a, b) in pairs)
        return next((found for found in found_in if found), None)
    return None if saved == own else f"{name} is {_short(saved)} there and {_short(own)} here"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
