"""Steps of optimizers and target networks with less overhead, and Adam for a subset of the options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torchrl.objectives import SoftUpdate

from torchrl_dceo._fast import is_fast

__all__ = [
    "DirectAdam",
    "DirectSoftUpdate",
    "OptionAdam",
]


class TrainedRows(NamedTuple):
    """The rows of a parameter that belong to the options trained by the last call of a loss.

    Attributes:
        parameter (nn.Parameter): has a block of ``rows`` rows for each option, one after the other.
        rows (int): number of rows per option.
        options (tuple of int): the options trained.
        gradients (list of Tensor, optional): their gradients, one per option; otherwise those are in the
            parameter's ``grad``.
    """

    parameter: nn.Parameter
    rows: int
    options: tuple[int, ...]
    gradients: list[Tensor] | None = None


class DirectSoftUpdate(SoftUpdate):
    """TorchRL's :class:`~torchrl.objectives.SoftUpdate` on two flat lists of tensors.

    The results are the same to the last bit. TorchRL traverses the trees of online and target parameters twice per
    step, 300 µs for a small network, where the arithmetic takes 15.

    Args:
        args, kwargs: those of :class:`~torchrl.objectives.SoftUpdate`.

    Examples:
        >>> import torch
        >>> from torchrl.data import Categorical
        >>> from torchrl.modules import QValueActor
        >>> from torchrl.objectives import DQNLoss
        >>> from torchrl_dceo._fast.steps import DirectSoftUpdate
        >>> actor = QValueActor(torch.nn.Linear(2, 3), in_keys=["observation"], spec=Categorical(3))
        >>> loss = DQNLoss(actor, delay_value=True)
        >>> updater = DirectSoftUpdate(loss, tau=0.1)
        >>> before = loss.target_value_network_params.data.clone()
        >>> _ = loss.value_network_params.data.add_(1.0)
        >>> updater.step()
        >>> moved = loss.target_value_network_params.data - before
        >>> all(torch.allclose(x, torch.full_like(x, 0.1)) for x in moved.values(True, True))
        True
    """

    _gathered: tuple[Any, Any, list[Tensor], list[Tensor]] | None = None

    def step(self) -> None:
        """Moves the target parameters towards the online ones."""
        if not (is_fast() and self.initialized) or torch.compiler.is_compiling():
            super().step()
            return
        sources, targets = self._sources, self._targets
        gathered = self._gathered
        # TorchRL replaces both objects when they are initialized again.
        if gathered is None or gathered[0] is not sources or gathered[1] is not targets:
            pairs = [
                (targets.get((f"target_{name}", *path)), value)
                for (name, *path), value in sources.items(True, True)
            ]
            if any(target.requires_grad for target, _ in pairs):
                raise RuntimeError("the target parameter is part of a graph.")
            moved, online = [list(column) for column in zip(*pairs, strict=True)]
            gathered = self._gathered = (sources, targets, moved, online)
        with torch.no_grad():
            torch._foreach_lerp_(gathered[2], gathered[3], 1 - self.eps)


def _with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a class's ``step`` as torch.optim does for its first object, unless it is already wrapped."""
    if getattr(step, "hooked", False):
        return step
    return torch.optim.Optimizer.profile_hook_step(step)


_usual_step = _with_hooks(torch.optim.Adam.step)


def _fused_step(group: dict[str, Any], lists: tuple[list[Tensor], ...]) -> None:
    """Adam's kernel on parameters, gradients, moments and step counts that are already incremented."""
    params, grads, firsts, seconds, steps = lists
    beta1, beta2 = group["betas"]
    torch._fused_adam_(
        params,
        grads,
        firsts,
        seconds,
        [],
        steps,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=group["maximize"],
        grad_scale=None,
        found_inf=None,
    )


def _is_plain(group: dict[str, Any]) -> bool:
    """Whether the kernel alone computes a group's step."""
    return (
        group["fused"]
        and not (group["amsgrad"] or group["differentiable"] or group["decoupled_weight_decay"])
        and not isinstance(group["lr"], Tensor)
    )


