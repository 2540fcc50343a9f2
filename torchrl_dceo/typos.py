"""The end of a sentence about a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

__all__ = ["choices"]


def choices(given: str, known: Sequence[str]) -> str:
    """The wrong name, the nearest right one, and all of them: the end of an error's sentence.

    Examples:
        >>> from torchrl_dceo.typos import choices
        >>> choices("sead", ["seed", "lr"])
        "'sead' (did you mean 'seed'?); choose from seed, lr"
    """
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"{given!r}{hint}; choose from {', '.join(known)}"
