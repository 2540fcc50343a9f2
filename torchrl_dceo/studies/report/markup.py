"""HTML of a report page: tags, embedded images and data, colours."""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrl_dceo.analysis.figures import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Markup",
    "Picture",
    "contrast",
    "embed_figure",
    "embed_file",
    "embedded_json",
    "in_the_dark",
    "join",
    "table",
    "tag",
    "text",
]

_DARK = "#16181f"  # the page's dark background, as in page.css


_ENOUGH = 4.5  # the minimum for text (WCAG 2)


def in_the_dark(colour: str) -> str:
    """A shade of a colour with enough contrast on a dark background.

    Examples:
        >>> from torchrl_dceo.studies.report.markup import in_the_dark
        >>> in_the_dark("#edae49"), in_the_dark("#3a3f55")
        ('#edae49', '#7d808f')
    """
    shade, share = colour, 0.0
    while contrast(shade, _DARK) < _ENOUGH:
        share += 0.02
        mixed = (round(c + (255 - c) * share) for c in _channels(colour))
        shade = "#" + "".join(f"{c:02x}" for c in mixed)
    return shade


def contrast(first: str, second: str) -> float:
    """The contrast of two colours, from 1 to 21, by the Web's accessibility guidelines (WCAG 2).

    Examples:
        >>> from torchrl_dceo.studies.report.markup import contrast
        >>> contrast("#ffffff", "#000000")
        21.0
    """
    dark, light = sorted((_luminance(first), _luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in _channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


class Markup(str):
    """Text that is HTML already; any other ``str`` is escaped."""

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
    """Concatenates pieces of a page."""
    return Markup(between.join(text(part) for part in parts))


def tag(name: str, *inside: object, **attributes: object) -> Markup:
    """An element; ``class_`` is its class, underscores in other names become hyphens, and ``None`` is omitted.

    Examples:
        >>> from torchrl_dceo.studies.report.markup import tag
        >>> tag("p", "a & b", class_="note", data_environment="maze")
        '<p class="note" data-environment="maze">a &amp; b</p>'
    """
    pairs = [
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    opening = f"<{name}{''.join(pairs)}>"
    return Markup(opening if name in {"img", "br"} else f"{opening}{join(inside)}</{name}>")


def table(head: Sequence[object], rows: Sequence[Sequence[object]], caption: str) -> Markup:
    """A table that scrolls in its box if the page is too narrow; its first column has the row headers.

    Args:
        head (sequence): the titles of the columns.
        rows (sequence of sequence): the cells.
        caption (str): the caption, for screen readers.
    """
    titles = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows
    ]
    inside = tag("table", tag("caption", caption), tag("thead", titles), tag("tbody", *body))
    # A scrolling box must be reachable by keyboard.
    return tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=caption)


def embedded_json(data: Any) -> Markup:
    """JSON for a script element: nothing in it can close the element, and NaN becomes ``null``.

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


_DPI = 115


_WIDEST = 1500  # pixels


_QUALITY = 84


@dataclass(frozen=True)
class Picture:
    """An image as a data URI.

    Attributes:
        source (str): its data URI.
        width (int): in pixels.
        height (int): in pixels.
    """

    source: str
    width: int
    height: int

    def figure(self, alt: str, caption: str) -> Markup:
        """The image with a caption."""
        image = tag("img", src=self.source, width=self.width, height=self.height, alt=alt)
        if self.width > 1.6 * self.height:
            # On a narrow page a wide image keeps a readable size and scrolls.
            image = tag("div", image, class_="frame", tabindex="0", role="region", aria_label=alt)
            return tag("figure", image, tag("figcaption", caption), class_="picture wide")
        return tag("figure", image, tag("figcaption", caption), class_="picture")


def embed_figure(figure: Figure) -> Picture:
    """Embeds a figure.

    Examples:
        >>> from torchrl_dceo.analysis.figures import new_figure
        >>> from torchrl_dceo.studies.report.markup import embed_figure
        >>> picture = embed_figure(new_figure(2, 1))
        >>> picture.width, picture.height, picture.source[:22]
        (230, 115, 'data:image/webp;base64')
    """
    file = io.BytesIO()
    figure.savefig(file, dpi=_DPI)
    file.seek(0)
    return _webp(need("PIL.Image").open(file))


def embed_file(path: Path) -> Picture:
    """Embeds a PNG, JPEG or GIF file; a GIF is not converted because it may be animated.

    Raises:
        ValueError: if it is not an image.
    """
    module = need("PIL.Image")
    try:
        with module.open(path) as image:
            image.load()
            if image.format == "GIF":
                return Picture(_uri("image/gif", path.read_bytes()), *image.size)
            return _webp(image)
    except (OSError, SyntaxError) as error:  # PIL says SyntaxError for a broken PNG
        raise ValueError(f"{path} is not a readable image ({error})") from error


def _webp(image: Any) -> Picture:
    if image.width > _WIDEST:
        size = (_WIDEST, round(image.height * _WIDEST / image.width))
        image = image.convert("RGBA").resize(size, need("PIL.Image").Resampling.LANCZOS)
    page = need("PIL.Image").new("RGB", image.size, "white")
    rgba = image.convert("RGBA")
    page.paste(rgba, mask=rgba.getchannel("A"))
    file = io.BytesIO()
    page.save(file, format="WEBP", quality=_QUALITY)
    return Picture(_uri("image/webp", file.getvalue()), *page.size)


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
