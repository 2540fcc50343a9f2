"""Bootstrap intervals by rliable, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchrl_dceo.analysis.style import need

__all__ = ["Estimate", "bootstrap_interval"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number, or several, with an interval.

    Attributes:
        value (ndarray): of the runs that there are.
        low (ndarray): lower end of the interval; NaN where there are too few runs for one.
        high (ndarray): upper end.
    """

    value: Array
    low: Array
    high: Array


def bootstrap_interval(
    scores: Array | Sequence[Array],
    statistic: Callable[..., Array],
    *,
    confidence: float = 0.95,
    repetitions: int = 2000,
    seed: int = 0,
) -> tuple[Array, Array]:
    """The stratified bootstrap's percentile interval of any statistic of runs.

    Runs are drawn with replacement, for each world (and whatever other entries a run has) by itself.

    Args:
        scores (ndarray or sequence of them): ``[R, T, …]``, R runs in each of T worlds; several arrays are drawn from
            independently, each with as many runs as it has.
        statistic (callable): of one array, or of as many as there are; returns ``[P]``.

    Keyword Args:
        confidence (float, optional): of the interval. Default: ``0.95``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.
        seed (int, optional): of the draws; the global generator is left as it was. Default: ``0``.

    Returns:
        tuple of ndarray: the lower and the upper ends, ``[P]`` each.

    Examples:
        >>> import numpy as np
        >>> from torchrl_dceo.analysis.bootstrap import bootstrap_interval
        >>> low, high = bootstrap_interval(np.array([[0.0], [1.0]]), lambda drawn: drawn.mean(axis=0))
        >>> low.tolist(), high.tolist()
        ([0.0], [1.0])
    """
    library = need("rliable.library", "report")
    before = np.random.get_state()
    # rliable draws from the global generator, whatever random_state it is given.
    np.random.seed(seed)
    try:
        _, intervals = library.get_interval_estimates(
            {"runs": scores if isinstance(scores, np.ndarray) else list(scores)},
            statistic,
            reps=repetitions,
            confidence_interval_size=confidence,
        )
    finally:
        np.random.set_state(before)
    low, high = intervals["runs"]
    return low, high
