"""Checks of settings, with one-sentence errors that suggest the closest known name."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import sys
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "by_environment",
    "check_at_least",
    "check_between",
    "check_positive",
    "check_types",
    "choices",
    "defaults",
    "environment_fields",
    "first_difference",
    "from_settings",
    "imported",
    "suggestion",
]


def choices(given: str, known: Sequence[str]) -> str:
    """The end of an error message: the wrong name, the closest known one, and all known ones.

    Examples:
        >>> from torchrl_dceo.settings import choices
        >>> choices("sead", ["seed", "lr"])
        "'sead' (did you mean 'seed'?); choose from seed, lr"
    """
    return f"{given!r}{suggestion(given, known)}; choose from {', '.join(known)}"


def suggestion(given: str, known: Sequence[str], cutoff: float = 0.5) -> str:
    """The closest known name in brackets, ignoring case; empty if none is close.

    Args:
        given (str): the wrong name.
        known (sequence of str): the valid names.
        cutoff (float, optional): the minimum similarity, from 0 to 1. Default: 0.5.

    Examples:
        >>> from torchrl_dceo.settings import suggestion
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
    """The first difference of two nested settings, as a sentence; ``None`` if there is none.

    Args:
        saved (Any): the earlier settings.
        own (Any): the current settings.
        name (str, optional): their name in the message. Default: their keys.

    Keyword Args:
        ignored (collection of str, optional): keys of the outermost level that may differ.
        sentence (str, optional): the template of the message.

    Examples:
        >>> from torchrl_dceo.settings import first_difference
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
    """The object named by ``"package.module:name"``; anything but text is returned unchanged.

    Modules are also found in the current directory.

    Examples:
        >>> from torchrl_dceo.settings import imported
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


Config = TypeVar("Config")


_BY_ENVIRONMENT = "by_environment"


def by_environment(default: Any) -> Any:
    """A field whose best value differs between environments: a recipe may set it for all agents that have it.

    Examples:
        >>> from dataclasses import dataclass
        >>> from torchrl_dceo.settings import by_environment, environment_fields
        >>> @dataclass
        ... class Options:
        ...     option_prob: float = by_environment(0.8)
        ...     option_duration: float = 10.0
        >>> environment_fields(Options), Options().option_prob
        (['option_prob'], 0.8)
    """
    return dataclasses.field(default=default, metadata={_BY_ENVIRONMENT: True})


def environment_fields(kind: Any) -> list[str]:
    """The fields of a dataclass that :func:`by_environment` declares."""
    return [field.name for field in dataclasses.fields(kind) if _BY_ENVIRONMENT in field.metadata]


def defaults(kind: Any) -> dict[str, Any]:
    """The default of every field of a dataclass.

    Examples:
        >>> from torchrl_dceo.settings import defaults
        >>> from torchrl_dceo.training import TrainConfig
        >>> defaults(TrainConfig)["eval_period"]
        10000
    """
    return {field.name: field.default for field in dataclasses.fields(kind)}


def from_settings(
    kind: type[Config], values: Mapping[str, Any], *, of: str = "", prefix: str = ""
) -> Config:
    """Builds a dataclass from plain values; an unknown name raises an error.

    Args:
        kind (type): the dataclass.
        values (mapping): its fields.

    Keyword Args:
        of (str, optional): the owner of the settings, for the message.
        prefix (str, optional): prefix of their names, for the messages.

    Examples:
        >>> from torchrl_dceo.settings import from_settings
        >>> from torchrl_dceo.training import TrainConfig
        >>> from_settings(TrainConfig, {"total_frame": 10})
        Traceback (most recent call last):
        ValueError: unknown setting 'total_frame' (did you mean 'total_frames'?); choose from ...
        >>> from_settings(TrainConfig, {"total_frames": 1e5}).total_frames
        100000
    """
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            known = [f"{prefix}{other}" for other in names]
            raise ValueError(f"unknown setting {of}{choices(f'{prefix}{name}', known)}")
    try:
        return kind(**values)
    except ValueError as error:
        # Sentences about a field begin with its name.
        raise ValueError(f"{prefix}{error}") from None


def check_types(config: Any) -> None:
    """Checks every field of a dataclass against its annotation; a whole number written as 1e5 becomes an ``int``.

    Examples:
        >>> from torchrl_dceo.agents.configs import LaplacianConfig, LearnerConfig
        >>> LearnerConfig(lr="fast")
        Traceback (most recent call last):
        ValueError: lr must be float, got 'fast'
        >>> LaplacianConfig(norm="log2")
        Traceback (most recent call last):
        ValueError: norm is 'log2' (did you mean 'log1p'?); choose from squared, log1p
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        allowed = _alternatives(hints[name])
        if int in allowed and isinstance(value, float) and value.is_integer():
            value = int(value)
            object.__setattr__(config, name, value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value}")
        if any(_fits(value, kind) for kind in allowed):
            continue
        literals = [str(choice) for kind in allowed for choice in typing.get_args(kind)]
        if literals:
            raise ValueError(f"{name} is {choices(str(value), literals)}")
        wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return any(value is choice or value == choice for choice in typing.get_args(kind))
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return isinstance(value, kind)


def check_at_least(config: Any, least: int, names: Iterable[str]) -> None:
    """Raises an error for fields below a number; ``None`` is allowed.

    Examples:
        >>> from torchrl_dceo.agents.configs import OptionConfig
        >>> OptionConfig(num_options=0)
        Traceback (most recent call last):
        ValueError: num_options must be at least 1, got 0
    """
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def check_between(config: Any, names: Iterable[str], low: float = 0, high: float = 1) -> None:
    """Raises an error for fields outside [low, high]; ``None`` is allowed.

    Examples:
        >>> from torchrl_dceo.agents.configs import LearnerConfig
        >>> LearnerConfig(gamma=1.5)
        Traceback (most recent call last):
        ValueError: gamma must lie in [0, 1], got 1.5
    """
    for name in names:
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise ValueError(f"{name} must lie in [{low}, {high}], got {value}")


def check_positive(config: Any, names: Iterable[str]) -> None:
    """Raises an error for fields that are not above 0; ``None`` is allowed.

    Examples:
        >>> from torchrl_dceo.agents.configs import LearnerConfig
        >>> LearnerConfig(lr=0.0)
        Traceback (most recent call last):
        ValueError: lr must be above 0, got 0.0
    """
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")
