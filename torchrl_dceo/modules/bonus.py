"""Exploration bonuses, added to the reward of a sampled batch, and the running statistics that scale them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn

from torchrl_dceo.modules.rewards import KeyedModule

__all__ = ["CountBonus", "RNDBonus", "RunningMoments", "RunningNormalizer"]


class RunningMoments(nn.Module):
    """Mean and variance over all batches so far, one for each feature, saved with the module.

    Batches are merged by the parallel formula of Chan, Golub & LeVeque (1983), which stays precise for large means.

    Args:
        shape (sequence of int): the shape of one sample. Default: ``()``, a number.

    Keyword Args:
        eps (float): added to the variance before its root is taken. Default: ``1e-8``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules import RunningMoments
        >>> moments = RunningMoments()
        >>> moments.update(torch.tensor([1.0, 2.0]))
        >>> moments.update(torch.tensor([3.0]))
        >>> moments.mean, moments.var
        (tensor(2.), tensor(0.6667))
    """

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, shape: Sequence[int] = (), *, eps: float = 1e-8) -> None:
        super().__init__()
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps}")
        self.eps = eps
        # int64: float32 cannot count past 16 million.
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(tuple(shape)))
        self.register_buffer("var", torch.ones(tuple(shape)))

    @property
    def std(self) -> Tensor:
        """The standard deviation, never 0."""
        return (self.var + self.eps).sqrt()

    @torch.no_grad()
    def update(self, batch: Tensor) -> None:
        """Adds a batch ``[*, *shape]`` to the statistics."""
        shape = self.mean.shape
        if batch.shape[batch.ndim - len(shape) :] != shape:
            raise ValueError(
                f"statistics of samples of shape {tuple(shape)} cannot use a batch of shape {tuple(batch.shape)}"
            )
        rows = batch.reshape(-1, *shape).to(self.mean.dtype)
        if not rows.shape[0]:
            return
        self.count += rows.shape[0]
        weight = (rows.shape[0] / self.count.double()).to(rows.dtype)
        mean = rows.mean(0)
        variance = (rows - mean).square().mean(0)
        delta = mean - self.mean
        self.mean += weight * delta
        self.var.lerp_(variance, weight)
        self.var += weight * (1 - weight) * delta.square()


class RunningNormalizer(RunningMoments):
    """Observations minus their mean, divided by their standard deviation, clipped: each pixel by its own statistics.

    Only :meth:`update` changes the statistics, so that several networks can share the module. A pixel that changes
    for the first time is far from its mean and is clipped.

    Args:
        shape (sequence of int): the shape of one observation.

    Keyword Args:
        clip (float): the largest absolute value of the result. Default: ``5.0``, as in Burda et al. (2019).
        eps (float): added to the variance before its root is taken. Default: ``1e-8``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules import RunningNormalizer
        >>> normalize = RunningNormalizer((2,))
        >>> normalize.update(torch.tensor([[0.0, 7.0], [2.0, 7.0]]))
        >>> normalize(torch.tensor([[2.0, 7.0], [9.0, 8.0]]))
        tensor([[1., 0.],
                [5., 5.]])
    """

    def __init__(self, shape: Sequence[int], *, clip: float = 5.0, eps: float = 1e-8) -> None:
        super().__init__(shape, eps=eps)
        if not (clip > 0 and math.isfinite(clip)):
            raise ValueError(f"clip must be positive and finite, got {clip}")
        self.clip = clip

    def forward(self, observation: Tensor) -> Tensor:
        """Normalises observations ``[*, *shape]`` of any dtype."""
        return ((observation.to(self.mean.dtype) - self.mean) / self.std).clamp(
            -self.clip, self.clip
        )


class _Bonus(KeyedModule):
    """Adds β times a bonus to the reward; a subclass computes it."""

    logged_keys = ("bonus",)

    def __init__(self, scale: float) -> None:
        super().__init__()
        if not (scale >= 0 and math.isfinite(scale)):
            raise ValueError(f"scale must be finite and not negative, got {scale}")
        self.scale = scale

    @property
    @abstractmethod
    def _read_key(self) -> NestedKey:
        """The key of the entry that the bonus is computed from."""

    def _keys_read(self) -> list[NestedKey]:
        return [self._read_key, self.tensor_keys.reward]

    def _keys_written(self) -> list[NestedKey]:
        return [self.tensor_keys.reward, *self.logged_keys]

    @abstractmethod
    def _bonus(self, entry: Tensor) -> Tensor:
        """The bonus of the batch, before the multiplication with β."""

    # Without the automatic batch size, which would take an observation's own dimensions for batch dimensions.
    @dispatch(auto_batch_size=False)
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes reward + β·bonus, and the bonus itself."""
        entry = tensordict.get(self._read_key, None)
        if entry is None:
            raise KeyError(
                f"{type(self).__name__} reads {self._read_key!r}, which the batch does not contain: add it to the "
                "entries that the replay buffer returns for next states"
            )
        reward = tensordict.get(self.tensor_keys.reward)
        bonus = self._bonus(entry).to(reward.dtype).view(reward.shape)
        tensordict.set(self.tensor_keys.reward, reward + self.scale * bonus)
        tensordict.set("bonus", bonus)
        return tensordict


