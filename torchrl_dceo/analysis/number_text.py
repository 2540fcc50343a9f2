"""Numbers over seeds as people read them, for every table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from torchrl_dceo.analysis.aggregates import Aggregate

__all__ = ["NONE", "interval_text", "known", "mean_text", "reached_text", "spread_text"]

NONE = "–"
"""What stands where there is no number."""


def known(values: Sequence[float]) -> list[float]:
    """Those that are not NaN."""
    return [value for value in values if not math.isnan(value)]


def mean_text(values: Sequence[float]) -> str:
    """The mean of those that are known.

    Examples:
        >>> from torchrl_dceo.analysis.number_text import mean_text
        >>> mean_text([0.25, float("nan"), 0.75]), mean_text([])
        ('0.50', '–')
    """
    numbers = known(values)
    return f"{statistics.fmean(numbers):.2f}" if numbers else NONE


def interval_text(found: Aggregate | None, digits: int = 2) -> str:
    """The interquartile mean of the first point, and its interval if it has one.

    Examples:
        >>> from torchrl_dceo.analysis import aggregate
        >>> from torchrl_dceo.analysis.number_text import interval_text
        >>> interval_text(aggregate([[0.0], [1.0]])), interval_text(aggregate([[0.25]]))
        ('0.50 [0.00, 1.00]', '0.25')
    """
    if found is None:
        return NONE
    low, high = found.low[0], found.high[0]
    ends = "" if math.isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{found.iqm[0]:.{digits}f}{ends}"


def spread_text(found: Aggregate | None, digits: int = 2) -> str:
    """Mean and standard deviation of the first point, as the paper has them.

    Examples:
        >>> from torchrl_dceo.analysis import aggregate
        >>> from torchrl_dceo.analysis.number_text import spread_text
        >>> spread_text(aggregate([[0.0], [1.0]])), spread_text(aggregate([[0.25]]))
        ('0.50 ± 0.71', '0.25')
    """
    if found is None:
        return NONE
    mean, std = found.mean[0], found.std[0]
    return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def reached_text(frames: Sequence[float] | None) -> str:
    """The median number of frames, in thousands, and how many runs got there at all.

    Examples:
        >>> from torchrl_dceo.analysis.number_text import reached_text
        >>> reached_text([2000.0, 4000.0, float("inf")]), reached_text([float("inf")])
        ('4k (2/3)', 'never (0/1)')
    """
    if not frames:
        return NONE
    reached = sum(math.isfinite(value) for value in frames)
    middle = statistics.median_low(frames) if reached * 2 > len(frames) else math.inf
    text = f"{middle / 1000:.0f}k" if math.isfinite(middle) else "never" if not reached else NONE
    return f"{text} ({reached}/{len(frames)})"
