"""Environment steps in this process without the collector's overhead: the same transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.collectors import Collector
from torchrl.envs import (
    Compose,
    EnvBase,
    InitTracker,
    RewardSum,
    TensorDictPrimer,
    Transform,
    TransformedEnv,
)
from torchrl.envs.utils import set_exploration_type

from torchrl_dceo._fast.actors import PolicySequence

__all__ = ["CompleteSteps", "DirectRollout", "DirectSteps", "reason_against"]

Entries = dict[str, Any]
_SILENT = (InitTracker, RewardSum, TensorDictPrimer)


class CompleteSteps:
    """Mixin for an environment whose ``_step`` returns every entry of its specs, in their shapes and dtypes.

    ``done`` is true wherever another of its flags is. What :meth:`torchrl.envs.EnvBase.step` does around such a step
    (completing flags, checking rewards) changes nothing and may be skipped.
    """


class DirectSteps:
    """Steps an environment as ``step_and_maybe_reset`` does, without its bookkeeping.

    Only steps in which no episode ends are shortened; after the others TorchRL resets.

    Args:
        env (EnvBase): without a :func:`reason_against` it.

    Examples:
        >>> import torch
        >>> from torchrl_dceo._fast.rollout import DirectSteps
        >>> from torchrl_dceo.envs import make_env
        >>> env = make_env("NineRooms", batch_size=2)
        >>> state = env.reset().set("action", torch.tensor([0, 1]))
        >>> following = DirectSteps(env)(state)
        >>> state["next", "reward"].shape, torch.equal(following["pixels"], state["next", "pixels"])
        (torch.Size([2, 1]), True)
    """

    def __init__(self, env: EnvBase) -> None:
        reason = reason_against(env)
        if reason is not None:
            raise ValueError(f"this environment cannot be stepped directly: {reason}")
        self._env = env
        self._base: EnvBase = env.base_env
        self._transforms = [_stepper(transform) for transform in _chain(env)]
        self._left_out = {"next", "_reset", *env.done_keys, *env.reward_keys}
        self._rewards = set(env.reward_keys)
        # Other transforms may set a flag and not ``done``.
        silent = all(type(transform) in _SILENT for transform in _chain(env))
        self._flags: list[Any] = ["done"] if silent else env.done_keys

    def __call__(self, carrier: TensorDict) -> TensorDictBase:
        """Writes ``next`` into the carrier, and returns the next carrier."""
        root: Entries = carrier._tensordict
        following = self._base._step(carrier)
        entries: Entries = following._tensordict
        preset = root.get("next")
        if preset is not None:
            # The policy has written entries of the next step, e.g. the active option.
            for key, value in preset.items():
                entries.setdefault(key, value)
        for step in self._transforms:
            step(carrier, following)
        root["next"] = following
        onward = {
            key: value.copy() if isinstance(value, TensorDictBase) else value
            for key, value in root.items()
            if key not in self._left_out
        }
        onward.update((key, value) for key, value in entries.items() if key not in self._rewards)
        state = TensorDict._new_unsafe(onward, batch_size=carrier.batch_size, device=carrier.device)
        # Any of the flags, as in TorchRL, which checks all of them again if one is true.
        if any(bool(entries[key].any()) for key in self._flags):
            return self._env.maybe_reset(state)
        return state


class DirectRollout:
    """Collects the batches of a TorchRL :class:`~torchrl.collectors.Collector` without its bookkeeping.

    Entries, values and random draws are the same, in a third of the time for one small environment. Steps are those of
    :class:`DirectSteps`. The collector's carrier, the input of the next step, is kept up to date, so that the collector
    can continue at any time. Unlike TorchRL's, a batch does not name its last dimension ``time``.

    Args:
        collector (Collector): with its environment and policy in this process, on one device, without replay buffer,
            hooks or trajectory numbers.

    Examples:
        >>> from torchrl.collectors import Collector
        >>> from torchrl_dceo._fast.rollout import DirectRollout
        >>> from torchrl_dceo.envs import make_env
        >>> env = make_env("NineRooms", batch_size=2)
        >>> collector = Collector(env, None, frames_per_batch=6, total_frames=-1, device="cpu",
        ...     use_buffers=False, track_traj_ids=False)
        >>> DirectRollout(collector)()["next", "pixels"].shape
        torch.Size([2, 3, 3, 19, 19])
        >>> collector.shutdown()
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._step = DirectSteps(collector.env)
        self._num_batch = len(collector.env.batch_size)

    @torch.no_grad()
    def __call__(self) -> TensorDict:
        """Collects the next batch of steps, ``[*E, T]``."""
        collector, steps = self._collector, []
        policy = collector._wrapped_policy
        with set_exploration_type(collector.exploration_type):
            act = None
            if isinstance(policy, PolicySequence) and type(collector._carrier) is TensorDict:
                act = policy.prepared(collector._carrier)
            for _ in range(collector.frames_per_batch):
                carrier = collector._carrier
                if act is not None:
                    act(carrier)
                else:
                    output = policy(carrier)
                    if output is not carrier:
                        carrier.update(output, keys_to_update=collector._policy_output_keys)
                collector._carrier = self._step(carrier)
                steps.append(carrier)
        return _stacked(steps, self._num_batch)


