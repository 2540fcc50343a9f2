"""Acting by slowly moving averages of what is learned."""

from __future__ import annotations

import copy
from typing import TypeVar

from tensordict import TensorDictBase, TensorDictParams
from torch import Tensor, nn

__all__ = ["averaged"]

Module = TypeVar("Module", bound=nn.Module)


def averaged(module: Module, parameters: TensorDictParams | TensorDictBase) -> Module:
    r"""A copy of a module that lives on other parameters, such as those of a loss's target network.

    With soft updates a target network is the running average of the learned weights,
    :math:`\bar\theta \leftarrow (1 - \tau)\,\bar\theta + \tau\,\theta`. Two moves of an option often differ by a
    hundredth of their values, less than what one step of an optimizer changes, so a policy that is greedy in the
    learned weights bumps into some wall at any moment, another one a moment later; the average does not.

    The tensors are shared, not copied: when the updater moves them, the module has moved.

    Args:
        module (nn.Module): any module of plain parameters and buffers.
        parameters (TensorDictBase): tensors under the names of the module's parameters and buffers.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.modules import averaged
        >>> layer = torch.nn.Linear(1, 1)
        >>> average = TensorDict({"weight": torch.zeros(1, 1), "bias": torch.zeros(1)})
        >>> slow = averaged(layer, average)
        >>> average["bias"] += 0.5
        >>> slow(torch.ones(1))
        tensor([0.5000])
    """
    module = copy.deepcopy(module)
    _share(module, parameters)
    return module


def _share(module: nn.Module, parameters: TensorDictParams | TensorDictBase) -> None:
    for name, value in parameters.items():
        if not isinstance(value, Tensor):
            _share(module.get_submodule(name), value)
        elif name in module._buffers:
            module._buffers[name] = value.data
        elif name in module._parameters:
            # The same memory: what an updater writes in place is seen here.
            module._parameters[name] = nn.Parameter(value.data, requires_grad=False)
        else:
            raise KeyError(f"{type(module).__name__} has no parameter or buffer {name!r}")
