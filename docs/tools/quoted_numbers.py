"""Updates the numbers that pages quote from the CSVs in results/: ``python docs/tools/quoted_numbers.py [--check]``.

A quoted number stands between two comments. The first comment gives its source:

    after <!-- number: results/x/summary.csv frames_to_half where agent=dceo as {:,.0f} -->60,000<!-- /number --> frames

A source is a file and a column, followed by any of

- ``where key=value ...``: use only these rows (default: all rows),
- ``by``: rows to one value, ``last`` (default), ``first``, ``mean``, ``median``, ``min``, ``max``, ``count``,
- ``over``: several files to one value, by the same names (default: ``mean``),
- ``as``: a Python format without spaces (default: ``{:.2f}``).

The file may be a pattern such as ``results/x/maze/dceo/seed_*.csv``. A page can also name its sources once, usually at
its end, so that the comments in a table stay short:

    <!-- numbers:
    half = results/x/summary.csv frames_to_half where agent=dceo as {:,.0f}
    -->

    after <!-- number: half -->60,000<!-- /number --> frames

``--check`` compares and writes nothing.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPAN = re.compile(r"(<!-- number: ([^>]*?) -->)(.*?)(<!-- /number -->)", re.DOTALL)
NAMES = re.compile(r"<!-- numbers:\n(.*?)-->", re.DOTALL)
ONE = {
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "count": len,
}


def number(source: str, root: Path = ROOT) -> str:
    """The text of a number, from its source."""
    words = source.split()
    if len(words) < 2:
        raise ValueError(
            f"a number needs a file and a column, or a name of the page, got {source!r}"
        )
    pattern, column, *rest = words
    parts: dict[str, list[str]] = {"where": [], "by": [], "over": [], "as": []}
    key = ""
    for word in rest:
        if word in parts:
            key = word
        elif not key:
            raise ValueError(f"{source!r}: {word!r} is none of {', '.join(parts)}")
        else:
            parts[key].append(word)
    by, over = (parts["by"] or ["last"])[0], (parts["over"] or ["mean"])[0]
    for name in (by, over):
        if name not in ONE:
            raise ValueError(f"{source!r}: {name!r} is none of {', '.join(ONE)}")
    wanted = dict(word.split("=", 1) for word in parts["where"])
    files = sorted(root.glob(pattern))
    if not files:
        raise FileNotFoundError(f"{source!r}: there is no {pattern}")
    each = [ONE[by](values(path, column, wanted, source)) for path in files]
    text = (parts["as"] or ["{:.2f}"])[0]
    return text.format(each[0] if len(each) == 1 else ONE[over](each))


def values(path: Path, column: str, wanted: dict[str, str], source: str) -> list[float]:
    """The numbers of a column in the selected rows."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or column not in rows[0] or not set(wanted) <= set(rows[0]):
        raise KeyError(
            f"{source!r}: {path.name} has the columns {', '.join(rows[0] if rows else ())}"
        )
    kept = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    found = [float(row[column]) for row in kept if row[column] not in ("", None)]
    if not found:
        raise ValueError(f"{source!r}: no row of {path.name} has a number there")
    return found


def named_sources(text: str) -> dict[str, str]:
    """The sources that a page names, by name."""
    lines = [line for block in NAMES.findall(text) for line in block.splitlines() if line.strip()]
    pairs = (line.split(" = ", 1) for line in lines)
    return {name.strip(): source.strip() for name, source in pairs}


def renewed(text: str, root: Path = ROOT) -> str:
    """A page with its numbers as the CSVs have them."""
    sources = named_sources(text)
    return SPAN.sub(lambda m: f"{m[1]}{number(sources.get(m[2], m[2]), root)}{m[4]}", text)


def pages(root: Path = ROOT) -> Iterator[Path]:
    """Every page that may quote numbers."""
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))
    yield from sorted((root / "results").rglob("*.md"))


def main() -> int:
    """Rewrites the pages; returns 1 if ``--check`` is given and a number is outdated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    old = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = renewed(text)
        if new != text:
            old += 1
            sys.stdout.write(f"{page.relative_to(ROOT)}\n")
            if not check:
                page.write_text(new, encoding="utf-8")
    return int(check and old > 0)


if __name__ == "__main__":
    sys.exit(main())
