"""Slipping: the action is overwritten by a uniformly random one with a given probability."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Slip"]

_BLOCK_STEPS, _BLOCK_NUMBERS = 256, 2**16


class Slip:
    """Overwrites actions with probability ``probability``, with random numbers drawn in blocks.

    A step of a small batch is a handful of tensor operations, and drawing one number an environment would be a third of
    them. So the draws of many steps are made at once, and a step is one ``torch.where``.

    The random action may be the chosen one: with A actions the action changes with probability
    ``probability * (A - 1) / A``.

    Args:
        probability (float): in [0, 1].
        num_actions (int): the number of actions.

    Keyword Args:
        batch_size (Sequence[int]): shape of the actions.
        seed (int): seed of the random numbers.
        device (torch.device): device of the actions.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs.slip import Slip
        >>> slip = Slip(0.15, 4, batch_size=[10_000], seed=0)
        >>> action = torch.zeros(10_000, dtype=torch.int64)
        >>> round((slip(action) != action).float().mean().item(), 2)  # 0.15 * 3 / 4
        0.11
    """

    def __init__(
        self,
        probability: float,
        num_actions: int,
        *,
        batch_size: Sequence[int] = (),
        seed: int,
        device: torch.device | str | None = None,
    ) -> None:
        self.probability, self.num_actions = probability, num_actions
        self._device = torch.device("cpu") if device is None else torch.device(device)
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        steps = _BLOCK_NUMBERS // max(1, torch.Size(batch_size).numel())
        self._shape = (max(1, min(_BLOCK_STEPS, steps)), *batch_size)
        self._used: int
        self._keep: tuple[Tensor, ...]
        self._random: tuple[Tensor, ...]
        self._next_block()

    def __call__(self, action: Tensor) -> Tensor:
        """Returns what is done in place of ``action`` (a new tensor)."""
        if self._used == self._shape[0]:
            self._next_block()
        step, self._used = self._used, self._used + 1
        return torch.where(self._keep[step], action, self._random[step])

    def _uniform(self) -> Tensor:
        return torch.rand(
            self._shape, generator=self._generator, dtype=torch.float64, device=self._device
        )

    def _next_block(self) -> None:
        self._block_state = self._generator.get_state()
        self._used = 0
        u = self._uniform()
        keep = u >= self.probability
        # Given u < p, u / p is uniform again: one number serves both choices.
        random = (u * (self.num_actions / max(self.probability, 1e-12))).long()
        random.clamp_(max=self.num_actions - 1)
        self._keep, self._random = keep.unbind(0), random.unbind(0)

    def get_state(self) -> dict[str, Tensor]:
        """Returns where in the random numbers it is, as plain tensors."""
        return {"generator": self._block_state.clone(), "used": torch.tensor(self._used)}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Goes on from where :meth:`get_state` was called, by drawing that block again."""
        self._generator.set_state(state["generator"].cpu())
        self._next_block()
        self._used = int(state["used"])
