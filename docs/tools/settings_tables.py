"""The settings of an agent as a table: name, default, origin. Read from its dataclass and the comments there."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """One row."""

    name: str
    default: str
    origin: str
    owner: str


@functools.cache
def comments(owner: type) -> dict[str, str]:
    """The comment of every field that a dataclass declares: behind its value, or in the lines above it.

    A line above belongs to the next field only; a field has both if both are there.
    """
    source = textwrap.dedent(inspect.getsource(owner))
    lines: dict[int, tuple[bool, str]] = {}  # by line: whether it stands alone, and its text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            lines[token.start[0]] = (alone, token.string.lstrip("# ").rstrip())
    found = {}
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    for node in body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        above: list[str] = []
        line = node.lineno - 1
        while lines.get(line, (False, ""))[0]:
            above.insert(0, lines[line][1])
            line -= 1
        last = node.end_lineno or node.lineno
        beside = [lines[n][1] for n in range(node.lineno, last + 1) if n in lines]
        found[node.target.id] = " ".join([*above, *beside])
    return found


def settings(config: type) -> Iterator[Setting]:
    """Every setting of a dataclass, its own first, with the default and the comment that hold for it."""
    by_name = {field.name: field for field in dataclasses.fields(config)}
    seen = set()
    for owner in config.__mro__:
        if not dataclasses.is_dataclass(owner):
            continue
        for name in inspect.get_annotations(owner):
            if name in by_name and name not in seen:
                seen.add(name)
                yield Setting(name, _value(by_name[name]), comments(owner)[name], owner.__name__)


def _value(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if value is dataclasses.MISSING:
        return ""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def table(config: type) -> str:
    """The settings as a Markdown table, a heading for each dataclass that they come from."""
    rows: list[str] = []
    owner = None
    for setting in settings(config):
        if setting.owner != owner:
            owner = setting.owner
            rows += [
                "",
                f"**{_title(owner)}** (`{owner}`)",
                "",
                "| setting | default | where it comes from |",
                "|---|---|---|",
            ]
        origin, default = (
            text.replace("|", "\\|") for text in (_linked(setting.origin), setting.default)
        )
        rows.append(f"| `{setting.name}` | `{default}` | {origin} |")
    return "\n".join(rows).strip()


def _title(owner: str) -> str:
    shared = {
        "LearnerConfig": "The main learner",
        "OptionConfig": "Options",
        "LaplacianConfig": "The Laplacian representation",
        "DiscoveryConfig": "Discovery",
    }
    return shared.get(owner, "Its own")


def _linked(text: str) -> str:
    """Names of pages become links; the text begins with a capital letter."""
    text = re.sub(r"docs/([\w/]+)\.md", r"[\1](../\1.md)", text)
    text = re.sub(r"\[[\w/]*?(\w+)\]\(", r"[\1](", text)
    text = re.sub(r"\bresults/(\w+)", r"[results/\1](../../results/\1/README.md)", text)
    return text[:1].upper() + text[1:] if re.match(r"[a-z]{2}", text) else text  # not d, β
