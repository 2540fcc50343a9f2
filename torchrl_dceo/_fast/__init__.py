"""Private optimisations: the same numbers in less time, all of them behind one switch.

With the switch off TorchRL's and torch's own paths run instead: ``QValueActor``, ``DQNLoss``,
``DistributionalDQNLoss``, ``TensorDictSequential``, ``to_module``, the layers of a convolutional network one by one.
Set the environment variable ``TORCHRL_DCEO_FAST=0`` before the process starts (worker processes inherit it), or call
:func:`fast_path` at any time.
"""

from __future__ import annotations

import os
from types import TracebackType

__all__ = ["fast_path", "is_fast"]

VARIABLE = "TORCHRL_DCEO_FAST"


def _from_environment() -> bool:
    value = os.environ.get(VARIABLE, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{VARIABLE} must be 0 or 1, got {value!r}")
    return value == "1"


_enabled = _from_environment()


def is_fast() -> bool:
    """Whether the optimisations are on in this process.

    Examples:
        >>> from torchrl_dceo._fast import fast_path, is_fast
        >>> with fast_path(False):
        ...     is_fast()
        False
    """
    return _enabled


class fast_path:
    """Turns all optimisations of this process on or off: for good, or for the length of a ``with`` block.

    Args:
        enabled (bool): whether they are on.

    Examples:
        >>> from torchrl_dceo._fast import fast_path, is_fast
        >>> before = is_fast()
        >>> with fast_path(not before):
        ...     is_fast() == before
        False
        >>> is_fast() == before
        True
    """

    def __init__(self, enabled: bool) -> None:
        global _enabled
        self._before = _enabled
        _enabled = bool(enabled)

    def __enter__(self) -> None:
        """The switch was set when the object was made."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restores what was before."""
        global _enabled
        _enabled = self._before
