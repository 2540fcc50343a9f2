"""Selection of options: uniform (the paper), or towards states that were rarely visited recently."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from torchrl_dceo.modules.rewards import EigenReward

__all__ = ["DirectedSelection", "Selection", "uniform_selection"]

Selection = Callable[[TensorDictBase, int], Tensor]


def uniform_selection(tensordict: TensorDictBase, num_options: int) -> Tensor:
    """Draws an option uniformly for every environment: Algorithm 1's choice.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.modules.selection import uniform_selection
        >>> uniform_selection(TensorDict({"option": torch.full((3,), -1)}, [3]), num_options=10).shape
        torch.Size([3])
    """
    return torch.randint(num_options, tensordict.shape, device=tensordict.device)


class DirectedSelection(nn.Module):
    r"""Prefers options that lead away from recently visited states.

    With uniform state weights an eigenfunction :math:`f_i` has mean 0. Its running mean over the collected states,
    :math:`m_i = \mathbb E f_i(s_t)`, is positive if the agent is mostly in states with a large :math:`f_i`. An option
    that follows :math:`\sigma f_i`, :math:`\sigma = \pm 1`, is started with probability

    .. math:: p(i, \sigma) \propto \exp(-\kappa\, \sigma m_i) .

    So the direction of an eigenfunction is chosen by visits, as in covering options (Jinnai et al. 2019). As soon
    as the other end is visited as often, both directions are equally likely again. :math:`\kappa = 0` is the paper's
    uniform choice. f has to be learned over distinct states (``replay_measure="distinct"``): with states weighted by
    their visits, the mean is 0 by construction.

    Pass it as ``selection`` to :class:`~torchrl_dceo.modules.OptionExplorationModule`, and every collected batch to
    :meth:`observe`. The probabilities are a buffer: they are saved with the policy and sent to workers with its
    weights.

    Args:
        reward (EigenReward): defines the functions that the options follow.

    Keyword Args:
        strength (float): :math:`\kappa`. Default: ``3.0``.
        horizon (int): horizon of the running mean, in frames. Default: ``2000``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_dceo.modules import DirectedSelection, EigenReward
        >>> encoder = TensorDictModule(torch.nn.Identity(), in_keys=["observation"], out_keys=["representation"])
        >>> reward = EigenReward(encoder, num_options=1, skip_first=False, signs="both")
        >>> select = DirectedSelection(reward)
        >>> select.observe(TensorDict({"observation": torch.ones(100, 1)}, [100]))  # f = 1 everywhere
        >>> [round(p, 3) for p in select.probabilities.tolist()]  # so -f is followed: 1 / (1 + exp(-6))
        [0.002, 0.998]
    """

    mean: Tensor
    weight: Tensor
    probabilities: Tensor

    def __init__(self, reward: EigenReward, *, strength: float = 3.0, horizon: int = 2000) -> None:
        super().__init__()
        if not strength >= 0:
            raise ValueError(f"strength must not be negative, got {strength}")
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1 frame, got {horizon}")
        # A tuple does not register it: the reward belongs to the agent's objectives, not to the policy.
        self._reward = (reward,)
        self.strength = strength
        self.horizon = horizon
        number = reward.num_rewards
        self.register_buffer("mean", torch.zeros(number))
        self.register_buffer("weight", torch.zeros(()))
        self.register_buffer("probabilities", torch.full((number,), 1 / number))

    @torch.no_grad()
    def observe(self, tensordict: TensorDictBase) -> None:
        """Adds the states of a collected batch to the running mean.

        Args:
            tensordict (TensorDictBase): contains the encoder's entries, with any batch shape.
        """
        (reward,) = self._reward
        frames, device = tensordict.numel(), self.mean.device
        entries = {key: tensordict.get(key) for key in reward.encoder.in_keys}
        states = TensorDict(
            {
                # The collector may run on another device than the networks.
                key: entry.reshape(frames, *entry.shape[tensordict.ndim :]).to(device)
                for key, entry in entries.items()
            },
            [frames],
        )
        kept = (1 - 1 / self.horizon) ** frames
        self.mean.mul_(kept).add_(reward.followed(states).mean(0), alpha=1 - kept)
        self.weight.mul_(kept).add_(1 - kept)
        # In place, because collectors hold references to it.
        self.probabilities.copy_((-self.strength * self.mean / self.weight).softmax(0))

    def forward(self, tensordict: TensorDictBase, num_options: int) -> Tensor:
        """Draws an option for every environment."""
        if num_options != len(self.probabilities):
            raise ValueError(
                f"num_options must be the {len(self.probabilities)} of the reward, got {num_options}"
            )
        shape = tensordict.shape
        drawn = torch.multinomial(self.probabilities, shape.numel(), replacement=True)
        return drawn.view(shape)