class DirectAdam(torch.optim.Adam):
    """A fused :class:`torch.optim.Adam` without the bookkeeping around its kernel.

    Results and state are the same to the last bit. Checks and profiler marks take a third of a step on small networks.
    In all other cases (hooks, ``amsgrad``, a closure, moments that do not exist yet) torch's own step runs. The kernel
    keeps its step counts on the device of the parameters and reads nothing on the host, so that a step can be traced by
    :func:`torch.compile` and captured in a CUDA graph, ``capturable`` or not, once the moments exist.

    Args:
        args, kwargs: those of :class:`torch.optim.Adam`.

    Examples:
        >>> import torch
        >>> from torchrl_dceo._fast.steps import DirectAdam
        >>> parameter = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = DirectAdam([parameter], lr=0.1, fused=True)
        >>> for _ in range(2):
        ...     parameter.grad = torch.ones(2)
        ...     optimizer.step()
        >>> parameter.detach()
        tensor([0.8000, 0.8000])
    """

    # By the index of the group: its step counts and the tensor of which they are views. Created by the first step,
    # because a copied optimizer has only its groups and its state.
    _counts: dict[int, tuple[list[Tensor], Tensor]] | None = None

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        gathered = None if closure is not None or not is_fast() else self._gather()
        if gathered is None:
            return _usual_step(self, closure)
        with torch.no_grad():
            for index, (group, (params, grads, firsts, seconds, steps)) in enumerate(gathered):
                if not params:
                    continue
                if torch.compiler.is_compiling():
                    torch._foreach_add_(steps, 1)
                else:
                    self._joined(index, params, steps).add_(1)
                _fused_step(group, (params, grads, firsts, seconds, steps))
        return None

    # Marked as wrapped, so that torch.optim does not wrap it: hooks are checked below.
    step.hooked = True  # type: ignore[attr-defined]

    def _joined(self, index: int, params: list[Tensor], steps: list[Tensor]) -> Tensor:
        """The step counts of a group as views of one tensor, so that one addition increments all of them."""
        if self._counts is None:
            self._counts = {}
        known = self._counts.get(index)
        if known is not None and len(known[0]) == len(steps) and all(map(is_, known[0], steps)):
            return known[1]
        counts = torch.stack(steps)
        steps[:] = counts.unbind()
        for parameter, step in zip(params, steps, strict=True):
            self.state[parameter]["step"] = step
        self._counts[index] = list(steps), counts
        return counts

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes the gradients."""
        if not (set_to_none and is_fast()):
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _gather(self) -> list[tuple[dict[str, Any], tuple[list[Tensor], ...]]] | None:
        """The tensors of every group, or ``None`` if this step is not plain."""
        if self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            return None
        state, gathered = self.state, []
        for group in self.param_groups:
            if not _is_plain(group):
                return None
            lists: tuple[list[Tensor], ...] = ([], [], [], [], [])
            params, grads, firsts, seconds, steps = lists
            for parameter in group["params"]:
                grad = parameter.grad
                if grad is None:
                    continue
                # Not state[parameter], which would add an empty entry.
                moments = state.get(parameter)
                if not moments or grad.is_sparse or moments["step"].ndim:
                    return None
                if params and (
                    parameter.device != params[0].device or parameter.dtype != params[0].dtype
                ):
                    return None
                params.append(parameter)
                grads.append(grad)
                firsts.append(moments["exp_avg"])
                seconds.append(moments["exp_avg_sq"])
                steps.append(moments["step"])
            gathered.append((group, lists))
        return gathered


class OptionAdam(DirectAdam):
    """Adam with separate moments and step counts for every option.

    With ``options_per_update=k`` an update trains k options. The gradients of the others are 0, but
    :class:`torch.optim.Adam` would still move them by their momentum, decay their moments, and correct their bias by
    the count of all updates. Here the rows of the parameters that belong to other options, and their moments, do not
    change: each option learns as with its own optimizer, and an update costs as much as its k options. All other
    parameters are updated as by :class:`DirectAdam`.

    Args:
        args, kwargs: those of :class:`torch.optim.Adam`, without ``amsgrad``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo._fast.steps import OptionAdam
        >>> from torchrl_dceo._fast.steps import TrainedRows
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
        """Updates every parameter that has a gradient.

        Args:
            closure (callable, optional): as in :class:`torch.optim.Adam`.

        Keyword Args:
            trained (sequence of TrainedRows): parameters of which only some rows are updated; see
                :meth:`~torchrl_dceo.objectives.OptionDQNLoss.trained_rows`.
        """
        # Adam skips parameters without a gradient.
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
                    if id(rows.parameter) in own
                    and (rows.gradients is not None or rows.parameter.grad is not None)
                ],
            )
        return result

    @torch.no_grad()
    def _step_rows(self, group: dict[str, Any], trained: Sequence[TrainedRows]) -> None:
        lists: tuple[list[Tensor], ...] = ([], [], [], [], [])
        for parameter, rows, options, gradients in trained:
            count = parameter.shape[0] // rows
            state = self._state_of(parameter, count)
            wholes = (parameter.detach(), state["exp_avg"], state["exp_avg_sq"])
            # Views: Adam writes into the parameters and moments themselves.
            if rows == 1 and gradients is not None:
                blocks = [[whole[option] for option in options] for whole in wholes]
                own = gradients
            else:
                parts = [slice(option * rows, (option + 1) * rows) for option in options]
                blocks = [[whole[part] for part in parts] for whole in wholes]
                if gradients is not None:
                    views = zip(gradients, blocks[0], strict=True)
                    own = [gradient.view(block.shape) for gradient, block in views]
                else:
                    assert parameter.grad is not None
                    own = [parameter.grad[part] for part in parts]
            counts = [state["step"][option] for option in options]
            for column, values in zip(lists, (blocks[0], own, *blocks[1:], counts), strict=True):
                column += values
        if not lists[0]:
            return
        if is_fast() and _is_plain(group):
            torch._foreach_add_(lists[4], 1)
            _fused_step(group, lists)
            return
        beta1, beta2 = group["betas"]
        adam(
            lists[0],
            lists[1],
            lists[2],
            lists[3],
            [],
            lists[4],
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
            # All options were trained so far.
            state["step"] = state["step"].expand(count).clone()
        return state
