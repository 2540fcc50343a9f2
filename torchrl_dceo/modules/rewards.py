"""The intrinsic rewards that turn a representation into options."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor

from torchrl_dceo._fast.parameters import output_of

__all__ = ["EigenReward"]

Signs = Literal["+", "-", "both"]
Mode = Literal["telescoped", "discounted", "potential"]


class EigenReward(TensorDictModuleBase):
    r"""The eigenoptions' rewards :math:`r_i(s, s') = f_i(s') - f_i(s)`, for all options at once.

    Option i climbs the i-th eigenfunction of the Laplacian, here the i-th output of ``encoder``, evaluated with the
    encoder's current weights and without gradient. Over an n-step transition :math:`(s_t, \dots, s_{t+m})` there are
    three readings:

    - ``"telescoped"``: :math:`f_i(s_{t+m}) - f_i(s_t)`, undiscounted, so the fixed point of the option depends on n;
    - ``"discounted"``: :math:`\sum_{k<m} \gamma^k (f_i(s_{t+k+1}) - f_i(s_{t+k}))`, the n-step return of the one-step
    reward.
      It reads the states between, ``("window", <obs>)`` of shape ``[*, n, ...]``, which
      :func:`~torchrl_dceo.data.make_replay_buffer` gives on request;
    - ``"potential"``: :math:`(1 - \gamma^m) f_i(s_{t+m})`, and :math:`f_i(s_{t+m})` if the episode terminates there. It
      is the telescoped reading with :math:`f_i(s)` added to every value: :math:`Q_i + f_i(s)` obeys this equation if
      and only if :math:`Q_i` obeys the telescoped one, so the greedy policies are the same (potential-based shaping,
      Ng et al. 1999). What is left to learn is where f will be, without what it is now: a function within the range
      of f, in which the gap between two actions is a larger share, and which moves less when f does.

    The first eigenfunction is constant and rewards nothing, so options start at the second one by default.

    Args:
        encoder (TensorDictModuleBase): the representation f, with one out_key of width d.
        num_options (int): number of eigenfunctions that are followed, N.

    Keyword Args:
        skip_first (bool, optional): leave out the first output, the constant eigenfunction. Needs d >= N + 1.
            Default: ``True``.
        signs (str, optional): ``"+"`` follows :math:`f_i`, ``"-"`` follows :math:`-f_i`, ``"both"`` gives 2N options,
        the N
            positive ones first. Default: ``"+"``, as in the paper.
        mode (str, optional): ``"telescoped"``, ``"discounted"`` or ``"potential"``. Default: ``"telescoped"``.
        gamma (float, optional): the options' discount, the same as in their loss; needed by, and only used in, the
            discounted and the potential mode.
        successor (NestedKey, optional): where the state after the transition is; anything but ``"next"`` is one step on
            (as in :class:`~torchrl_dceo.objectives.OptionDQNLoss`). Not used by the discounted mode. Default:
            ``"next"``.
        reuse_representation (bool, optional): take f of either state from the encoder's out_key if the tensordict has
            it there (the Laplacian losses leave it), instead of computing it again. The values are then from before
            the optimizer's step. Default: ``False``.
        window (NestedKey, optional): where the states between are. Default: ``"window"``.
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
    """

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        num_options: int,
        *,
        skip_first: bool = True,
        signs: Signs = "+",
        mode: Mode = "telescoped",
        gamma: float | None = None,
        successor: NestedKey = "next",
        reuse_representation: bool = False,
        window: NestedKey = "window",
        reward_key: NestedKey = "option_reward",
    ) -> None:
        super().__init__()
        if num_options < 1:
            raise ValueError(f"num_options must be at least 1, got {num_options}")
        if signs not in get_args(Signs):
            raise ValueError(f"signs must be one of {get_args(Signs)}, got {signs!r}")
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {get_args(Mode)}, got {mode!r}")
        if mode != "telescoped" and (gamma is None or not 0 <= gamma <= 1):
            raise ValueError(f'mode="{mode}" needs gamma in [0, 1], got {gamma}')
        if len(encoder.out_keys) != 1:
            raise ValueError(f"the encoder must have one out_key, got {list(encoder.out_keys)}")
        self.encoder = encoder
        self.num_options = num_options
        self.skip_first = skip_first
        self.signs = signs
        self.mode = mode
        self.gamma = 1.0 if gamma is None else gamma
        self.successor = successor
        self.reuse_representation = reuse_representation
        self.window = window
        later = window if mode == "discounted" else successor
        self.in_keys = [*encoder.in_keys, *(unravel_key((later, key)) for key in encoder.in_keys)]
        self.out_keys = [reward_key]

    @property
    def num_rewards(self) -> int:
        """How many options the rewards are for: N, or 2N with both signs."""
        return self.num_options * (2 if self.signs == "both" else 1)

    def _features(self, tensordict: TensorDictBase) -> Tensor:
        key = self.encoder.out_keys[0]
        stored = tensordict.get(key, None) if self.reuse_representation else None
        return self._followed(
            output_of(self.encoder, tensordict, key) if stored is None else stored
        )

    def _followed(self, features: Tensor) -> Tensor:
        first = int(self.skip_first)
        if features.shape[-1] < self.num_options + first:
            raise ValueError(
                f"{self.num_options} options with skip_first={self.skip_first} need an encoder of at least "
                f"{self.num_options + first} dimensions, got {features.shape[-1]}"
            )
        return features[..., first : first + self.num_options]

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the rewards of all options."""
        if self.mode == "potential":
            reward = self._potential(tensordict)
        elif self.mode == "telescoped":
            reward = self._features(self._after(tensordict)) - self._features(tensordict)
        else:
            reward = self._discounted(self._features(tensordict), tensordict)
        if self.signs == "-":
            reward = -reward
        elif self.signs == "both":
            reward = torch.cat([reward, -reward], -1)
        tensordict.set(self.out_keys[0], reward)
        return tensordict

    def _after(self, tensordict: TensorDictBase) -> TensorDictBase:
        following = tensordict.get(self.successor, None)
        if following is None:
            raise KeyError(
                f"EigenReward reads the state after the step under {self.successor!r}, which is not there"
            )
        return following

    def _potential(self, tensordict: TensorDictBase) -> Tensor:
        following = self._after(tensordict)
        later = self._features(following)
        single = self.successor != "next"
        steps = None if single else tensordict.get("steps_to_next_obs", None)
        kept = self.gamma if steps is None else self.gamma ** steps.view(*later.shape[:-1], 1)
        terminated = following.get("terminated", None)
        if terminated is None:
            terminated = following.get("done", None)
        # Steps without flags, of a plain rollout say, end nowhere.
        return later * (1 - (kept if terminated is None else kept * ~terminated))

    def _discounted(self, here: Tensor, tensordict: TensorDictBase) -> Tensor:
        window = tensordict.get(self.window, None)
        if window is None:
            raise KeyError(
                f'mode="discounted" reads the states between under {self.window!r}: make the replay '
                "buffer with window=True"
            )
        later = self._features(window.auto_batch_size_(tensordict.ndim + 1))
        states = torch.cat([here.unsqueeze(-2), later], -2)
        # The window repeats its last state after m steps, so the differences past m vanish by themselves.
        discounts = self.gamma ** torch.arange(
            later.shape[-2], device=later.device, dtype=later.dtype
        )
        return torch.einsum("...kn,k->...n", states.diff(dim=-2), discounts)
