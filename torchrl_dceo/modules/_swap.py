"""Running a module with other parameters than its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensordict import TensorDictBase, TensorDictParams
from torch import Tensor, nn

__all__ = ["swapped"]

_Undo = list[tuple[dict[str, Any], str, Any]]


@contextmanager
def swapped(module: nn.Module, parameters: TensorDictParams | TensorDictBase) -> Iterator[None]:
    """Puts ``parameters`` in place of the module's own while the context lasts.

    What ``parameters.to_module(module, preserve_module_state=False)`` does, in a tenth of its time: 10 instead of
    100 µs for the grid network, a fifth of a pass with a batch of 32. Modules with more than plain parameters
    and buffers (parametrizations, an ``__setattr__`` of their own) are left to tensordict.

    Args:
        module (nn.Module): the module, with any submodules.
        parameters (TensorDictBase): tensors under the names of the module's parameters and buffers.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.modules._swap import swapped
        >>> layer = torch.nn.Linear(1, 1)
        >>> zeros = TensorDict({"weight": torch.zeros(1, 1), "bias": torch.zeros(1)})
        >>> with swapped(layer, zeros):
        ...     layer(torch.ones(1))
        tensor([0.])
        >>> layer.weight.requires_grad
        True
    """
    undo: _Undo = []
    try:
        if _swap(module, parameters, undo):
            yield
        else:
            _restore(undo)
            undo = []
            with parameters.to_module(module, preserve_module_state=False):
                yield
    finally:
        _restore(undo)


def _swap(module: nn.Module, parameters: TensorDictParams | TensorDictBase, undo: _Undo) -> bool:
    """Swaps all parameters in and notes what they replaced; ``False``, perhaps half way, where that is not enough."""
    if type(module).__setattr__ is not nn.Module.__setattr__:
        return False
    for name, value in parameters.items():
        if isinstance(value, Tensor):
            own: dict[str, Any] = module._buffers if name in module._buffers else module._parameters
            if name not in own:
                return False
            undo.append((own, name, own[name]))
            own[name] = value
        else:
            child = module._modules.get(name)
            if child is None or not _swap(child, value, undo):
                return False
    return True


def _restore(undo: _Undo) -> None:
    for own, name, value in undo:
        own[name] = value
