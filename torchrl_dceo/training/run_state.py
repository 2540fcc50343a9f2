"""The parts of a run's state that are no module: worlds, random generators, the step about to be taken."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch.nn.parameter import UninitializedBuffer
from torchrl.envs import EnvBase

from torchrl_dceo.envs import get_env_state, set_env_state

__all__ = [
    "Counters",
    "copied",
    "from_tensordict",
    "get_generators",
    "get_world",
    "set_generators",
    "set_world",
    "to_tensordict",
]


@dataclass
class Counters:
    """How far a run is."""

    frames: int = 0
    updates: int = 0
    episodes: int = 0
    phase: int = 0
    phase_frames: int = 0
    seconds: float = 0.0


def copied(value: Any) -> Any:
    """Nested dictionaries and lists with copies of their tensors.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.training.run_state import copied
        >>> x = torch.zeros(2)
        >>> copied({"a": [x, 1]})["a"][0] is x
        False
    """
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def get_world(env: EnvBase) -> dict[str, Any]:
    """The state of an environment and of its transforms.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.run_state import get_world, set_world
        >>> env = make_env("NineRooms", seed=0, slip=1.0)
        >>> saved = get_world(env)
        >>> first = env.rollout(20)["state_id"]
        >>> set_world(env, saved)
        >>> bool((env.rollout(20)["state_id"] == first).all())
        True
    """
    return {"env": get_env_state(env), "transforms": dict(env.state_dict())}


def set_world(env: EnvBase, state: dict[str, Any]) -> None:
    """Restores what :func:`get_world` returned."""
    if any(isinstance(buffer, UninitializedBuffer) for buffer in env.buffers()):
        env.reset()  # some transforms, such as CatFrames, make their buffers at the first reset
    env.load_state_dict(state["transforms"])
    set_env_state(env, state["env"])


def get_generators() -> dict[str, Any]:
    """The global random generators: torch's (of every device), and those of NumPy and Python for worlds that use them.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.training.run_state import get_generators, set_generators
        >>> saved = get_generators()
        >>> x = torch.rand(3)
        >>> set_generators(saved)
        >>> bool((torch.rand(3) == x).all())
        True
    """
    numpy: Any = np.random.get_state(legacy=False)
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "numpy": {
            "key": torch.from_numpy(numpy["state"]["key"].astype(np.int64)),
            "pos": int(numpy["state"]["pos"]),
            "has_gauss": int(numpy["has_gauss"]),
            "gauss": float(numpy["gauss"]),
        },
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
    }


def set_generators(state: dict[str, Any]) -> None:
    """Restores what :func:`get_generators` returned."""
    numpy, python = state["numpy"], state["python"]
    key = numpy["key"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, numpy["pos"], numpy["has_gauss"], numpy["gauss"]))
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    torch.set_rng_state(state["torch"])
    if state.get("cuda"):  # not in the checkpoints of older versions, nor of runs on the CPU
        torch.cuda.set_rng_state_all(state["cuda"])


def from_tensordict(tensordict: TensorDictBase) -> dict[str, Any]:
    """A tensordict as nested dictionaries of copies.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.training.run_state import from_tensordict, to_tensordict
        >>> data = TensorDict({"a": torch.zeros(2), "b": {"c": torch.ones(2, 1)}}, [2])
        >>> bool((to_tensordict(from_tensordict(data), torch.Size([2])) == data).all())
        True
    """
    return {
        key: from_tensordict(value) if isinstance(value, TensorDictBase) else value.clone()
        for key, value in tensordict.items()
    }


def to_tensordict(state: dict[str, Any], batch_size: torch.Size) -> TensorDict:
    """A tensordict from what :func:`from_tensordict` returned."""
    entries = {
        key: to_tensordict(value, batch_size) if isinstance(value, dict) else value.clone()
        for key, value in state.items()
    }
    return TensorDict(entries, batch_size=batch_size)
