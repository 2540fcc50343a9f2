"""A NumPy generator as one array of integers, so that it can be saved without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["pack_generator", "unpack_generator"]

_HALF = 2**64 - 1


def pack_generator(generator: np.random.Generator) -> np.ndarray:
    """Returns the state of a PCG64 generator (gymnasium's) as ``int64`` of shape ``[6]``.

    Examples:
        >>> import numpy as np
        >>> from torchrl_dceo.envs.minigrid_worlds.generator_state import (
        ...     pack_generator, unpack_generator)
        >>> generator = np.random.default_rng(0)
        >>> copy = unpack_generator(pack_generator(generator))
        >>> copy.random() == generator.random()
        True
    """
    state: dict[str, Any] = dict(generator.bit_generator.state)
    if state["bit_generator"] != "PCG64":
        raise ValueError(
            f"only a PCG64 generator can be saved, got {state['bit_generator']}: use "
            "numpy.random.default_rng"
        )
    long = (state["state"]["state"], state["state"]["inc"])  # 128 bits each
    words = [half for word in long for half in (word >> 64, word & _HALF)]
    words += [state["has_uint32"], state["uinteger"]]
    return np.array(words, dtype=np.uint64).view(np.int64)


def unpack_generator(words: np.ndarray) -> np.random.Generator:
    """Returns a generator that goes on where the packed one was."""
    values = np.asarray(words, dtype=np.int64).view(np.uint64).tolist()
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": values[0] << 64 | values[1], "inc": values[2] << 64 | values[3]},
        "has_uint32": values[4],
        "uinteger": values[5],
    }
    return np.random.Generator(bits)
