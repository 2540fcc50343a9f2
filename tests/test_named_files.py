"""Every command of the pages names a file or a module that exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("results/*/README.md"),
    *ROOT.glob("research/*.md"),
]
# A changelog names what was there then.
PAGES = [page for page in PAGES if page.name != "CHANGELOG.md"]
_FILE = re.compile(r"\b(?:examples|recipes|research|benchmarks)/[\w/]+\.py\b")
_MODULE = re.compile(r"python(?:3)? (?:-\w+ ignore )?-m (torchrl_dceo[\w.]*)")


def test_the_pages_have_commands():
    text = "\n".join(page.read_text() for page in PAGES)
    assert len(_FILE.findall(text)) > 20 and len(_MODULE.findall(text)) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page):
    text = page.read_text()
    missing = [name for name in _FILE.findall(text) if not (ROOT / name).is_file()]
    for module in set(_MODULE.findall(text)):
        found = importlib.util.find_spec(module)
        if found is not None and found.submodule_search_locations:
            found = importlib.util.find_spec(f"{module}.__main__")
        if found is None:
            missing.append(module)
    assert not missing


def test_every_test_that_holds_a_promise_is_there():
    """docs/concepts/checkpoints.md names a test, or a file of tests, for each of its promises."""
    page = (ROOT / "docs" / "concepts" / "checkpoints.md").read_text()
    rows = [row for row in page.splitlines() if row.startswith("| ") and "test_" in row]
    tests = list((ROOT / "tests").rglob("test_*.py"))
    named = {name for row in rows for name in re.findall(r"test_\w+(?:\.py)?", row)}
    files = {name for name in named if name.endswith(".py")}
    assert len(rows) > 25 and files <= {path.name for path in tests}
    text = "\n".join(path.read_text() for path in tests)
    assert not [name for name in named - files if f"def {name}(" not in text]
