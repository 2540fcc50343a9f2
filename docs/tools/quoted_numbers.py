"""Writes the numbers of the pages anew from the CSVs in results/: ``python docs/tools/quoted_numbers.py [--check]``.

A number in a page stands between two comments, the first of which says where it comes from:

    after <!-- number: results/x/summary.csv frames_to_half where agent=dceo as {:,.0f} -->60,000<!-- /number --> frames

After the file come the column, the rows (all, without ``where``), how several become one (``by last`` (default),
``first``, ``mean``, ``median``, ``min``, ``max`` or ``count``) and how it is written (``as``, a Python format without
spaces; default ``{:.2f}``). A file may be a pattern, ``results/x/maze/dceo/seed_*.csv``: each file then gives one value
by ``by``, and ``over`` puts the files together the same way (default: ``mean``). ``--check`` only compares.
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
    """The text of a number from what its comment says."""
    words = source.split()
    if len(words) < 2:
        raise ValueError(f"a number needs a file and a column, got {source!r}")
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
    """The numbers of a column in the rows that are wanted."""
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


def renewed(text: str, root: Path = ROOT) -> str:
    """A page with its numbers as the CSVs have them."""
    return SPAN.sub(lambda m: f"{m[1]}{number(m[2], root)}{m[4]}", text)


def pages(root: Path = ROOT) -> Iterator[Path]:
    """Every page that may quote numbers."""
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))
    yield from sorted((root / "results").rglob("*.md"))


def main() -> int:
    """Rewrites the pages; returns 1 if a number was old and ``--check`` is given."""
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
