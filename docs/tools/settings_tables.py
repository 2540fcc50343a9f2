"""The settings of an agent as tables, read from its dataclass, the comments there, and the presets.

One table has name, default and origin of every setting. The other one compares the default with the presets ``paper``
and ``authors`` where these differ.
"""

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
    """One row of the table."""

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
                default = _value(by_name[name].default)
                yield Setting(name, default, comments(owner)[name], owner.__name__)


def _value(value: Any) -> str:
    if value is dataclasses.MISSING:
        return ""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def table(config: type) -> str:
    """The settings as Markdown tables, one per dataclass that defines them."""
    rows: list[str] = []
    owner = None
    for setting in settings(config):
        if setting.owner != owner:
            owner = setting.owner
            rows += [
                "",
                f"**{_title(owner)}** (`{owner}`)",
                "",
                "| setting | default | origin |",
                "|---|---|---|",
            ]
        origin, default = (
            text.replace("|", "\\|") for text in (_linked(setting.origin), setting.default)
        )
        rows.append(f"| `{setting.name}` | `{default}` | {origin} |")
    return "\n".join(rows).strip()


def presets_table(config: type, runs: tuple[type, ...], kind: str) -> str:
    """The settings of a preset that differ from the defaults: ours, the paper's, the authors' code's.

    Args:
        config (type): the agent's config dataclass.
        runs (tuple of type): the dataclasses of a run, for its settings.
        kind (str): the kind of environment, see ``preset_settings``.
    """
    from torchrl_dceo.agents.presets import preset_settings

    ours = {field.name: field.default for field in dataclasses.fields(config)}
    run = {field.name: field.default for owner in runs for field in dataclasses.fields(owner)}
    paper, authors = (preset_settings(name, config, kind) for name in ("paper", "authors"))
    rows = ["| setting | ours | paper | authors' code |", "|---|---|---|---|"]
    for default, left, right in ((ours, paper.agent, authors.agent), (run, paper.run, authors.run)):
        for name in dict.fromkeys([*left, *right]):
            values = [default[name], left.get(name, default[name]), right.get(name, default[name])]
            if len({repr(value) for value in values}) > 1:
                cells = " | ".join(f"`{_value(value)}`" for value in values)
                rows.append(f"| `{name}` | {cells} |")
    return "\n".join(rows)


def _title(owner: str) -> str:
    shared = {
        "LearnerConfig": "The main learner",
        "OptionConfig": "Options",
        "LaplacianConfig": "The Laplacian representation",
        "DiscoveryConfig": "Discovery",
    }
    return shared.get(owner, "Its own")


def _linked(text: str) -> str:
    """Turns names of pages into links and capitalises the first letter."""
    text = re.sub(r"docs/([\w/]+)\.md", r"[\1](../\1.md)", text)
    text = re.sub(r"\[[\w/]*?(\w+)\]\(", r"[\1](", text)
    text = re.sub(r"\bresults/(\w+)", r"[results/\1](../../results/\1/README.md)", text)
    return text[:1].upper() + text[1:] if re.match(r"[a-z]{2}", text) else text  # not d, β
