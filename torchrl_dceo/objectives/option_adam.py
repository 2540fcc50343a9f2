"""Adam that moves the options of an update and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from torchrl_dceo.objectives.option_dqn import TrainedRows

__all__ = ["OptionAdam"]


class OptionAdam(torch.optim.Adam):
    """Adam in which every option has moments and a count of steps of its own.

    With ``options_per_update=k`` an update trains k options. The gradients of the others are 0, but the momentum of
    :class:`torch.optim.Adam` would move them all the same, its moments would fade, and the count that corrects their
    bias would be that of all updates. Here the rows of the parameters that belong to other options, and their moments,
    stay as they are to the bit: each option learns as with an optimizer of its own. An update costs as much as its k
    options. All other parameters are moved by ``torch.optim.Adam``.

    Args:
        args, kwargs: those of :class:`torch.optim.Adam`, without ``amsgrad``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.objectives.option_adam import OptionAdam
        >>> from torchrl_dceo.objectives.option_dqn import TrainedRows
        >>> weights = torch.nn.Parameter(torch.ones(3, 2))  # one row for each of three options
        >>> optimizer = OptionAdam([weights], lr=0.1)
        >>> weights.grad = torch.ones(3, 2)
        >>> optimizer.step(trained=[TrainedRows(weights, 1, (1,))])
        >>> weights.data[:, 0]
        tensor([1.0000, 0.9000, 1.0000])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if any(group["amsgrad"] for group in self.param_groups):
            raise ValueError("OptionAdam has no amsgrad: leave out amsgrad=True")

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        trained: Sequence[TrainedRows] = (),
    ) -> Any:
        """Moves every parameter that has a gradient.

        Args:
            closure (callable, optional): as in :class:`torch.optim.Adam`.

        Keyword Args:
            trained (sequence of TrainedRows): parameters of which only some rows move; see
                :meth:`~torchrl_dceo.objectives.OptionDQNLoss.trained_rows`.
        """
        # Without a gradient Adam passes them over.
        gradients = {id(rows.parameter): rows.parameter.grad for rows in trained}
        for rows in trained:
            rows.parameter.grad = None
        result = super().step(closure)
        for rows in trained:
            rows.parameter.grad = gradients[id(rows.parameter)]
        for group in self.param_groups:
            own = {id(parameter) for parameter in group["params"]}
            self._step_rows(
                group,
                [
                    rows
                    for rows in trained
                    if id(rows.parameter) in own and rows.parameter.grad is not None
                ],
            )
        return result

    @torch.no_grad()
    def _step_rows(self, group: dict[str, Any], trained: Sequence[TrainedRows]) -> None:
        tensors: list[list[Tensor]] = [[], [], [], [], []]
        for parameter, rows, options in trained:
            count = parameter.shape[0] // rows
            state = self._state_of(parameter, count)
            gradient = parameter.grad
            assert gradient is not None
            wholes = (parameter.detach(), gradient, state["exp_avg"], state["exp_avg_sq"])
            for option in options:
                # Views: what Adam writes is written where it belongs.
                for block, whole in zip(tensors, wholes, strict=False):
                    block.append(whole[option * rows : (option + 1) * rows])
                tensors[4].append(state["step"][option])
        if not tensors[0]:
            return
        beta1, beta2 = group["betas"]
        adam(
            tensors[0],
            tensors[1],
            tensors[2],
            tensors[3],
            [],
            tensors[4],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
            foreach=group["foreach"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            fused=group["fused"],
            decoupled_weight_decay=group["decoupled_weight_decay"],
        )

    def _state_of(self, parameter: Tensor, count: int) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(count, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        elif state["step"].ndim == 0:
            # All options were trained until now.
            state["step"] = state["step"].expand(count).clone()
        return state
