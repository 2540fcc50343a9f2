"""Detects non-finite numbers in collected data, losses, weights and the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torch.nn.parameter import is_lazy
from torchrl.envs import EnvBase

from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.training.errors import NonFiniteError

__all__ = ["FiniteGuard"]


class FiniteGuard:
    """Detects non-finite numbers: in collected data immediately, in losses and weights once per row of the log.

    No device is synchronised between two rows: the outputs of updates stay there (see
    :class:`~torchrl_dceo.training.logging.metrics.RunMetrics`), and weights and optimizer moments are checked when
    a row is written, before any checkpoint. A non-finite gradient stays in the moments, so none is
    missed.

    Args:
        agent (Agent): its weights are checked.
        env (EnvBase): its rewards and observations are checked.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.finite import FiniteGuard
        >>> env = make_env("NineRooms", room_size=3)
        >>> agent = make_agent("dceo", env, num_options=2, dimensions=3)
        >>> guard = FiniteGuard(agent, env)
        >>> with torch.no_grad():
        ...     _ = next(agent.objectives["main"].parameters()).fill_(torch.nan)
        >>> guard.check_weights(updates=7)
        Traceback (most recent call last):
        torchrl_dceo.training.errors.NonFiniteError: objective 'main' has diverged: ... is nan after 7 updates: ...
    """

    def __init__(self, agent: Agent, env: EnvBase) -> None:
        self._agent = agent
        spec = env.full_observation_spec
        floats = [key for key in spec.keys(True, True) if spec[key].dtype.is_floating_point]
        keys: list[NestedKey] = [("next", "reward")]
        for key in floats:
            keys += [key, ("next", *((key,) if isinstance(key, str) else key))]
        self._keys = keys
        self._num_envs = max(1, env.batch_size.numel())
        # E.g. running extremes that start at infinity.
        self._exempt = {name for name, value in self._named() if not bool(value.isfinite().all())}

    def check_batch(
        self, data: TensorDictBase, frames: int, streams: Sequence[int] | None = None
    ) -> None:
        """Checks the rewards and observations of a batch.

        Args:
            data (TensorDictBase): steps ``[*E, T]``.
            frames (int): the frames of the run before it.
            streams (sequence of int, optional): the environments of the batch. Default: all.
        """
        for key in self._keys:
            value = data.get(key, None)
            # The sum of finite numbers may overflow: then they are checked one by one.
            if value is None or math.isfinite(float(value.sum())):
                continue
            flat = value.reshape(data.numel() // data.shape[-1], data.shape[-1], -1)
            places = (~flat.isfinite()).any(-1).nonzero()
            if not len(places):
                continue
            place, step = places[places[:, 1].argmin()].tolist()
            number = place if streams is None else streams[place]
            found = flat[place, step]
            found = found[~found.isfinite()][0]
            at = f"step {frames // self._num_envs + step + 1}" if streams is None else "a step"
            name = key if isinstance(key, str) else key[-1]
            raise NonFiniteError(
                f"environment {number} gave {name!r} = {float(found)} at {at} (after {frames} frames of the run): "
                "nothing can be learned from it; the checkpoints are from before"
            )

    def check_evaluation(self, value: float, frames: int) -> None:
        """Raises an error if an evaluation is not finite, because it could not be compared with others.

        Args:
            value (float): the mean return.
            frames (int): the frames of the run.
        """
        if not math.isfinite(value):
            raise NonFiniteError(
                f"the greedy evaluation after {frames} frames returned {value}: look at the rewards of the evaluation "
                "environment; the checkpoints are from before"
            )

    def check_updates(self, found: tuple[str, int, float] | None, updates: int) -> None:
        """Raises an error if an output of an update was not finite.

        Args:
            found (tuple, optional): the output's name, the number of updates since then, and its value; see
                :meth:`~torchrl_dceo.training.logging.metrics.RunMetrics.non_finite`.
            updates (int): those that the run has made.
        """
        if found is None:
            return
        key, before, value = found
        objective = key.removeprefix("loss_")
        subject = (
            f"objective {objective!r} has diverged: {key}"
            if objective in self._agent.objectives
            else f"the gradient of {', '.join(self._agent.objectives)} is not finite: {key}"
        )
        raise NonFiniteError(f"{subject} is {value} at update {updates - before}: {_ADVICE}")

    def check_weights(self, updates: int) -> None:
        """Raises an error if a weight, a buffer or a moment of the optimizer is not finite.

        Args:
            updates (int): those that the run has made.
        """
        tensors = dict(self._named())
        kept = [value for name, value in tensors.items() if name not in self._exempt]
        moments = [value for _, value in self._moments()]
        # One number per device, so one synchronisation each.
        if _all_finite([*kept, *moments]):
            return
        parameters = {value.data_ptr(): name for name, value in tensors.items()}
        for parameter, value in self._moments():
            if not _all_finite([value]):
                name = parameters.get(parameter.data_ptr(), "policy.?")
                raise NonFiniteError(
                    f"objective {_owner(name)!r} has diverged: the gradient of {name} was not finite after {updates} "
                    f"updates: {_ADVICE}"
                )
        for name, value in tensors.items():
            if name not in self._exempt and not _all_finite([value]):
                found = float(value[~value.isfinite()].flatten()[0])
                raise NonFiniteError(
                    f"objective {_owner(name)!r} has diverged: {name} is {found} after {updates} updates: {_ADVICE}"
                )

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        # The objectives first: a weight shared with the policy is reported with the objective that trains it.
        seen: set[int] = set()
        modules = [(f"objectives.{n}", m) for n, m in self._agent.objectives.items()]
        for prefix, module in [*modules, ("policy", self._agent.policy)]:
            for name, value in [*module.named_parameters(), *module.named_buffers()]:
                if is_lazy(value) or not value.is_floating_point():
                    continue
                if value.numel() and value.data_ptr() not in seen:
                    seen.add(value.data_ptr())
                    yield f"{prefix}.{name}", value.detach()

    def _moments(self) -> Iterator[tuple[Tensor, Tensor]]:
        state: Mapping[Tensor, dict[str, Any]] = self._agent.optimizer.state
        for parameter, entry in state.items():
            for value in entry.values():
                if isinstance(value, Tensor) and value.is_floating_point():
                    yield parameter, value


_ADVICE = "lower the step size (lr) or look at the rewards; the checkpoints are from before"


def _owner(name: str) -> str:
    first, _, rest = name.partition(".")
    return rest.split(".")[0] if first == "objectives" else first


def _all_finite(tensors: list[Tensor]) -> bool:
    if not tensors:
        return True
    # The largest absolute value is not finite if any value is not.
    return math.isfinite(float(torch.nn.utils.get_total_norm(tensors, math.inf)))