class CountBonus(_Bonus):
    r"""The bonus of count-based exploration, :math:`\beta / \sqrt{n(s')}`, with the current counts.

    It runs before the main loss, on a batch from the replay buffer, so the bonus of a stored transition decreases as
    its state is visited again. An n-step transition gets one bonus, that of its last state.

    Args:
        bonus (callable): maps state ids ``[*]`` to :math:`1/\sqrt{n(s)}`, e.g. the method ``bonus`` of an environment's
            :class:`~torchrl_dceo.envs.StateCounts`.

    Keyword Args:
        scale (float): β.
        state_key (NestedKey, optional): the ids. Default: ``("next", "state_id")``.
        reward_key (NestedKey, optional): the reward to add the bonus to. Default: ``("next", "reward")``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.modules import CountBonus
        >>> counts = torch.tensor([4, 100, 1])
        >>> add_bonus = CountBonus(lambda ids: counts[ids].rsqrt(), scale=0.1)
        >>> batch = TensorDict({"next": {"state_id": torch.tensor([0, 1]), "reward": torch.zeros(2, 1)}}, [2])
        >>> add_bonus(batch)["next", "reward"]
        tensor([[0.0500],
                [0.0100]])
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change.

        Attributes:
            state_id (NestedKey): the index of the state after the transition.
            reward (NestedKey): the reward to add the bonus to.
        """

        state_id: NestedKey = ("next", "state_id")
        reward: NestedKey = ("next", "reward")

    @property
    def _read_key(self) -> NestedKey:
        return self.tensor_keys.state_id

    def __init__(
        self,
        bonus: Callable[[Tensor], Tensor],
        *,
        scale: float,
        state_key: NestedKey = ("next", "state_id"),
        reward_key: NestedKey = ("next", "reward"),
    ) -> None:
        super().__init__(scale)
        self._of_states = bonus
        self.set_keys(state_id=state_key, reward=reward_key)

    def _bonus(self, entry: Tensor) -> Tensor:
        return self._of_states(entry)


class RNDBonus(_Bonus):
    r"""The bonus of random network distillation (Burda et al. 2019, https://arxiv.org/abs/1810.12894).

    The error :math:`\tfrac1k \lVert \hat g(x) - g(x) \rVert^2` of a predictor against a fixed random network at the
    normalised next observation x, divided by the standard deviation of all errors so far. It is computed when
    sampling, with the current predictor; TorchRL's :class:`~torchrl.objectives.RNDLoss` trains the predictor.

    Each call first adds the batch to the statistics of observations and errors, unless the module is in ``eval()``
    mode. Burda et al. divide by the standard deviation of the intrinsic *return*, a running sum along each rollout.
    Samples from a replay buffer have no order, so here it is that of the bonus itself. As in the paper, it is taken
    over all time, so the bonus fades as the predictor learns.

    Args:
        predictor (nn.Module): the network that learns.
        target (nn.Module): the random network. Its parameters are frozen by ``RNDLoss``.

    Keyword Args:
        scale (float): β.
        normalizer (RunningNormalizer, optional): the first layer of both networks, updated by this module.
        observation_key (NestedKey, optional): the observation. Default: ``("next", "pixels")``.
        reward_key (NestedKey, optional): the reward to add the bonus to. Default: ``("next", "reward")``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torch import nn
        >>> from torchrl.objectives import RNDLoss
        >>> from torchrl_dceo.modules import RNDBonus, RunningNormalizer
        >>> from torchrl_dceo.modules.networks import grid_net
        >>> normalizer = RunningNormalizer((3, 13, 13))
        >>> predictor, target = (nn.Sequential(normalizer, grid_net((3, 13, 13), 128)) for _ in range(2))
        >>> add_bonus = RNDBonus(predictor, target, scale=0.5, normalizer=normalizer)
        >>> loss = RNDLoss(predictor, target, update_fraction=1.0)
        >>> loss.set_keys(observation=("next", "pixels"))
        >>> pixels = torch.randint(256, (32, 3, 13, 13), dtype=torch.uint8)
        >>> batch = TensorDict({"next": {"pixels": pixels, "reward": torch.zeros(32, 1)}}, [32])
        >>> batch = add_bonus(batch)
        >>> loss(batch)["loss_predictor"].backward()
        >>> bool((batch["next", "reward"] == 0.5 * batch["bonus"]).all())
        True
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change.

        Attributes:
            observation (NestedKey): the observation after the transition.
            reward (NestedKey): the reward to add the bonus to.
        """

        observation: NestedKey = ("next", "pixels")
        reward: NestedKey = ("next", "reward")

    @property
    def _read_key(self) -> NestedKey:
        return self.tensor_keys.observation

    def __init__(
        self,
        predictor: nn.Module,
        target: nn.Module,
        *,
        scale: float,
        normalizer: RunningNormalizer | None = None,
        observation_key: NestedKey = ("next", "pixels"),
        reward_key: NestedKey = ("next", "reward"),
    ) -> None:
        super().__init__(scale)
        self.predictor = predictor
        self.target = target
        self.normalizer = normalizer
        # Errors of untrained networks can be as small as 1e-4, where the usual 1e-8 would matter.
        self.errors = RunningMoments(eps=1e-12)
        self.set_keys(observation=observation_key, reward=reward_key)

    def _bonus(self, entry: Tensor) -> Tensor:
        observation = entry if entry.is_floating_point() else entry.float()  # as RNDLoss does
        if self.normalizer is not None and self.training:
            self.normalizer.update(observation)
        error = (self.predictor(observation) - self.target(observation)).square().mean(-1)
        if self.training:
            self.errors.update(error)
        return error / self.errors.std
