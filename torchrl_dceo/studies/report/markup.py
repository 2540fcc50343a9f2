"""HTML from text: everything that comes from a file or a name is escaped here."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from typing import Any

__all__ = ["Markup", "embedded_json", "join", "table", "tag", "text"]


class Markup(str):
    """Text that is HTML already; any other ``str`` is escaped before it enters the page."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Escapes a value, unless it is :class:`Markup`.

    Examples:
        >>> from torchrl_dceo.studies.report.markup import text
        >>> text("a < b"), text(text("a < b"))
        ('a &lt; b', 'a &lt; b')
    """
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def join(parts: Sequence[object], between: str = "") -> Markup:
    """Puts pieces of a page one after the other."""
    return Markup(between.join(text(part) for part in parts))


def tag(name: str, *inside: object, **attributes: object) -> Markup:
    """An element; ``class_`` is its class, an underscore in other names a hyphen, and ``None`` leaves one out.

    Examples:
        >>> from torchrl_dceo.studies.report.markup import tag
        >>> tag("p", "a & b", class_="note", data_world="maze")
        '<p class="note" data-world="maze">a &amp; b</p>'
    """
    pairs = [
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    opening = f"<{name}{''.join(pairs)}>"
    return Markup(opening if name in {"img", "br"} else f"{opening}{join(inside)}</{name}>")


def table(head: Sequence[object], rows: Sequence[Sequence[object]], caption: str) -> Markup:
    """A table that scrolls within its box where the page is too narrow for it; its first column heads the rows.

    Args:
        head (sequence): the titles of the columns.
        rows (sequence of sequence): the cells.
        caption (str): what it is, for those who do not see it.
    """
    titles = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows
    ]
    inside = tag("table", tag("caption", caption), tag("thead", titles), tag("tbody", *body))
    # A box that scrolls must be reachable by keyboard.
    return tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=caption)


def embedded_json(data: Any) -> Markup:
    """Data for a script element: nothing in it can end the element, and numbers that are none are ``null``.

    Examples:
        >>> from torchrl_dceo.studies.report.markup import embedded_json
        >>> embedded_json({"name": "</script>", "value": [1.0, float("nan")]})
        '{"name":"\\\\u003c/script>","value":[1.0,null]}'
    """
    raw = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<\u2028\u2029":
        raw = raw.replace(character, f"\\u{ord(character):04x}")
    return Markup(raw)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data
