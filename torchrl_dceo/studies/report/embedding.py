"""Pictures inside the page: small, and with their size, so that nothing jumps when it opens."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrl_dceo.analysis.style import need
from torchrl_dceo.studies.report.markup import Markup, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Picture", "embed_figure", "embed_file"]

_DPI = 115
_WIDEST = 1500  # pixels
_QUALITY = 84


@dataclass(frozen=True)
class Picture:
    """A picture as text.

    Attributes:
        source (str): its data URI.
        width (int): in pixels.
        height (int): in pixels.
    """

    source: str
    width: int
    height: int

    def figure(self, alt: str, caption: str) -> Markup:
        """The picture with a line beneath it."""
        image = tag("img", src=self.source, width=self.width, height=self.height, alt=alt)
        if self.width > 1.6 * self.height:
            # On a narrow page a wide picture keeps a size that can be read, and scrolls in its frame.
            image = tag("div", image, class_="frame", tabindex="0", role="region", aria_label=alt)
            return tag("figure", image, tag("figcaption", caption), class_="picture wide")
        return tag("figure", image, tag("figcaption", caption), class_="picture")


def embed_figure(figure: Figure) -> Picture:
    """Draws a figure into the page.

    Examples:
        >>> from torchrl_dceo.analysis.style import new_figure
        >>> from torchrl_dceo.studies.report.embedding import embed_figure
        >>> picture = embed_figure(new_figure(2, 1))
        >>> picture.width, picture.height, picture.source[:22]
        (230, 115, 'data:image/webp;base64')
    """
    file = io.BytesIO()
    figure.savefig(file, dpi=_DPI)
    file.seek(0)
    return _webp(need("PIL.Image").open(file))


def embed_file(path: Path) -> Picture:
    """Puts a PNG, JPEG or GIF file into the page; a GIF stays as it is, for it may move.

    Raises:
        ValueError: if it is no picture.
    """
    module = need("PIL.Image")
    try:
        with module.open(path) as image:
            image.load()
            if image.format == "GIF":
                return Picture(_uri("image/gif", path.read_bytes()), *image.size)
            return _webp(image)
    except (OSError, SyntaxError) as error:  # PIL says SyntaxError for a broken PNG
        raise ValueError(f"{path} is no picture that can be read ({error})") from error


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
