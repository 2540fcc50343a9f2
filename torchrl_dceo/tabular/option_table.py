"""Options as tables, and the behaviour that uses them."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import TensorSpec

from torchrl_dceo.modules import OptionExplorationModule
from torchrl_dceo.modules.temporally_extended import NO_OPTION

__all__ = ["OptionTable", "TabularOptionExploration"]


class OptionTable(TensorDictModuleBase):
    """The action values of N options for a batch of seeds, each seed with options of its own.

    Reads ``state_id`` ``[B]`` and writes ``option_action_value`` ``[B, N, A]``.

    Args:
        num_seeds (int): B.
        num_options (int): N.
        num_states (int): S.
        num_actions (int): A.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.tabular import OptionTable
        >>> options = OptionTable(2, num_options=3, num_states=5, num_actions=4)
        >>> options(TensorDict({"state_id": torch.tensor([0, 4])}, [2]))["option_action_value"].shape
        torch.Size([2, 3, 4])
    """

    table: Tensor
    in_keys = ["state_id"]
    out_keys = ["option_action_value"]

    def __init__(self, num_seeds: int, num_options: int, num_states: int, num_actions: int) -> None:
        super().__init__()
        if num_options < 1:
            raise ValueError(f"num_options must be at least 1, got {num_options}")
        shape = (num_seeds, num_states, num_options, num_actions)
        self.register_buffer("table", torch.zeros(shape, dtype=torch.float64))
        self.num_options = num_options
        self._each = torch.arange(num_seeds)

    def replace(self, seeds: Tensor, values: Tensor) -> None:
        """Puts the solved action values ``[b, N, S, A]`` of the given seeds ``[b]`` in the place of their options."""
        self.table[seeds] = values.transpose(1, 2)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the values of all options."""
        return tensordict.set(
            self.out_keys[0], self.table[self._each, tensordict.get(self.in_keys[0])]
        )


class TabularOptionExploration(OptionExplorationModule):
    """The behaviour of the paper's Algorithm 2: as Algorithm 1's, but an option is only started where it can act.

    Where no action of an option has a positive value the option ends at once, so it is not among those to choose
    from. If no option can start, exploring is a uniformly random action.

    The arguments are those of :class:`~torchrl_dceo.modules.OptionExplorationModule`.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from torchrl_dceo.tabular import TabularOptionExploration
        >>> explore = TabularOptionExploration(Categorical(4), num_options=3, option_prob=1.0)
        >>> values = torch.zeros(2, 3, 4)
        >>> values[0, 2, 1] = 1.0  # in the first environment only the last option has somewhere to go
        >>> td = TensorDict({"action": torch.zeros(2, dtype=torch.int64), "option_action_value": values,
        ...     "option": torch.full((2,), -1), "is_init": torch.ones(2, 1, dtype=torch.bool)}, [2])
        >>> explore(td)["option"].tolist(), td["option_start"].tolist()
        ([2, -1], [True, False])
    """

    def __init__(self, spec: TensorSpec, **settings: Any) -> None:
        super().__init__(spec, **settings)

    def _start(self, tensordict: TensorDictBase) -> Tensor:
        available = tensordict.get(self.action_value_key).amax(-1) > 0
        draws = torch.rand(available.shape, device=available.device)
        option = draws.masked_fill_(~available, -1.0).argmax(-1)
        return torch.where(available.any(-1), option, NO_OPTION)

    def _write(self, tensordict: TensorDictBase, option: Tensor, starts: Tensor | None) -> None:
        super()._write(
            tensordict, option, None if starts is None else starts & (option != NO_OPTION)
        )
