"""The options as one multi-head Q-value actor, and a copy of it that acts by averaged weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModule
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.data import Categorical, Composite, OneHot, TensorSpec

__all__ = ["OptionQValueActor", "action_leaf", "averaged"]

Module = TypeVar("Module", bound=nn.Module)


def action_leaf(spec: TensorSpec, action_key: NestedKey = "action") -> Categorical | OneHot:
    """Returns the discrete action spec inside ``spec``, or says what is wrong with it."""
    if isinstance(spec, Composite):
        spec = spec[action_key]
    if not isinstance(spec, Categorical | OneHot):
        raise TypeError(
            f"options need a discrete action spec (Categorical or OneHot), got {type(spec).__name__}"
        )
    return spec


class _Values(nn.Module):
    """Runs the network and checks that it speaks of the right options and actions."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.module = module
        self.shape = shape

    def forward(self, *observations: Tensor) -> Tensor:
        values = self.module(*observations)
        if values.shape[-len(self.shape) :] != self.shape:
            raise RuntimeError(
                f"the option network must end in (options, actions) = {self.shape}, got an output of shape "
                f"{tuple(values.shape)}; build it with MultiHeadNet or StackedNet"
            )
        return values


class OptionQValueActor(TensorDictModule):
    r"""All N options' action values in one pass: :math:`Q_o(s, a)` for every option and action.

    It writes ``option_action_value`` of shape ``[*, N, A]`` and chooses nothing: which option acts is the business of
    :class:`~torchrl_dceo.modules.OptionExplorationModule`.

    Args:
        module (nn.Module): maps observations to ``[*, N, A]``: a
            :class:`~torchrl_dceo.modules.networks.MultiHeadNet` (shared trunk), a
            :class:`~torchrl_dceo.modules.networks.StackedNet` (independent networks), or your own.

    Keyword Args:
        num_options (int): number of options, N.
        in_keys (sequence of NestedKey): the observations that the module reads.
        spec (TensorSpec): the action spec, unbatched or batched.
        action_value_key (NestedKey, optional): where the values are written. Default: ``"option_action_value"``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl_dceo.modules import OptionQValueActor
        >>> from torchrl_dceo.modules.networks import MultiHeadNet, mlp_net
        >>> net = MultiHeadNet(lambda out: mlp_net(6, out), num_heads=3, head_shape=4)
        >>> actor = OptionQValueActor(net, num_options=3, in_keys=["observation"], spec=Categorical(4))
        >>> actor(TensorDict({"observation": torch.zeros(5, 6)}, [5]))["option_action_value"].shape
        torch.Size([5, 3, 4])
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        num_options: int,
        in_keys: Sequence[NestedKey],
        spec: TensorSpec,
        action_value_key: NestedKey = "option_action_value",
    ) -> None:
        if num_options < 1:
            raise ValueError(f"num_options must be at least 1, got {num_options}")
        leaf = action_leaf(spec)
        num_actions = int(leaf.space.n)
        values = _Values(module, (num_options, num_actions))
        super().__init__(values, in_keys=list(in_keys), out_keys=[action_value_key])
        self.num_options = num_options
        self.num_actions = num_actions
        self.action_space = "one_hot" if isinstance(leaf, OneHot) else "categorical"


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
