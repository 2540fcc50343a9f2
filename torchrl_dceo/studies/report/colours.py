"""Colours of the page that depend on its scheme."""

from __future__ import annotations

__all__ = ["contrast", "in_the_dark"]

_DARK = "#16181f"  # the page's ground in the dark, as page.css has it
_ENOUGH = 4.5  # what the Web's guidelines ask of text


def in_the_dark(colour: str) -> str:
    """A shade of a colour that can be told from a dark ground.

    Examples:
        >>> from torchrl_dceo.studies.report.colours import in_the_dark
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
        >>> from torchrl_dceo.studies.report.colours import contrast
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
