"""What a user writes: names that are not known, dotted names of objects, and settings that differ."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

__all__ = ["choices", "first_difference", "imported", "suggestion"]


def choices(given: str, known: Sequence[str]) -> str:
    """The wrong name, the nearest right one, and all of them: the end of an error's sentence.

    Examples:
        >>> from torchrl_dceo.typos import choices
        >>> choices("sead", ["seed", "lr"])
        "'sead' (did you mean 'seed'?); choose from seed, lr"
    """
    return f"{given!r}{suggestion(given, known)}; choose from {', '.join(known)}"


def suggestion(given: str, known: Sequence[str], cutoff: float = 0.5) -> str:
    """The nearest known name in brackets, whatever its case; nothing if none is near.

    Args:
        given (str): the wrong name.
        known (sequence of str): the right ones.
        cutoff (float, optional): how near it must be, from 0 to 1. Default: 0.5.

    Examples:
        >>> from torchrl_dceo.typos import suggestion
        >>> suggestion("gridrom16", ["GridRoom16", "NineRooms"])
        " (did you mean 'GridRoom16'?)"
    """
    lower = {name.lower(): name for name in reversed(known)}
    close = difflib.get_close_matches(given.lower(), lower, n=1, cutoff=cutoff)
    return f" (did you mean {lower[close[0]]!r}?)" if close else ""


def first_difference(
    saved: Any,
    own: Any,
    name: str = "",
    *,
    ignored: Collection[str] = (),
    sentence: str = "{name} is {saved} there and {own} here",
) -> str | None:
    """Where two nested settings differ first, in a sentence; ``None`` if they do not.

    Args:
        saved (Any): those of before.
        own (Any): those of now.
        name (str, optional): what the sentence calls them. Default: as their keys.

    Keyword Args:
        ignored (collection of str, optional): keys of the outermost level that may differ.
        sentence (str, optional): how it is said.

    Examples:
        >>> from torchrl_dceo.typos import first_difference
        >>> first_difference({"env": {"slip": 0.0}}, {"env": {"slip": 0.15}})
        'env.slip is 0.0 there and 0.15 here'
    """
    if isinstance(saved, dict) and isinstance(own, dict):
        for key in [*own, *(key for key in saved if key not in own)]:
            if key in ignored:
                continue
            inner = f"{name}.{key}" if name else str(key)
            pair = saved.get(key, "missing"), own.get(key, "missing")
            found = first_difference(*pair, inner, sentence=sentence)
            if found:
                return found
        return None
    if isinstance(saved, list) and isinstance(own, list) and len(saved) == len(own):
        pairs = enumerate(zip(saved, own, strict=True))
        found_in = (
            first_difference(a, b, f"{name}[{i}]", sentence=sentence) for i, (a, b) in pairs
        )
        return next((found for found in found_in if found), None)
    if saved == own or (saved != saved and own != own):  # NaN is NaN
        return None
    return sentence.format(name=name, saved=_short(saved), own=_short(own))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


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
