"""Rayleigh-Ritz: the eigenfunctions within the span of a learned representation, in closed form."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

__all__ = ["RayleighRitz", "RayleighRitzStep", "RitzSolution", "ritz"]

_MISSING = 1e-10  # relative to the largest second moment: directions below it are not in the span


class RitzSolution(NamedTuple):
    """The result of :func:`ritz`.

    Attributes:
        eigenvalues (Tensor): ascending, ``[d]``; infinite for directions missing in the span.
        rotation (Tensor): ``[d, d]``, r_i as column i: f·r_i is the i-th eigenfunction; 0 for directions that are
            missing.
    """

    eigenvalues: Tensor
    rotation: Tensor


def ritz(smoothness: Tensor, moments: Tensor) -> RitzSolution:
    r"""Solves :math:`A r = \lambda M r` for the d x d matrices of a representation.

    Args:
        smoothness (Tensor): :math:`A = \tfrac12 E (f(s) - f(s'))(f(s) - f(s'))^\top`, ``[d, d]``.
        moments (Tensor): :math:`M = E f f^\top`, ``[d, d]``, singular where a dimension has collapsed.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules.rayleigh_ritz import ritz
        >>> mixed = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        >>> values, rotation = ritz(mixed @ torch.diag(torch.tensor([0.0, 0.5]).double()) @ mixed.T, mixed @ mixed.T)
        >>> values.round(decimals=4).tolist()
        [0.0, 0.5]
    """
    scales, basis = torch.linalg.eigh(moments)
    kept = scales > _MISSING * scales[-1].clamp_min(torch.finfo(scales.dtype).tiny)
    whiten = basis * torch.where(kept, scales.clamp_min(0).rsqrt(), 0.0)
    inner = whiten.mT @ smoothness @ whiten
    # Missing directions are last, with infinite eigenvalues.
    beyond = 2 * inner.diagonal().sum() + 1
    values, vectors = torch.linalg.eigh((inner + inner.mT) / 2 + torch.diag(beyond * ~kept))
    present = torch.arange(len(values), device=values.device) < kept.sum()
    return RitzSolution(torch.where(present, values, torch.inf), whiten @ vectors * present)


class RayleighRitz(nn.Module):
    r"""Computes the eigenfunctions from a representation that spans them.

    An objective only has to find the *span* of the first eigenfunctions of the Laplacian, in any rotation and scale:
    with :math:`A = \tfrac12 E (f(s) - f(s'))(f(s) - f(s'))^\top` and :math:`M = E f f^\top`, both d x d, the
    solutions of :math:`A r = \lambda M r` give eigenfunctions :math:`f \cdot r_i` with :math:`E (f \cdot r_i)^2 = 1`
    and eigenvalues :math:`\lambda_i`, the best within the span (Rayleigh-Ritz).

    :meth:`update` accumulates the two matrices from batches of pairs; :meth:`solve` computes the rotation; calling
    the module applies it, so that it can follow any encoder, or :meth:`fold_` merges it into the encoder's last layer::

        rotated = TensorDictModule(nn.Sequential(network, ritz), ["observation"], ["representation"])

    **Identity.** An option follows one function, so a new solution must neither exchange functions whose eigenvalues
    crossed nor rotate functions with nearly equal eigenvalues. From the second solution on, every function keeps its
    place. Functions whose eigenvalues cannot be distinguished (closer than ``tolerance``, relatively, or than four
    times the sum of their standard errors) form one subspace. Places are given to the subspaces that contain most of
    their old functions, and within a subspace the basis nearest to the old one is used (orthogonal Procrustes), which
    for a single function is its sign. So :attr:`eigenvalues` are ascending after the first solution and need not be so
    later; ``solve(restart=True)`` sorts them again. A function moves ahead of another only if its eigenvalue is less
    than 1 / ``reorder`` of the other's, beyond their errors: the constant one, with eigenvalue 0, is always first, even
    if a first solution, of an untrained encoder, placed it elsewhere.

    Args:
        dimensions (int): d.

    Keyword Args:
        rate (float, optional): rate of the running averages per batch, bias-corrected. ``None``: plain averages since
            :meth:`reset`. Near-equal eigenvalues need many pairs. Default: ``0.005``.
        tolerance (float): the relative distance of eigenvalues treated as equal. Default: ``0.05``.
        reorder (float): the ratio of two eigenvalues in the wrong order at which their functions change places;
            infinite: never. Default: ``3.0``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules import RayleighRitz
        >>> ritz = RayleighRitz(2)
        >>> f = torch.tensor([[3.0, 1.0], [1.0, 3.0]])  # two states that always follow each other
        >>> ritz.update(f, f.flip(0))
        >>> ritz.solve()
        >>> ritz.eigenvalues.abs().round(decimals=4).tolist()
        [0.0, 2.0]
        >>> ritz(f).abs().round(decimals=4)
        tensor([[1., 1.],
                [1., 1.]])
    """

    smoothness: Tensor
    moments: Tensor
    weight: Tensor
    squared_weight: Tensor
    residuals: Tensor
    residual_weight: Tensor
    rotation: Tensor
    eigenvalues: Tensor
    solved: Tensor

    def __init__(
        self,
        dimensions: int,
        *,
        rate: float | None = 0.005,
        tolerance: float = 0.05,
        reorder: float = 3.0,
    ) -> None:
        super().__init__()
        if dimensions < 1:
            raise ValueError(f"dimensions must be at least 1, got {dimensions}.")
        if rate is not None and not 0 < rate <= 1:
            raise ValueError(f"rate must lie in (0, 1], or be None for plain averages, got {rate}.")
        if not 0 <= tolerance < 1:
            raise ValueError(f"tolerance must lie in [0, 1), got {tolerance}.")
        if not reorder > 1:
            raise ValueError(f"reorder must be above 1, got {reorder}.")
        self.dimensions = dimensions
        self.rate = rate
        self.tolerance = tolerance
        self.reorder = reorder
        double = torch.float64
        # Sums over batches: of the matrices, of the batches' weights, and of the squares of every pair's weight.
        self.register_buffer("smoothness", torch.zeros(dimensions, dimensions, dtype=double))
        self.register_buffer("moments", torch.zeros(dimensions, dimensions, dtype=double))
        self.register_buffer("weight", torch.zeros((), dtype=double))
        self.register_buffer("squared_weight", torch.zeros((), dtype=double))
        # Of ½(g_i(s) - g_i(s'))² - λ_i g_i(s)², whose mean is 0 and whose variance is that of λ_i, to first order.
        self.register_buffer("residuals", torch.zeros(dimensions, dtype=double))
        self.register_buffer("residual_weight", torch.zeros((), dtype=double))
        self.register_buffer("rotation", torch.eye(dimensions))
        self.register_buffer("eigenvalues", torch.full((dimensions,), torch.nan, dtype=double))
        self.register_buffer("solved", torch.zeros((), dtype=torch.int64))

    def forward(self, f: Tensor) -> Tensor:
        """The eigenfunctions ``[*, d]`` for the representations ``[*, d]``."""
        return f @ self.rotation.to(f.dtype)

    @torch.no_grad()
    def update(self, f: Tensor, f_successor: Tensor) -> None:
        """Adds a batch of pairs, ``[*, d]`` each, before the rotation."""
        rows = f.detach().reshape(-1, self.dimensions).double()
        change = rows - f_successor.detach().reshape(-1, self.dimensions).double()
        size = rows.shape[0]
        if self.rate is None:
            kept, added = 1.0, float(size)
        else:
            kept, added = 1 - self.rate, self.rate
        self.smoothness.mul_(kept).add_(change.mT @ change, alpha=added / (2 * size))
        self.moments.mul_(kept).add_(rows.mT @ rows, alpha=added / size)
        self.weight.mul_(kept).add_(added)
        self.squared_weight.mul_(kept**2).add_(added**2 / size)
        rotation = self.rotation.double()
        values = torch.nan_to_num(self.eigenvalues, nan=0.0, posinf=0.0)
        residual = (change @ rotation).square() / 2 - values * (rows @ rotation).square()
        known = (self.solved > 0).double()
        self.residuals.mul_(kept).add_(residual.square().mean(0) * known, alpha=added)
        self.residual_weight.mul_(kept).add_(known, alpha=added)

    @property
    def standard_errors(self) -> Tensor:
        """The standard error of each eigenvalue, ``[d]``, from the pairs added after the first solution.

        To first order, for independent pairs; NaN without such pairs.
        """
        share = self.squared_weight / self.weight.square()
        return (self.residuals / self.residual_weight * share).sqrt()

    def reset(self) -> None:
        """Removes all pairs; the rotation is kept."""
        for name in ("smoothness", "moments", "weight", "squared_weight"):
            getattr(self, name).zero_()
        self.residuals.zero_()
        self.residual_weight.zero_()

    @torch.compiler.disable
    @torch.no_grad()
    def solve(self, *, restart: bool = False) -> None:
        """Computes rotation and eigenvalues from the added pairs.

        Keyword Args:
            restart (bool): sort the functions by their eigenvalues, ignoring the last solution. Default: ``False``.
        """
        if not bool(self.weight > 0):
            raise RuntimeError("solve() needs pairs: call update(f, f_successor) first.")
        self.set_matrices(
            self.smoothness / self.weight, self.moments / self.weight, restart=restart
        )

    @torch.compiler.disable
    @torch.no_grad()
    def set_matrices(self, smoothness: Tensor, moments: Tensor, *, restart: bool = False) -> None:
        """Solves for given matrices A and M, ``[d, d]`` each."""
        smoothness = (smoothness + smoothness.mT).double() / 2
        moments = (moments + moments.mT).double() / 2
        values, rotation = ritz(smoothness, moments)
        if self.solved and not restart:
            rotation = self._kept_in_place(values, rotation, moments)
            values = torch.einsum("ji,jk,ki->i", rotation, smoothness, rotation)
            present = rotation.square().sum(0) > 0
            values = torch.where(present, values, torch.inf)
            places = self._places(values.tolist())
            if places != sorted(places):
                values, rotation = values[places], rotation[:, places]
                self.residuals.copy_(self.residuals[places])
        self.eigenvalues.copy_(values)
        # A new tensor, because the earlier one may be part of an autograd graph.
        self.rotation = rotation.to(self.rotation.dtype)
        if restart:
            self.residuals.zero_()
            self.residual_weight.zero_()
        self.solved += 1

    def _kept_in_place(self, values: Tensor, rotation: Tensor, moments: Tensor) -> Tensor:
        """The solution in the order, signs and, among near-equal eigenvalues, basis nearest to the last one."""
        old = self.rotation.double()
        scale = torch.einsum("ji,jk,ki->i", old, moments, old).clamp_min(1e-300).sqrt()
        overlap = rotation.mT @ moments @ (old / scale)  # [new, old], cosines
        # Errors are stored by position: a new function combines those of the old functions that it consists of.
        errors = overlap.square() @ torch.nan_to_num(self.standard_errors, nan=0.0)
        groups = self._groups(values.tolist(), errors.tolist())
        # The share of each old function in each subspace.
        energy = torch.stack([overlap[a:b].square().sum(0) for a, b in groups])
        places = _assign(energy, [b - a for a, b in groups])
        result = torch.zeros_like(rotation)
        for (a, b), chosen in zip(groups, places, strict=True):
            left, _, right = torch.linalg.svd(overlap[a:b, chosen])
            result[:, chosen] = rotation[:, a:b] @ (left @ right)
        return result

    def _places(self, values: list[float]) -> list[int]:
        """The function for each position: clearly smoother ones move ahead, all others keep their position."""
        errors = torch.nan_to_num(self.standard_errors, nan=0.0).tolist()
        places: list[int] = []
        for new in range(len(values)):
            at = new
            while at and self._clearly_before(values, errors, new, places[at - 1]):
                at -= 1
            places.insert(at, new)
        return places

    def _clearly_before(self, values: list[float], errors: list[float], a: int, b: int) -> bool:
        if math.isinf(values[a]) or math.isinf(values[b]):
            return values[a] < values[b]
        # With rounding the eigenvalue of the constant function may be slightly negative.
        apart = values[b] - values[a] > 4 * (errors[a] + errors[b]) + 1e-12
        return apart and values[b] > self.reorder * max(values[a], 0.0)

    def _groups(self, values: list[float], errors: list[float]) -> list[tuple[int, int]]:
        """Groups of neighbours that cannot be distinguished, as ``(first, last + 1)``."""
        bounds = [0]
        for i, (low, high) in enumerate(pairwise(values), start=1):
            # Eigenvalues of noisy matrices repel each other: equal ones are estimated several errors apart, with
            # meaningless eigenvectors. The missing ones, infinite, are one group.
            apart = high - low > max(self.tolerance * high, 4 * (errors[i - 1] + errors[i]))
            if apart or (math.isinf(high) and not math.isinf(low)):
                bounds.append(i)
        return list(pairwise([*bounds, len(values)]))

    @torch.no_grad()
    def fold_(self, layer: nn.Linear) -> None:
        """Merges the rotation into the encoder's last layer, in place, and resets it to the identity.

        The accumulated matrices are kept, in the new coordinates. Do not call it between a forward pass and its
        backward pass: the graph would read the new weights.

        Args:
            layer (nn.Linear): the layer whose outputs are the representation.
        """
        if layer.out_features != self.dimensions:
            raise ValueError(
                f"the layer has {layer.out_features} outputs, the representation {self.dimensions} dimensions: "
                "pass the layer whose outputs are the representation."
            )
        rotation = self.rotation.to(layer.weight.dtype)
        layer.weight.copy_(rotation.mT @ layer.weight)
        if layer.bias is not None:
            layer.bias.copy_(layer.bias @ rotation)
        exact = self.rotation.double()
        self.smoothness.copy_(exact.mT @ self.smoothness @ exact)
        self.moments.copy_(exact.mT @ self.moments @ exact)
        self.rotation = torch.eye(self.dimensions).to(self.rotation)


def _assign(energy: Tensor, sizes: list[int]) -> list[list[int]]:
    """The old functions assigned to each subspace, as many as its dimensions, by decreasing energy."""
    free, taken = list(sizes), [False] * energy.shape[1]
    places: list[list[int]] = [[] for _ in sizes]
    for flat in energy.flatten().argsort(descending=True).tolist():
        group, function = divmod(flat, energy.shape[1])
        if free[group] and not taken[function]:
            free[group] -= 1
            taken[function] = True
            places[group].append(function)
    return [sorted(chosen) for chosen in places]


class RayleighRitzStep(TensorDictModuleBase):
    """Adds the pairs of a training batch, solves periodically, and writes the eigenfunctions.

    It runs after a Laplacian loss, which writes f(s) and f(s') into the batch, and before modules that read the
    eigenfunctions, such as :class:`EigenReward`.

    Args:
        ritz (RayleighRitz): the accumulated matrices and the rotation.

    Keyword Args:
        period (int): batches between two solutions. Default: ``50``.
        in_key (NestedKey): f(s), and under ``successor`` f(s'). Default: ``"span"``.
        out_key (NestedKey): the eigenfunctions of both. Default: ``"representation"``.
        successor (NestedKey): the entry of s'. Default: ``"next"``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.modules import RayleighRitz, RayleighRitzStep
        >>> step = RayleighRitzStep(RayleighRitz(3), period=1)
        >>> batch = TensorDict({"span": torch.randn(64, 3), "next": {"span": torch.randn(64, 3)}}, [64])
        >>> out = step(batch)["representation"]
        >>> (out.T @ out / 64).diagonal().round(decimals=4).tolist()
        [1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        ritz: RayleighRitz,
        *,
        period: int = 50,
        in_key: NestedKey = "span",
        out_key: NestedKey = "representation",
        successor: NestedKey = "next",
    ) -> None:
        super().__init__()
        if period < 1:
            raise ValueError(f"period must be at least 1, got {period}.")
        self.ritz = ritz
        self.period = period
        self.in_keys = [in_key, unravel_key((successor, in_key))]
        self.out_keys = [out_key, unravel_key((successor, out_key))]
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64, device="cpu"))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Adds the batch; writes the eigenfunctions of its states and successors."""
        pair = [tensordict.get(key) for key in self.in_keys]
        self.ritz.update(*pair)
        self.batches += 1
        if int(self.batches) % self.period == 0:
            self.ritz.solve()
        for key, value in zip(self.out_keys, pair, strict=True):
            tensordict.set(key, self.ritz(value))
        return tensordict
