"""Steps of environments in this process, past the collector: the same transitions with less around them."""

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

__all__ = ["CompleteSteps", "DirectRollout", "reason_against"]

Entries = dict[str, Any]
_SILENT = (InitTracker, RewardSum, TensorDictPrimer)


class CompleteSteps:
    """Mixin of an environment whose ``_step`` returns every entry of its specs, in their shapes and dtypes.

    Where one of its flags is true, ``done`` is.

    What :meth:`torchrl.envs.EnvBase.step` does around such a step (completing flags, checking rewards) changes
    nothing, and may be left out.
    """


class DirectRollout:
    """The batches of a TorchRL :class:`~torchrl.collectors.Collector`, made without its bookkeeping.

    The same entries with the same values and the same random draws, in a third of the time for one small environment.
    Where an episode ends TorchRL resets, in its own way; what is shortened is the step in which nothing ends. The
    collector keeps its carrier, the step that is about to be taken, so that it can take over at any time. Time is not a
    name of a batch's last dimension, as it is with TorchRL's.

    Args:
        collector (Collector): with its environment and policy in this process, on one device, and nothing else to do:
            no replay buffer, hooks or trajectory numbers.

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
        env = collector.env
        reason = reason_against(env)
        if reason is not None:
            raise ValueError(f"this environment cannot be stepped directly: {reason}")
        self._collector = collector
        self._env = env
        self._base: EnvBase = env.base_env
        self._transforms = [_stepper(transform) for transform in _chain(env)]
        self._left_out = {"next", "_reset", *env.done_keys, *env.reward_keys}
        self._rewards = set(env.reward_keys)
        # Others than these may set a flag and not ``done``.
        silent = all(type(transform) in _SILENT for transform in _chain(env))
        self._flags: list[Any] = ["done"] if silent else env.done_keys

    @torch.no_grad()
    def __call__(self) -> TensorDict:
        """The next batch of steps, ``[*E, T]``."""
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
        return _stacked(steps, len(self._env.batch_size))

    def _step(self, carrier: TensorDict) -> TensorDictBase:
        """Steps the environment: writes ``next`` into the carrier, and returns the carrier of the step to come."""
        root: Entries = carrier._tensordict
        following = self._base._step(carrier)
        entries: Entries = following._tensordict
        preset = root.get("next")
        if preset is not None:
            # The policy has set entries of the next step, e.g. the option that continues.
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
        # Any of the flags, as in TorchRL: it looks at all of them again if there is one.
        if any(bool(entries[key].any()) for key in self._flags):
            return self._env.maybe_reset(state)
        return state


def reason_against(env: EnvBase) -> str | None:
    """Why an environment's steps need all that TorchRL does, or ``None`` if they do not.

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
        # Those that change what goes into the environment, or what comes after the step.
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
    """What a transform does in a step: its own method, or the same on the entries themselves."""
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
    # A subclass may have a step of its own.
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
    """The steps along a new last dimension, without the private entries."""
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
