"""The documentation site: built without a warning, every link leads somewhere, and it works without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("mkdocs", reason="the site's tests need the extra docs")
from docstring_roles import without_roles
from notebook_pages import notebook_page
from public_names import public_names
from site_pages import site_links, sources

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    clean = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=clean)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return folder


class _Page(HTMLParser):
    """The names, links and files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("img", "script") and "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, _Page]:
    return {path: _Page(path.read_text()) for path in site.rglob("*.html")}


def test_every_link_and_anchor_leads_somewhere(site, pages):
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are those of a server's root
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            place = (path.parent / target).resolve() if target else path
            place = place / "index.html" if place.is_dir() else place
            if not place.is_file() or (
                anchor and place in pages and anchor not in pages[place].anchors
            ):
                broken.append((path.relative_to(site), link))
    assert not broken


def test_nothing_is_loaded_from_elsewhere(pages):
    loaded = {name for page in pages.values() for name in page.loaded}
    assert loaded and not [name for name in loaded if "//" in name]


def test_every_public_name_is_in_the_reference(site, pages):
    for part, names in public_names().items():
        page = pages[site / "reference" / f"{part}.html"]
        missing = [name for name in names if f"torchrl_dceo.{part}.{name}" not in page.anchors]
        assert not missing


def test_tables_are_filled_in(site):
    text = (site / "agents" / "dceo.html").read_text()
    assert "option_duration" in text and "<!-- settings" not in text
    assert "loss_laplacian" in text and "<!-- metrics" not in text


def test_no_page_shows_a_role_of_sphinx(pages, site):
    shown = [path for path in pages if re.search(r":(?:class|func|math):", path.read_text())]
    assert not [path.relative_to(site) for path in shown]


def test_roles_become_links_code_and_equations():
    text = without_roles(
        "A :class:`~torchrl_dceo.modules.EigenReward`, :func:`~a.b`, ``c``, :math:`d`."
    )
    assert text == "A [`EigenReward`][torchrl_dceo.modules.EigenReward], `b`, `c`, $d$."
    assert without_roles("is\n\n.. math:: a\n    b\n\nwith") == "is\n\n$$\na\nb\n$$\n\nwith"


def test_links_of_the_repository_become_links_of_the_site():
    text = "[a](../../results/online/README.md#x) [b](../../LICENSE) [c](replay.md) `[d](x)`"
    assert site_links(text, "concepts/options.md").startswith(
        "[a](../results/online/README.md#x) b [c](replay.md)"
    )
    assert site_links("```\n[b](../LICENSE)\n```", "faq.md") == "```\n[b](../LICENSE)\n```"
    assert site_links("[a](docs/faq.md)", "changelog.md") == "[a](faq.md)"
    reference = "[a]: ../../results/online/README.md"
    assert site_links(reference, "how_to/studies.md") == "[a]: ../results/online/README.md"
    assert "examples/compose.py" in sources()


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_tables_are_short(page):
    text = re.sub(
        r"<!--.*?-->", "", page.read_text(encoding="utf-8")
    )  # marks of quoted numbers are not shown
    assert not [line for line in text.splitlines() if line.startswith("|") and len(line) > 120]


def test_a_notebook_becomes_a_page():
    text, images = notebook_page(ROOT / "notebooks" / "components.ipynb")
    assert text.startswith("# Components") and "```python" in text and "```text" in text
    assert images and all(data.startswith(b"\x89PNG") for data in images.values())
    assert all(f"]({name})" in text for name in images)


# What the browser opens, and something that must be seen there.
OPENED = {
    "index.html": ".katex",
    "tutorials/compose.html": ".highlight",
    "tutorials/quickstart.html": "img",
    "agents/dceo.html": "table",
    "reference/objectives.html": "h2#torchrl_dceo\\.objectives\\.GeneralizedLaplacianLoss",
    "environments/index.html": "img",
}


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium here: `make browser`")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, site):
    troubles, contexts = [], []

    def opened(name: str, width: int):
        context = browser.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        tab = context.new_page()
        tab.on(
            "console",
            lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None,
        )
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("requestfailed", lambda request: troubles.append(request.url))
        tab.on(
            "request",
            lambda r: (
                None
                if r.url.startswith(("file:", "data:", "blob:"))
                else troubles.append(f"asks for {r.url}")
            ),
        )
        tab.goto((site / name).as_uri())
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", OPENED)
def test_pages_open_without_trouble(open_page, name, width):
    tab = open_page(name, width)
    tab.wait_for_selector(OPENED[name], state="attached")
    wider = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wider <= 0
    assert tab.locator(".katex-error").count() == 0


def test_search_finds_a_class(open_page):
    tab = open_page("index.html", 1280)
    tab.locator("input.md-search__input").fill("GeneralizedLaplacianLoss")
    tab.wait_for_selector(".md-search-result__item a")
    assert "Laplacian" in tab.locator(".md-search-result__list").inner_text()
