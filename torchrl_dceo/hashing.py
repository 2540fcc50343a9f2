"""Hashes of observations: exact bytes, coarse cells of images, or signs of random projections.

Every hash maps a batch of observations ``[N, ...]`` to int64 ``[N]``, the same in every process and in every run.
Observations with equal hashes count as one state. Used by replay (distinct states) and for coverage in any
environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

__all__ = [
    "HASHES",
    "CellHash",
    "ExactHash",
    "ObservationHash",
    "SimHash",
    "combine",
    "hash_for",
    "make_hash",
]

ObservationHash = Callable[[Tensor], Tensor]

_SEED = 20240731
_CELL_ROWS = 8
_SMALLEST_DOWNSIZED = 28  # pixels of the shorter side
_MIX = (
    -7046029254386353131
)  # 2⁶⁴ divided by the golden ratio, an odd multiplier for multiplicative hashing


def _coefficients(size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (size,), generator=generator) | 1


class ExactHash:
    """Observations are equal if all their bytes are.

    The sum of the bytes with random odd 64-bit weights, modulo 2⁶⁴: two different ones collide with a probability
    below 2⁻⁵⁶.

    Keyword Args:
        seed (int): of the weights. Default: a constant.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.hashing import ExactHash
        >>> images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
        >>> images[1, 0, 0, 1] = 1
        >>> first, second, third = ExactHash()(images).tolist()
        >>> first == second, first == third
        (False, True)
    """

    def __init__(self, *, seed: int = _SEED) -> None:
        self.seed = seed
        self._weights: dict[int, Tensor] = {}

    def __call__(self, observations: Tensor) -> Tensor:
        """Hashes ``[N, ...]`` of any dtype."""
        rows = observations.detach().cpu().reshape(observations.shape[0], -1)
        if rows.is_floating_point():
            rows = rows + 0.0  # -0.0 equals 0.0, but differs in a bit
        data = rows.contiguous().view(torch.uint8)
        size = data.shape[1]
        weights = self._weights.get(size)
        if weights is None:
            weights = self._weights[size] = _coefficients(size, self.seed)
        return (data * weights).sum(1)


class CellHash:
    """Images are equal if they are in the same cell: downsized, grey and with few levels of brightness.

    The cells of Go-Explore (`Ecoffet et al., 2021 <https://arxiv.org/abs/1901.10995>`_): images with few
    different pixels are one state.

    Keyword Args:
        height (int): height of the downsized image. Default: ``8``.
        width (int): width of the downsized image. Default: ``11``.
        levels (int): levels of brightness between 0 and ``maximum``. Default: ``8``.
        maximum (float, optional): the brightest value. Default: ``255`` for integers, ``1`` for floats.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.hashing import CellHash
        >>> images = torch.zeros(3, 1, 42, 42, dtype=torch.uint8)
        >>> images[1, 0, 3, 3] = 9  # a speck
        >>> images[2, 0, :20, :20] = 255  # a room
        >>> first, second, third = CellHash()(images).tolist()
        >>> first == second, first == third
        (True, False)
    """

    def __init__(
        self, *, height: int = 8, width: int = 11, levels: int = 8, maximum: float | None = None
    ) -> None:
        if min(height, width) < 1 or not 2 <= levels <= 256:
            raise ValueError(
                "height and width must be at least 1 and levels lie in [2, 256], got "
                f"{height}, {width} and {levels}."
            )
        self.size = (height, width)
        self.levels = levels
        self.maximum = maximum
        self._exact = ExactHash()

    @classmethod
    def for_shape(cls, shape: Sequence[int], *, maximum: float | None = None) -> CellHash:
        """Cells for images of a shape: square, in eight rows.

        Images of 30 x 40 pixels have 8 x 11 of them. An image with a side below 28 pixels is not downsized: it is
        usually a map, in which a single pixel shows where the agent is.

        Args:
            shape (sequence of int): of an image, ``[C, H, W]``.

        Keyword Args:
            maximum (float, optional): see :class:`CellHash`.

        Examples:
            >>> from torchrl_dceo.hashing import CellHash
            >>> CellHash.for_shape([3, 30, 40]).size, CellHash.for_shape([3, 19, 19]).size
            ((8, 11), (19, 19))
        """
        height, width = shape[-2:]
        if min(height, width) >= _SMALLEST_DOWNSIZED:
            height, width = _CELL_ROWS, max(1, round(_CELL_ROWS * width / height))
        return cls(height=height, width=width, maximum=maximum)

    def __call__(self, observations: Tensor) -> Tensor:
        """Hashes images ``[N, C, H, W]``."""
        if observations.ndim != 4:
            raise ValueError(
                f"cells are of images [N, C, H, W], got the shape {list(observations.shape)}: use "
                "'exact' or 'simhash' for vectors."
            )
        maximum = self.maximum
        if maximum is None:
            maximum = 1.0 if observations.is_floating_point() else 255.0
        grey = observations.detach().float().mean(1, keepdim=True)
        levels = adaptive_avg_pool2d(grey, self.size) * (self.levels / maximum)
        return self._exact(levels.clamp(0, self.levels - 1).to(torch.uint8))


class SimHash:
    """Vectors are equal if they are on the same sides of random planes (Charikar, 2002).

    Close vectors have most signs in common; with more bits the cells are smaller. As in count-based exploration by
    `Tang et al., 2017 <https://arxiv.org/abs/1611.04717>`_.

    Keyword Args:
        bits (int): the number of planes, up to 63. Default: ``32``.
        seed (int): of the planes. Default: a constant.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.hashing import SimHash
        >>> vectors = torch.tensor([[1.0, 2.0], [1.001, 2.0], [-2.0, 1.0]])
        >>> first, second, third = SimHash()(vectors).tolist()
        >>> first == second, first == third
        (True, False)
    """

    def __init__(self, *, bits: int = 32, seed: int = _SEED) -> None:
        if not 1 <= bits <= 63:
            raise ValueError(f"bits must lie in [1, 63], got {bits}.")
        self.bits = bits
        self.seed = seed
        self._planes: dict[int, Tensor] = {}

    def __call__(self, observations: Tensor) -> Tensor:
        """Hashes ``[N, ...]``, each flattened to a vector."""
        rows = observations.detach().cpu().reshape(observations.shape[0], -1).double()
        size = rows.shape[1]
        planes = self._planes.get(size)
        if planes is None:
            generator = torch.Generator().manual_seed(self.seed)
            planes = torch.randn(size, self.bits, generator=generator, dtype=torch.float64)
            self._planes[size] = planes
        bits = (rows @ planes > 0).long()
        return (bits << torch.arange(self.bits)).sum(1)


def combine(hashes: list[Tensor]) -> Tensor:
    """One hash of several observations of the same states, ``[N]`` each.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.hashing import combine
        >>> a, b = torch.tensor([1, 2]), torch.tensor([2, 1])
        >>> torch.equal(combine([a, b]), combine([b, a]))
        False
        >>> torch.equal(combine([a]), a)
        True
    """
    total = hashes[0]
    for other in hashes[1:]:
        total = total * _MIX + other
    return total


_HASHES: dict[str, Callable[[], ObservationHash]] = {
    "exact": ExactHash,
    "cell": CellHash,
    "simhash": SimHash,
}
HASHES = tuple(_HASHES)
"""The names of the hashes."""


def make_hash(name: str | ObservationHash) -> ObservationHash:
    """Returns a hash by its name, with its defaults, or the callable itself.

    Args:
        name (str or callable): ``"exact"``, ``"cell"``, ``"simhash"``, or a callable from ``[N, ...]`` to int64
            ``[N]``.

    Examples:
        >>> from torchrl_dceo.hashing import make_hash
        >>> type(make_hash("cell")).__name__
        'CellHash'
    """
    if not isinstance(name, str):
        return name
    if name not in _HASHES:
        raise ValueError(
            f"the hash must be one of {', '.join(map(repr, _HASHES))} or a callable, got {name!r}."
        )
    return _HASHES[name]()


def hash_for(
    kind: str | ObservationHash,
    shape: Sequence[int],
    dtype: torch.dtype,
    *,
    maximum: float | None = None,
    key: str = "observation",
) -> ObservationHash:
    """The hash of observations of one shape; raises an error if it cannot hash them.

    Args:
        kind (str or callable): a name, a callable from ``[N, *shape]`` to int64 ``[N]``, or a class of such.
        shape (sequence of int): of one observation.
        dtype (torch.dtype): its dtype.

    Keyword Args:
        maximum (float, optional): the brightest value of an image, for ``"cell"``.
        key (str): its name, for messages.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.hashing import hash_for
        >>> hash_for("cell", [3, 30, 40], torch.uint8, maximum=255).size
        (8, 11)
        >>> hash_for("cell", [4], torch.float32)
        Traceback (most recent call last):
        ValueError: observation_hash 'cell' is for images [C, H, W], but 'observation' has the shape [4]: use ...
    """
    if kind == "cell":
        if len(shape) != 3:
            raise ValueError(
                f"observation_hash 'cell' is for images [C, H, W], but {key!r} has the shape {list(shape)}: use "
                "'exact', 'simhash' or a function of your own"
            )
        return CellHash.for_shape(shape, maximum=maximum)
    if isinstance(kind, str):
        return make_hash(kind)
    own: ObservationHash = kind() if isinstance(kind, type) else kind
    found = own(torch.zeros(2, *shape, dtype=dtype))
    fits = isinstance(found, Tensor) and found.dtype is torch.int64 and found.shape == (2,)
    if not fits:
        given = (
            f"{str(found.dtype).removeprefix('torch.')} {list(found.shape)}"
            if isinstance(found, Tensor)
            else type(found).__name__
        )
        raise ValueError(
            f"observation_hash must return one int64 per observation, but returns {given} for two of shape "
            f"{list(shape)} ({key!r}): return a tensor int64 [N] for observations [N, ...]"
        )
    return own
