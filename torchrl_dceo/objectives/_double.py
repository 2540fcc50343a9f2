"""What the double Q-learning losses share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.objectives.common import LossModule

from torchrl_dceo._fast.parameters import output_of, swapped

__all__ = ["DoublePasses", "double_passes", "weights_of"]


class DoublePasses(NamedTuple):
    """The outputs of :func:`double_passes`.

    Attributes:
        here (Tensor): the online network's at s, with gradients.
        chooser (Tensor): at s', of the network that chooses the action there.
        later (Tensor): the target network's at s'.
    """

    here: Tensor
    chooser: Tensor
    later: Tensor


def double_passes(
    owner: nn.Module,
    network: TensorDictModuleBase,
    parameters: tuple[TensorDictParams, TensorDictParams],
    batch: tuple[TensorDictBase, TensorDictBase],
    out_key: NestedKey,
    *,
    double: bool = True,
) -> DoublePasses:
    """Runs a network at s with its own parameters, and at s' with those of the chooser and of the target.

    Args:
        owner (nn.Module): what the parameters belong to: the network, or an actor around it.
        network (TensorDictModuleBase): writes ``out_key``.
        parameters (tuple): the online and the target parameters of ``owner``.
        batch (tuple): s and s'; both are left as they are.
        out_key (NestedKey): the output wanted.

    Keyword Args:
        double (bool, optional): whether the online network chooses at s'; otherwise the target network does.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.objectives._double import double_passes
        >>> net = TensorDictModule(torch.nn.Linear(2, 3), in_keys=["x"], out_keys=["q"])
        >>> own = TensorDict.from_module(net)
        >>> s, following = (TensorDict({"x": torch.randn(5, 2)}, [5]) for _ in range(2))
        >>> passes = double_passes(net, net, (own, own * 2), (s, following), "q")
        >>> passes.here.requires_grad, torch.allclose(2 * passes.chooser, passes.later)
        (True, True)
    """
    (online, target), (state, following) = parameters, batch
    chooser = None
    with swapped(owner, online):
        here = output_of(network, state, out_key)
        if double:
            with torch.no_grad():
                chooser = output_of(network, following, out_key)
    with torch.no_grad(), swapped(owner, target):
        later = output_of(network, following, out_key)
    return DoublePasses(here, later if chooser is None else chooser, later)


def weights_of(loss: LossModule, tensordict: TensorDictBase) -> Tensor | None:
    """The batch's importance weights, if it has them and ``use_prioritized_weights`` does not forbid them."""
    if loss.use_prioritized_weights not in (True, "auto"):
        return None
    return tensordict.get(loss.tensor_keys.priority_weight, None)