def reason_against(env: EnvBase) -> str | None:
    """The reason why an environment needs TorchRL's own steps, or ``None`` if it does not.

    Examples:
        >>> from torchrl.envs import GymEnv
        >>> from torchrl_dceo._fast.rollout import reason_against
        >>> reason_against(GymEnv("CartPole-v1"))
        'it is no TransformedEnv'
    """
    if type(env) is not TransformedEnv:
        return "it is no TransformedEnv"
    if not isinstance(env.base_env, CompleteSteps):
        return f"{type(env.base_env).__name__} does not return complete steps"
    if env.__dict__.get("_compiled_step_and_maybe_reset") is not None:
        return "its steps are compiled"
    keys = (*env.done_keys, *env.reward_keys, *env.full_observation_spec.keys(True, True))
    if not all(isinstance(key, str) for key in keys):
        return "it has nested entries"
    if env.device is None or env.device.type != "cpu":
        return "it is not on the CPU"
    for transform in _chain(env):
        kind = type(transform)
        # Transforms that change the input of the environment, or run after the step.
        if kind._inv_call is not Transform._inv_call or transform.in_keys_inv:
            return f"{kind.__name__} changes the input of a step"
        if kind.inv is not Transform.inv or kind._post_step_mdp_hooks is not (
            Transform._post_step_mdp_hooks
        ):
            return f"{kind.__name__} does more than a step"
    return None


def _chain(env: TransformedEnv) -> list[Transform]:
    return list(env.transform) if isinstance(env.transform, Compose) else [env.transform]


def _stepper(transform: Transform) -> Callable[[TensorDict, TensorDict], object]:
    """The step of a transform: its own method, or the same on the dictionary of entries."""
    if type(transform) is InitTracker:
        shapes = dict.fromkeys(transform.init_keys, transform.parent.full_done_spec["done"].shape)

        def init(carrier: TensorDict, following: TensorDict) -> None:
            entries = following._tensordict
            for key, shape in shapes.items():
                if key not in entries:
                    entries[key] = torch.zeros(shape, dtype=torch.bool)

        return init
    if type(transform) is RewardSum and all(
        isinstance(key, str) for key in (*transform.in_keys, *transform.out_keys)
    ):
        sums = list(zip(transform.in_keys, transform.out_keys, strict=True))

        def add(carrier: TensorDict, following: TensorDict) -> None:
            root, entries = carrier._tensordict, following._tensordict
            for key, out_key in sums:
                entries[out_key] = root.get(out_key, 0.0) + entries[key]

        return add
    # A subclass may override the step.
    if type(transform) is TensorDictPrimer:
        primed = list(transform.primers.keys(True, True))
        if all(isinstance(key, str) for key in primed):

            def prime(carrier: TensorDict, following: TensorDict) -> None:
                root, entries = carrier._tensordict, following._tensordict
                for key in primed:
                    if key not in entries:
                        entries[key] = root[key]

            return prime

    def own(carrier: TensorDict, following: TensorDict) -> None:
        returned = transform._step(carrier, following)
        if returned is not following:
            following.update(returned)

    return own


def _stacked(steps: list[TensorDict], dim: int) -> TensorDict:
    """Stacks the steps along a new last dimension, without the private entries."""
    size = torch.Size((*steps[0].batch_size, len(steps)))
    entries: Entries = {}
    columns = [step._tensordict for step in steps]
    for key, first in columns[0].items():
        if key.startswith("_"):
            continue
        if isinstance(first, TensorDict):
            entries[key] = _stacked([column[key] for column in columns], dim)
        elif isinstance(first, Tensor) and len(columns) == 1:
            entries[key] = first.unsqueeze(dim)
        else:
            entries[key] = torch.stack([column[key] for column in columns], dim)
    return TensorDict._new_unsafe(entries, batch_size=size, device=steps[0].device)
