"""The optimizer of an agent, and the updates of its target networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.objectives import HardUpdate, LossModule
from torchrl.objectives.utils import TargetNetUpdater

from torchrl_dceo._fast.steps import DirectAdam, DirectSoftUpdate, OptionAdam, TrainedRows
from torchrl_dceo.agents.configs import LearnerConfig, OptionConfig
from torchrl_dceo.agents.tabular_learner import AdamWithTables, TabularQLoss
from torchrl_dceo.objectives import OptionDQNLoss

__all__ = ["MixedOptimizer", "make_optimizer", "make_targets", "target_period"]


def make_targets(config: LearnerConfig, losses: Sequence[LossModule]) -> list[TargetNetUpdater]:
    """One updater for each loss with target networks; a table has none."""
    delayed = [loss for loss in losses if not isinstance(loss, TabularQLoss)]
    if config.target_tau is not None:
        return [DirectSoftUpdate(loss, tau=config.target_tau) for loss in delayed]
    return [
        HardUpdate(loss, value_network_update_interval=target_period(config, loss))
        for loss in delayed
    ]


def target_period(config: LearnerConfig, loss: LossModule) -> int:
    """The period of hard target updates of a loss: the options' own, if set, or the main learner's."""
    if isinstance(config, OptionConfig) and isinstance(loss, OptionDQNLoss):
        own = config.option_target_period
        return config.target_period if own is None else own
    return config.target_period


class MixedOptimizer(OptionAdam):
    r"""Adam, centred RMSProp or plain gradient steps by parameter group; only trained options are updated.

    Groups with ``rmsprop=True`` move by :math:`-\eta g / \sqrt{v - m^2 + \epsilon}`, m and v running means of g and
    g² with decay 0.95, as in DQN (Mnih et al. 2015); one with ``table=True`` by :math:`-\eta g`.

    Args:
        args, kwargs: arguments of :class:`~torchrl_dceo._fast.steps.OptionAdam`.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.agents.optimizer import MixedOptimizer
        >>> weight, table = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        >>> groups = [{"params": [weight], "rmsprop": True, "eps": 0.0}, {"params": [table], "table": True}]
        >>> optimizer = MixedOptimizer(groups, lr=0.1)
        >>> (2 * weight + 3 * table).backward()
        >>> optimizer.step()  # m = 0.1 and v = 0.2: 2 / √0.19
        >>> round(weight.item(), 4), round(table.item(), 4)
        (-0.4588, -0.3)
    """

    _decay = 0.95

    @torch.no_grad()
    def step(
        self, closure: Callable[[], Any] | None = None, *, trained: Sequence[TrainedRows] = ()
    ) -> Any:
        """Updates all parameters with a gradient; of the parameters in ``trained`` only the given rows."""
        groups = self.param_groups
        self.param_groups = [g for g in groups if not g.get("table") and not g.get("rmsprop")]
        own = {id(p) for group in self.param_groups for p in group["params"]}
        try:
            result = super().step(closure, trained=[r for r in trained if id(r.parameter) in own])
        finally:
            self.param_groups = groups
        some = {id(rows.parameter): rows for rows in trained}
        for group in groups:
            if not group.get("table") and not group.get("rmsprop"):
                continue
            for parameter in group["params"]:
                rows = some.get(id(parameter))
                if parameter.grad is None and (rows is None or rows.gradients is None):
                    continue
                if group.get("table"):
                    parameter.sub_(parameter.grad, alpha=group["lr"])
                else:
                    self._rmsprop(parameter, group, rows)
        return result

    def _rmsprop(self, parameter: Tensor, group: dict[str, Any], rows: TrainedRows | None) -> None:
        state = self.state[parameter]
        if not state:
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        parts = [slice(None)]
        if rows is not None:
            parts = [slice(i * rows.rows, (i + 1) * rows.rows) for i in rows.options]
        for i, part in enumerate(parts):
            mean, square = state["mean"][part], state["square"][part]
            if rows is not None and rows.gradients is not None:
                g = rows.gradients[i].view(mean.shape)
            else:
                assert parameter.grad is not None
                g = parameter.grad[part]
            mean.lerp_(g, 1 - self._decay)
            square.lerp_(g.square(), 1 - self._decay)
            deviation = (square - mean.square()).clamp_(min=0).add_(group["eps"]).sqrt_()
            parameter[part].addcdiv_(g, deviation, value=-group["lr"])


def make_optimizer(
    config: LearnerConfig, modules: Mapping[str, nn.Module]
) -> torch.optim.Optimizer:
    """One optimizer over all parameters: faster than one per loss, with the same arithmetic.

    The main learner's Adam has its own ε. Until the first reward is found its gradients are almost 0, and Adam
    divides them by their size: thousands of full steps in random directions, after which the values of all states
    nearly agree. A table uses plain gradient steps.
    """
    groups: dict[tuple[float, float, bool], dict[int, nn.Parameter]] = {}
    tables: list[nn.Parameter] = []
    lr = config.lr if config.representation_lr is None else config.representation_lr
    for name, module in modules.items():
        if isinstance(module, TabularQLoss):
            tables += module.parameters()
        elif isinstance(module, LossModule):
            values = name in ("main", "option")
            rmsprop = values and config.optimizer == "rmsprop"
            eps = config.main_adam_eps if name == "main" else config.adam_eps
            kind = (config.lr if values else lr, config.rmsprop_eps if rmsprop else eps, rmsprop)
            parameters = {id(p): p for p in module.parameters() if p.requires_grad}
            groups.setdefault(kind, {}).update(parameters)
    made: list[dict[str, Any]] = []
    for (own_lr, eps, rmsprop), group in groups.items():
        made.append({"params": list(group.values()), "eps": eps})
        # Only settings that differ are passed, so that a run's description does not change.
        if own_lr != config.lr:
            made[-1]["lr"] = own_lr
        if rmsprop:
            made[-1]["rmsprop"] = True
    # Options that are not trained in an update must not move by momentum.
    some = any(isinstance(m, OptionDQNLoss) and m.options_per_update for m in modules.values())
    # Half the step size: the gradient of a squared error has a factor 2.
    if tables:
        made.append({"params": tables, "table": True, "lr": config.table_step_size / 2})
    kind_of: type[torch.optim.Adam]
    if config.optimizer == "rmsprop" or (tables and some):
        kind_of = MixedOptimizer
    elif tables:
        kind_of = AdamWithTables
    else:
        kind_of = OptionAdam if some else DirectAdam
    return kind_of(made, lr=config.lr, fused=True)
