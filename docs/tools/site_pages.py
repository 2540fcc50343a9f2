"""What mkdocs adds to the pages of docs/: results, examples, notebooks, the reference, tables of settings and metrics.

Pages link to files as they lie in the repository, so that the links also work there; here they become links of the
site. A link to a file that is no part of the site becomes plain text.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from notebook_pages import notebook_page
from public_names import PARTS, public_names
from settings_tables import presets_table, table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
_REFERENCE = re.compile(r"^(\[[^\]]+\]): (\S+)$")
_SHIM = "https://unpkg.com/iframe-worker/shim"
_DIRECTIVE = re.compile(
    r"<!-- (settings|presets|metrics|public names|pretrained options): ?(\w*) -->"
)


def sources() -> dict[str, str]:
    """Files outside docs/ that are pages or images of the site: from place in the repository to place in the site."""
    found = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
    for path in sorted(ROOT.glob("results/*/README.md")):
        found[_place(path)] = _place(path)
        for picture in sorted(path.parent.rglob("*")):
            if picture.suffix in (".png", ".gif") and picture.is_file():
                found[_place(picture)] = _place(picture)
    for path in sorted(ROOT.glob("examples/*.py")):
        found[_place(path)] = f"examples/{path.stem}.md"
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        found[_place(path)] = f"tutorials/{path.stem}.md"
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds to the navigation what lies in the folder of a section and is not named there."""
    assert config.nav is not None
    named = set(_pages(config.nav))
    for section in config.nav:
        ((title, entries),) = section.items()
        if isinstance(entries, list):
            folders = {PurePosixPath(page).parent for page in _pages(entries)} - {
                PurePosixPath(".")
            }
            entries += [
                page
                for folder in sorted(folders)
                for page in sorted(_place(path, DOCS) for path in (DOCS / folder).glob("*.md"))
                if page not in named
            ]
        pages = sources().values()
        if title == "Reference":
            entries += [{f"torchrl_dceo.{part}": f"reference/{part}.md"} for part in PARTS]
        if title == "Reproduction":
            listed = [
                page for page in pages if page.startswith("results/") and page.endswith(".md")
            ]
            entries.append({"Results": [{page.split("/")[1]: page} for page in listed]})
        if title == "How-to":
            listed = [page for page in pages if page.startswith("examples/")]
            entries.append({"Examples": [{Path(page).stem: page} for page in listed]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and images that do not lie in docs/."""
    for source, page in sources().items():
        path = ROOT / source
        if path.suffix == ".py":
            file = File.generated(config, page, content=_example(path))
        elif path.suffix == ".ipynb":
            text, pictures = notebook_page(path)
            for name, content in pictures.items():
                files.append(File.generated(config, f"tutorials/{name}", content=content))
            file = File.generated(config, page, content=text)
        else:
            file = File.generated(config, page, abs_src_path=str(path))
        files.append(file)
    for part, says in PARTS.items():
        files.append(File.generated(config, f"reference/{part}.md", content=_reference(part, says)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills in the tables and leads the links to the site's own pages."""
    markdown = _DIRECTIVE.sub(lambda match: _FILL[match[1]](match[2]), markdown)
    return site_links(markdown, page.file.src_uri)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Loads from the site what the theme would load from a network, so that search works in a folder of files."""
    up = "../" * page.url.count("/")
    return output.replace(_SHIM, f"{up}assets/iframe-worker/shim.js")


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same in pages that are no Markdown (404.html)."""
    return output_content.replace(_SHIM, "/assets/iframe-worker/shim.js")


def site_links(markdown: str, uri: str) -> str:
    """Links between places in the repository as links between pages of the site."""
    to_site = sources()
    to_source = {page: source for source, page in to_site.items()}
    folder = PurePosixPath(to_source.get(uri, f"docs/{uri}")).parent

    def in_site(link: str) -> str | None:
        """The link as the site has it; None if it leads to a file that is only in the repository."""
        target, _, anchor = link.partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return link
        place = os.path.normpath(folder / target)
        page = to_site.get(place) or to_site.get(f"{place}/README.md")
        if page is None and place.startswith("docs/"):
            page = place.removeprefix("docs/")
        if page is None:
            return None if (ROOT / place).exists() else link  # mkdocs reports broken links
        shown = os.path.relpath(page, PurePosixPath(uri).parent)
        return f"{shown}{'#' + anchor if anchor else ''}"

    def inline(match: re.Match[str]) -> str:
        shown = in_site(match[2])
        return match[1].lstrip("!")[1:-1] if shown is None else f"{match[1]}({shown})"

    def change(line: str) -> str:
        line = _REFERENCE.sub(lambda m: f"{m[1]}: {in_site(m[2]) or m[2]}", line)
        return _LINK.sub(inline, line)

    return "\n".join(_outside_code(markdown, change))


def _outside_code(markdown: str, change: Callable[[str], str]) -> list[str]:
    fence = None
    lines = []
    for line in markdown.split("\n"):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and fence is None:
            fence = mark[1]
        elif mark and mark[1] == fence:
            fence = None
        elif fence is None:
            line = change(line)
        lines.append(line)
    return lines


def _pages(entries: list[Any]) -> list[str]:
    found = []
    for entry in entries:
        values = list(entry.values()) if isinstance(entry, dict) else [entry]
        for value in values:
            found += _pages(value) if isinstance(value, list) else [value]
    return found


def _place(path: Path, base: Path = ROOT) -> str:
    return path.relative_to(base).as_posix()


def _example(path: Path) -> str:
    return f"# {path.stem}\n\n`{_place(path)}`\n\n```python\n{path.read_text().strip()}\n```\n"


def _reference(part: str, says: str) -> str:
    blocks = [f"# torchrl_dceo.{part}\n\n{says}\n"]
    blocks += [f"::: torchrl_dceo.{part}.{name}\n" for name in public_names()[part]]
    return "\n".join(blocks)


def _settings(agent: str) -> str:
    from torchrl_dceo.agents import AGENTS
    from torchrl_dceo.training import TrainConfig

    return table(TrainConfig if agent == "training" else AGENTS[agent].config)


def _presets(agent: str) -> str:
    from torchrl_dceo.agents import AGENTS
    from torchrl_dceo.training.config import RunConfig, TrainConfig

    kind = "atari" if agent.startswith("rainbow") else "grid"
    return presets_table(AGENTS[agent].config, (TrainConfig, RunConfig), kind)


def glossary() -> dict[str, str]:
    """What docs/how_to/metrics.md says of every column."""
    text = re.sub(
        r"\n +", " ", (DOCS / "how_to" / "metrics.md").read_text()
    )  # an entry is one line
    found = {}
    for names, meaning in re.findall(r"^- ((?:`\w+`(?:, |, …)?)+): (.*)$", text, re.MULTILINE):
        found.update(dict.fromkeys(re.findall(r"`(\w+)`", names), meaning))
    return found


def _metrics(agent: str) -> str:
    columns = json.loads((Path(__file__).parent / "log_columns.json").read_text())
    said = glossary()
    rows = ["| column | meaning |", "|---|---|"]
    for column in columns[agent]:
        meaning = re.sub(r"(?<!\\)\|", "\\|", said[column])
        rows.append(f"| `{column}` | {meaning} |")
    return "\n".join(rows)


def _names(_: str) -> str:
    rows = []
    for part, says in PARTS.items():
        links = ", ".join(f"[`{n}`][torchrl_dceo.{part}.{n}]" for n in public_names()[part])
        rows.append(f"## [torchrl_dceo.{part}]({part}.md)\n\n{says}\n\n{links}\n")
    return "\n".join(rows)


def _pretrained(_: str) -> str:
    with (ROOT / "results" / "pretrained_options" / "measured.csv").open() as file:
        sets = list(csv.DictReader(file))
    rows = [
        "| name | climb | states, options | states, random walk | size |",
        "|---|---|---|---|---|",
    ]
    for row in sets:
        climb = "–" if row["option_climb"] == "nan" else row["option_climb"]
        seen = f"{row['states_options']} | {row['states_random']}"
        rows.append(f"| `{row['name']}` | {climb} | {seen} | {row['kilobytes']} kB |")
    return "\n".join(rows)


_FILL: dict[str, Callable[[str], str]] = {
    "settings": _settings,
    "presets": _presets,
    "metrics": _metrics,
    "public names": _names,
    "pretrained options": _pretrained,
}
