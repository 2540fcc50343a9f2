"""The options as one multi-head Q-value actor, and a copy of it that acts with averaged weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModule
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.data import Categorical, Composite, OneHot, TensorSpec

from torchrl_dceo._fast.convolution import PreparedNetwork, prepared_network
from torchrl_dceo._fast.passes import Form, inner_form

__all__ = ["OptionHead", "OptionQValueActor", "action_leaf", "averaged"]

Module = TypeVar("Module", bound=nn.Module)


def action_leaf(spec: TensorSpec, action_key: NestedKey = "action") -> Categorical | OneHot:
    """The discrete action spec inside ``spec``; raises an error for any other spec."""
    if isinstance(spec, Composite):
        spec = spec[action_key]
    if not isinstance(spec, Categorical | OneHot):
        raise TypeError(
            f"options need a discrete action spec (Categorical or OneHot), got {type(spec).__name__}"
        )
    return spec


class OptionHead(nn.Module, PreparedNetwork):
    """Runs an option network and checks that its output has the right options and actions.

    Args:
        module (nn.Module): the network.
        num_options (int): N.
        num_actions (int): A.
    """

    def __init__(self, module: nn.Module, num_options: int, num_actions: int) -> None:
        super().__init__()
        self.module = module
        self.num_options = (
            num_options  # fewer while a loss runs the network with the parameters of a few options
        )
        self.num_actions = num_actions

    def _checked(self, output: Tensor, shape: tuple[int, ...], names: str, fix: str) -> Tensor:
        if output.shape[-len(shape) :] != shape:
            raise RuntimeError(
                f"the option network must end in ({names}) = {shape}, got an output of shape {tuple(output.shape)}; "
                f"{fix}"
            )
        return output

    def forward(self, *observations: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Returns the values ``[*, N, A]``, the first output of the actor."""
        return self._values(self.module(*observations))

    def _values(self, output: Tensor) -> Tensor:
        return self._checked(
            output,
            (self.num_options, self.num_actions),
            "options, actions",
            "build it with MultiHeadNet or StackedNet",
        )

    def prepared(self, pixels: Tensor) -> Callable[[Tensor], Tensor] | None:
        """The form of its network, and the check of the output."""
        own = type(self).forward is OptionHead.forward
        run = prepared_network(self.module, pixels) if own else None
        return None if run is None else lambda pixels: self._values(run(pixels))

    def fused_form(self, entries: dict[str, Any]) -> Form | None:
        """The form of its network, if the head adds only the check."""
        own = type(self).forward is OptionHead.forward
        return inner_form(self, "module", entries) if own else None


class OptionQValueActor(TensorDictModule):
    r"""All N options' action values in one pass: :math:`Q_o(s, a)` for every option and action.

    It writes ``option_action_value`` of shape ``[*, N, A]``. The active option is chosen by
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
        head (callable, optional): ``head(module, num_options, num_actions)`` builds the module that runs the network
            and returns the values, followed by the outputs for ``further_keys``. Default: :class:`OptionHead`, which
            returns the values only.
        further_keys (sequence of NestedKey, optional): where the head's further outputs are written. Default: none.

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
        head: Callable[[nn.Module, int, int], OptionHead] = OptionHead,
        further_keys: Sequence[NestedKey] = (),
    ) -> None:
        if num_options < 1:
            raise ValueError(f"num_options must be at least 1, got {num_options}")
        leaf = action_leaf(spec)
        num_actions = int(leaf.space.n)
        super().__init__(
            head(module, num_options, num_actions),
            in_keys=list(in_keys),
            # The values come first, for every option actor.
            out_keys=[action_value_key, *further_keys],
        )
        self.num_options = num_options
        self.num_actions = num_actions
        self.action_space: Literal["categorical", "one_hot"] = (
            "one_hot" if isinstance(leaf, OneHot) else "categorical"
        )


def averaged(module: Module, parameters: TensorDictParams | TensorDictBase) -> Module:
    r"""A copy of a module with other parameters, such as those of a loss's target network.

    With soft updates a target network is the running average of the learned weights,
    :math:`\bar\theta \leftarrow (1 - \tau)\,\bar\theta + \tau\,\theta`. The values of two actions of an option often
    differ by a hundredth, less than one step of the optimizer changes them. A policy that is greedy in the learned
    weights is therefore wrong in some states at any time; with averaged weights it is not.

    The tensors are shared, not copied: the module follows the target updater.

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
            # The same memory: in-place writes of an updater take effect here.
            module._parameters[name] = nn.Parameter(value.data, requires_grad=False)
        else:
            raise KeyError(f"{type(module).__name__} has no parameter or buffer {name!r}")
