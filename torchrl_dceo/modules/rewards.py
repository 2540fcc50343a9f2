"""The intrinsic rewards that turn a representation into options."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor

from torchrl_dceo._fast.parameters import output_of

__all__ = ["EigenReward", "KeyedModule"]

Signs = Literal["+", "-", "both"]
Mode = Literal["telescoped", "discounted", "potential"]


class KeyedModule(TensorDictModuleBase):
    """A module with configurable keys (:meth:`set_keys`), like TorchRL's losses.

    A subclass declares the keys and their defaults in ``_AcceptedKeys`` and calls ``set_keys`` at the end of its
    ``__init__``; ``in_keys`` and ``out_keys`` follow from them.
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change."""

    def __init__(self) -> None:
        super().__init__()
        self._tensor_keys = self._AcceptedKeys()

    @property
    def tensor_keys(self) -> Any:
        """The keys in use."""
        return self._tensor_keys

    def set_keys(self, **keys: NestedKey) -> None:
        """Renames entries that the module reads or writes.

        Args:
            keys: any of the module's keys; ``None`` restores a default.
        """
        known = {field.name: field.default for field in fields(self._AcceptedKeys)}
        for name, key in keys.items():
            if name not in known:
                raise ValueError(
                    f"{name!r} is no key of {type(self).__name__}: it has {', '.join(known)}"
                )
            setattr(self._tensor_keys, name, known[name] if key is None else unravel_key(key))
        self.in_keys = self._keys_read()
        self.out_keys = self._keys_written()

    @abstractmethod
    def _keys_read(self) -> list[NestedKey]:
        """Every entry that the module may read."""

    @abstractmethod
    def _keys_written(self) -> list[NestedKey]:
        """Every entry that the module writes."""


class EigenReward(KeyedModule):
    r"""The eigenoptions' rewards :math:`r_i(s, s') = f_i(s') - f_i(s)`, for all options at once.

    Option i follows the i-th eigenfunction of the Laplacian, the i-th output of ``encoder``, evaluated with the
    encoder's current weights and without gradient. For an n-step transition :math:`(s_t, \dots, s_{t+m})` there are
    three modes:

    - ``"telescoped"``: :math:`f_i(s_{t+m}) - f_i(s_t)`, undiscounted, so the fixed point of the option depends on n;
    - ``"discounted"``: :math:`\sum_{k<m} \gamma^k (f_i(s_{t+k+1}) - f_i(s_{t+k}))`, the n-step return of the one-step
      reward. It reads the intermediate states, ``("window", <obs>)`` of shape ``[*, n, ...]``, which
      :func:`~torchrl_dceo.data.make_replay_buffer` provides with ``window=True``;
    - ``"potential"``: :math:`(1 - \gamma^m) f_i(s_{t+m})`, and :math:`f_i(s_{t+m})` if the episode terminates there. It
      is the telescoped mode with :math:`f_i(s)` added to every value: :math:`Q_i + f_i(s)` satisfies this Bellman
      equation if and only if :math:`Q_i` satisfies the telescoped one, so the greedy policies are the same
      (potential-based shaping, Ng et al. 1999). The learned function stays within the range of f, the gap between
      two actions is a larger share of it, and it changes less when f changes.

    The first eigenfunction is constant and gives no reward, so options start at the second one by default.

    Args:
        encoder (TensorDictModuleBase): the representation f, with one out_key of width d.
        num_options (int): number of eigenfunctions to follow, N.

    Keyword Args:
        skip_first (bool, optional): skip the first output, the constant eigenfunction. Needs d >= N + 1.
            Default: ``True``.
        signs (str, optional): ``"+"`` follows :math:`f_i`, ``"-"`` follows :math:`-f_i`, ``"both"`` gives 2N options,
            the N positive ones first. Default: ``"+"``, as in the paper.
        mode (str, optional): ``"telescoped"``, ``"discounted"`` or ``"potential"``. Default: ``"telescoped"``.
        gamma (float, optional): the options' discount, the same as in their loss. Required by the discounted and the
            potential mode, ignored by the telescoped one.
        single_step (bool, optional): treat the transition as a single step, m = 1, and ignore ``steps_to_next_obs``;
            the same as in :class:`~torchrl_dceo.objectives.OptionDQNLoss`. Default: ``False``.
        successor (NestedKey, optional): prefix of the entries of the state after the transition. Not used by the
            discounted mode. Default: ``"next"``.
        reuse_representation (bool, optional): read f from the encoder's out_key if it is in the tensordict (the
            Laplacian losses write it) instead of computing it again. These values are from before the optimizer's
            step. Default: ``False``.
        window (NestedKey, optional): prefix of the intermediate states. Default: ``"window"``.
        reward_key (NestedKey, optional): where the rewards ``[*, N]`` are written. Default: ``"option_reward"``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.modules import EigenReward
        >>> encoder = TensorDictModule(torch.nn.Linear(2, 4), in_keys=["observation"], out_keys=["representation"])
        >>> reward = EigenReward(encoder, num_options=3)
        >>> batch = TensorDict({"observation": torch.randn(5, 2), "next": {"observation": torch.randn(5, 2)}}, [5])
        >>> reward(batch)["option_reward"].shape
        torch.Size([5, 3])

        It also takes plain tensors, one per key:

        >>> reward(observation=torch.randn(5, 2), next_observation=torch.randn(5, 2)).shape
        torch.Size([5, 3])
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change.

        Attributes:
            successor (NestedKey): prefix of the entries of the state after the transition, flags included.
            window (NestedKey): prefix of the intermediate states.
            option_reward (NestedKey): where the rewards are written.
            terminated (NestedKey): under ``successor``, whether the episode terminated there.
            done (NestedKey): under ``successor``, read where ``terminated`` is missing.
            steps_to_next_obs (NestedKey): m, the steps of the transition; 1 where it is missing.
        """

        successor: NestedKey = "next"
        window: NestedKey = "window"
        option_reward: NestedKey = "option_reward"
        terminated: NestedKey = "terminated"
        done: NestedKey = "done"
        steps_to_next_obs: NestedKey = "steps_to_next_obs"

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        num_options: int,
        *,
        skip_first: bool = True,
        signs: Signs = "+",
        mode: Mode = "telescoped",
        gamma: float | None = None,
        single_step: bool = False,
        successor: NestedKey = "next",
        reuse_representation: bool = False,
        window: NestedKey = "window",
        reward_key: NestedKey = "option_reward",
    ) -> None:
        if num_options < 1:
            raise ValueError(f"num_options must be at least 1, got {num_options}")
        if signs not in get_args(Signs):
            raise ValueError(f"signs must be one of {get_args(Signs)}, got {signs!r}")
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {get_args(Mode)}, got {mode!r}")
        if mode != "telescoped" and (gamma is None or not 0 <= gamma <= 1):
            raise ValueError(f'mode="{mode}" needs gamma in [0, 1], got {gamma}')
        if mode == "discounted" and single_step:
            raise ValueError(
                'mode="discounted" differs from "telescoped" only over several steps: remove single_step=True'
            )
        if len(encoder.out_keys) != 1:
            raise ValueError(f"the encoder must have one out_key, got {list(encoder.out_keys)}")
        super().__init__()
        self.encoder = encoder
        self.num_options = num_options
        self.skip_first = skip_first
        self.signs = signs
        self.mode = mode
        self.gamma = 1.0 if gamma is None else gamma
        self.single_step = single_step
        self.reuse_representation = reuse_representation
        self.set_keys(successor=successor, window=window, option_reward=reward_key)

    def _keys_read(self) -> list[NestedKey]:
        keys = self.tensor_keys
        observations = [*self.encoder.in_keys]
        if self.reuse_representation:
            observations += self.encoder.out_keys
        parent = keys.window if self.mode == "discounted" else keys.successor
        later = [*observations]
        if self.mode == "potential":
            later += [keys.terminated, keys.done]
        read = [*observations, *(unravel_key((parent, key)) for key in later)]
        if self.mode == "potential" and not self.single_step:
            read.append(keys.steps_to_next_obs)
        return read

    def _keys_written(self) -> list[NestedKey]:
        return [self.tensor_keys.option_reward]

    @property
    def num_rewards(self) -> int:
        """How many options the rewards are for: N, or 2N with both signs."""
        return self.num_options * (2 if self.signs == "both" else 1)

    def _features(self, tensordict: TensorDictBase) -> Tensor:
        key = self.encoder.out_keys[0]
        stored = tensordict.get(key, None) if self.reuse_representation else None
        features = output_of(self.encoder, tensordict, key) if stored is None else stored
        first = int(self.skip_first)
        if features.shape[-1] < self.num_options + first:
            raise ValueError(
                f"{self.num_options} options with skip_first={self.skip_first} need an encoder of at least "
                f"{self.num_options + first} dimensions, got {features.shape[-1]}"
            )
        return features[..., first : first + self.num_options]

    def _signed(self, values: Tensor) -> Tensor:
        if self.signs == "both":
            return torch.cat([values, -values], -1)
        return values if self.signs == "+" else -values

    @torch.no_grad()
    def followed(self, tensordict: TensorDictBase) -> Tensor:
        """The function that each option climbs, at the root state: f_i or -f_i, ``[*, N]`` or ``[*, 2N]``."""
        return self._signed(self._features(tensordict))

    # Without the automatic batch size, which would take an observation's own dimensions for batch dimensions.
    @dispatch(auto_batch_size=False)
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the rewards of all options."""
        if self.mode == "potential":
            reward = self._potential(tensordict)
        elif self.mode == "telescoped":
            reward = self._features(self._next(tensordict)) - self._features(tensordict)
        else:
            reward = self._discounted(self._features(tensordict), tensordict)
        tensordict.set(self.tensor_keys.option_reward, self._signed(reward))
        return tensordict

    @torch.no_grad()
    def value_offset(self, tensordict: TensorDictBase) -> Tensor:
        """The offset of the option values at the root state, ``[*, N]``.

        It is :math:`f_i(s)` in the potential mode and 0 otherwise. An option whose action values are all below the
        offset gains nothing by any action.
        """
        values = self.followed(tensordict)
        return values if self.mode == "potential" else torch.zeros_like(values)

    def _next(self, tensordict: TensorDictBase) -> TensorDictBase:
        key = self.tensor_keys.successor
        next_td = tensordict.get(key, None)
        if next_td is None:
            raise KeyError(
                f"EigenReward reads the state after the step under {key!r}, which the batch does not contain: choose "
                "another key with successor=…"
            )
        return next_td

    def _potential(self, tensordict: TensorDictBase) -> Tensor:
        keys, next_td = self.tensor_keys, self._next(tensordict)
        features = self._features(next_td)
        steps = None if self.single_step else tensordict.get(keys.steps_to_next_obs, None)
        kept = self.gamma if steps is None else self.gamma ** steps.view(*features.shape[:-1], 1)
        terminated = next_td.get(keys.terminated, None)
        if terminated is None:
            terminated = next_td.get(keys.done, None)
        # Without flags, no step terminates.
        return features * (1 - (kept if terminated is None else kept * ~terminated))

    def _discounted(self, features: Tensor, tensordict: TensorDictBase) -> Tensor:
        key = self.tensor_keys.window
        window = tensordict.get(key, None)
        if window is None:
            raise KeyError(
                f'mode="discounted" reads the intermediate states under {key!r}, which the batch does not contain: '
                "build the replay buffer with window=True"
            )
        later = self._features(window.auto_batch_size_(features.ndim))
        states = torch.cat([features.unsqueeze(-2), later], -2)
        # The window repeats its last state after m steps, so the differences past m are 0.
        discounts = self.gamma ** torch.arange(
            later.shape[-2], device=later.device, dtype=later.dtype
        )
        return torch.einsum("...kn,k->...n", states.diff(dim=-2), discounts)
