"""Names that a user writes: the sentence about one that is not known, and the object that a dotted one stands for."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["choices", "imported"]


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


def imported(name: Any) -> Any:
    """The object that ``"package.module:name"`` stands for; anything but text is returned as it is.

    Modules are also found in the current directory, where one's own files are.

    Examples:
        >>> from torchrl_dceo.typos import imported
        >>> imported("math:sqrt")(16.0)
        4.0
        >>> imported("math.sqrt")
        Traceback (most recent call last):
        ValueError: 'math.sqrt' names no object: write it as 'package.module:name'
    """
    if not isinstance(name, str):
        return name
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ValueError(f"{name!r} names no object: write it as 'package.module:name'")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name!r} cannot be imported: {error}") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"module {module_name!r} has no {choices(part, _public(found))}")
        found = getattr(found, part)
    return found


def _public(holder: Any) -> list[str]:
    return [name for name in dir(holder) if not name.startswith("_")]
