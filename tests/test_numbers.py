"""The numbers that pages quote are those of the CSVs in results/; ``docs/tools/quoted_numbers.py`` writes them anew."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location(
    "quoted_numbers", ROOT / "docs" / "tools" / "quoted_numbers.py"
)
numbers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(numbers)


@pytest.mark.parametrize("page", list(numbers.pages()), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_quotes_what_the_csv_says(page):
    text = page.read_text(encoding="utf-8")
    assert numbers.renewed(text) == text, "run python docs/tools/quoted_numbers.py"
    assert text.count("<!-- number:") == len(numbers.SPAN.findall(text)), "a number is not closed"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.csv").write_text("agent,frames\ndceo,1200\nddqn,5\ndceo,1500\n")
    for seed, last in enumerate((0.5, 0.9)):
        text = f"frames,eval_return\n10,0.1\n20,{last}\n30,\n"
        (tmp_path / "results" / f"seed_{seed}.csv").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("results/a.csv frames where agent=dceo by first as {:,.0f}", "1,200"),
        ("results/a.csv frames where agent=dceo by max", "1500.00"),
        ("results/a.csv frames by count as {}", "3"),
        ("results/seed_*.csv eval_return", "0.70"),
        ("results/seed_*.csv eval_return by max over min as {:.1f}", "0.5"),
    ],
)
def test_a_number_comes_from_its_file(root, source, text):
    page = f"it is <!-- number: {source} -->old<!-- /number -->, then"
    assert numbers.renewed(page, root) == page.replace("old", text)


def test_a_page_may_name_its_sources(root):
    names = "<!-- numbers:\nmost = results/a.csv frames by max as {:,.0f}\n-->"
    page = f"at most <!-- number: most -->old<!-- /number -->\n\n{names}\n"
    assert numbers.renewed(page, root) == page.replace("old", "1,500")
    with pytest.raises(ValueError, match="or a name of the page, got 'least'"):
        numbers.renewed(page.replace("number: most", "number: least"), root)


def test_readme_and_results_quote_from_the_csvs():
    for page in ("README.md", "docs/reproduction/results.md"):
        assert len(numbers.SPAN.findall((ROOT / page).read_text(encoding="utf-8"))) >= 5


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        ("results/b.csv frames", FileNotFoundError, "there is no results/b.csv"),
        ("results/a.csv frame", KeyError, "has the columns agent, frames"),
        ("results/a.csv frames where agent=rnd", ValueError, "no row of a.csv"),
        ("results/a.csv frames by sum", ValueError, "'sum' is none of last, first"),
        ("results/a.csv frames dceo", ValueError, "'dceo' is none of where, by"),
    ],
)
def test_a_wrong_source_is_refused(root, source, error, match):
    with pytest.raises(error, match=match):
        numbers.number(source, root)


@pytest.mark.parametrize("page", list(numbers.pages()), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_line_begins_with_a_number(page):
    # A comment at the beginning of a line would end the paragraph.
    assert "\n<!-- number: " not in page.read_text(encoding="utf-8")
