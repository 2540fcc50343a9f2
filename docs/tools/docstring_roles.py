"""A griffe extension: docstrings as Markdown. Sphinx roles become links of the reference or code, equations KaTeX's."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from public_names import canonical_names

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|obj|exc):`(~?)([^`]+)`")
_DOUBLE = re.compile(r"``([^`]+)``")
_MATH = re.compile(r":math:`([^`]+)`")
_EQUATION = re.compile(r"^( *)\.\. math::((?:.*\n?)(?:\1 +.*\n?|\s*\n(?=\1 +\S))*)", re.MULTILINE)


@functools.cache
def _targets() -> dict[str, str]:
    return canonical_names()


def without_roles(text: str) -> str:
    """The text of a docstring in Markdown."""

    def link(match: re.Match[str]) -> str:
        name = match[2].removesuffix("()")
        shown = name.rsplit(".", 1)[-1] if match[1] else name
        target = _targets().get(name)
        return f"[`{shown}`][{target}]" if target else f"`{shown}`"

    def equation(match: re.Match[str]) -> str:
        body = "\n".join(match[1] + line.strip() for line in match[2].strip().splitlines())
        return f"{match[1]}$$\n{body}\n{match[1]}$$\n"

    text = _MATH.sub(lambda match: f"${match[1]}$", _EQUATION.sub(equation, text))
    return _DOUBLE.sub(r"`\1`", _ROLE.sub(link, text))


class DocstringRoles(griffe.Extension):
    """Rewrites every docstring as it is loaded."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrites the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = without_roles(obj.docstring.value)
