"""Options solved to convergence on their intrinsic reward, for all seeds and options at once."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["solve_options"]

_SWEEPS_BETWEEN_CHECKS = 8
TOLERANCE = 1e-6
"""What values are exact to, and what counts as 0."""


def solve_options(
    probabilities: Tensor,
    successors: Tensor,
    eigenvectors: Tensor,
    *,
    gamma: float = 0.9,
    tolerance: float = TOLERANCE,
    max_sweeps: int = 10_000,
) -> Tensor:
    r"""Returns the optimal action values of options that climb eigenvectors, by value iteration.

    Option i is paid :math:`r_i(s, s') = f_i(s') - f_i(s)` and may stop anywhere for nothing (Machado et al. 2017,
    https://arxiv.org/abs/1703.00956), so

    .. math:: q_i(s, a) = \sum_{s'} \hat P(s' | s, a) \left[r_i(s, s') + \gamma \max\{0, \max_{a'} q_i(s', a')\}\right],

    and it stops where :math:`q_i(s, a) \le 0` for all a: at the (local) maxima of its value. An action that was never
    taken has value 0.

    Args:
        probabilities (Tensor): :math:`\hat P`, float64 ``[B, S, A, K]``, as from
            :meth:`~torchrl_dceo.tabular.TransitionGraph.model`.
        successors (Tensor): int64 ``[B, S, K]``.
        eigenvectors (Tensor): f, float64 ``[B, S, N]``.

    Keyword Args:
        gamma (float): the options' discount, below 1: then every option stops somewhere. Default: 0.9.
        tolerance (float): values are exact up to this much, and a value within it counts as 0. Default: 1e-6.
        max_sweeps (int): where to give up. Default: 10,000.

    Returns:
        q, float64 ``[B, N, S, A]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.tabular import solve_options
        >>> moves = torch.eye(2, dtype=torch.float64).expand(1, 3, 2, 2)  # action 0 to the left, action 1 to the right
        >>> neighbours = torch.tensor([[[0, 1], [0, 2], [1, 2]]])
        >>> climb = torch.tensor([-1.0, 0.0, 1.0]).double().view(1, 3, 1)
        >>> solve_options(moves, neighbours, climb)[0, 0].round(decimals=6).tolist()
        [[1.71, 1.9], [0.71, 1.0], [-0.1, 0.0]]
    """
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma must lie in [0, 1), got {gamma}")
    num_seeds, num_states, num_actions, slots = probabilities.shape
    num_options = eigenvectors.shape[-1]
    # Seeds side by side as one large world, and of it only the states that were left at least once.
    offsets = torch.arange(num_seeds).view(-1, 1, 1) * num_states
    following = (successors + offsets).view(-1, slots)
    matrices = probabilities.reshape(-1, num_actions, slots)
    left = matrices.sum((1, 2)).nonzero().squeeze(-1)
    following, matrices = following[left].flatten(), matrices[left]
    f = eigenvectors.reshape(-1, num_options)

    def expected(values: Tensor) -> Tensor:  # [B·S, N] -> [left, A, N]
        return matrices @ values.index_select(0, following).view(-1, slots, num_options)

    reward = expected(f) - matrices.sum(-1, keepdim=True) * f[left].unsqueeze(1)
    values = torch.zeros_like(f)
    error = tolerance
    for sweep in range(1, max_sweeps + 1):
        best = (reward + gamma * expected(values)).amax(1).clamp_(min=0)
        if sweep % _SWEEPS_BETWEEN_CHECKS == 0:
            # A sweep that changes δ leaves an error of δ γ / (1 - γ) at most.
            error = float((best - values[left]).abs().max()) * gamma / (1 - gamma)
        values[left] = best
        if sweep % _SWEEPS_BETWEEN_CHECKS == 0 and error < tolerance:
            break
    else:
        raise RuntimeError(
            f"the options did not converge in {max_sweeps} sweeps (error {error:.2g}): lower gamma or raise tolerance"
        )
    solved = reward + gamma * expected(values)
    solved = torch.where(solved.abs() <= tolerance, 0.0, solved)
    result = solved.new_zeros(num_seeds * num_states, num_actions, num_options)
    result[left] = solved
    return result.view(num_seeds, num_states, num_actions, num_options).permute(0, 3, 1, 2)
