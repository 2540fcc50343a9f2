"""The report of a study as one HTML page: ``dceo study report <results folder>``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import torchrl_dceo
from torchrl_dceo.analysis.figures import agent_colours
from torchrl_dceo.studies.provenance import Provenance, read_provenance
from torchrl_dceo.studies.report.markup import (
    Markup,
    embed_file,
    embedded_json,
    in_the_dark,
    join,
    tag,
    text,
)
from torchrl_dceo.studies.report.numbers import (
    Numbers,
    chart_data,
    keep_arrays,
    learned_pictures,
    read_numbers,
)
from torchrl_dceo.studies.report.tables import (
    adaptation_tables,
    findings,
    origin_section,
    result_tables,
    show_tables,
)

__all__ = ["PAGE", "make_report", "report_folder"]

PAGE = "report.html"
"""The page's name in the folder of the study."""
_log = logging.getLogger(__name__)
Section = tuple[str, str, Markup]
# Files of ``dceo compare``, whose content is on the page anyway.
_OWN_TABLES = {"summary.csv", "improvement.csv"}
_OWN_FIGURES = {"statistics.png"}
_IMAGES = {".png", ".jpg", ".jpeg", ".gif"}


def make_report(
    folder: Path,
    *,
    title: str,
    summary: str,
    commands: Sequence[str],
    runs: Mapping[tuple[str, str, int], Path] | None = None,
    images: Sequence[Path] = (),
    tables: Sequence[Path] = (),
    out: Path | None = None,
    repetitions: int = 2000,
) -> Path:
    """Writes a study as one self-contained HTML page: no server, no network, no other files.

    Args:
        folder (Path): the study, its logs laid out as ``<environment>/<agent>/seed_<k>.csv``, with ``study.json`` if
            there is one. Without logs the page has only images and tables.

    Keyword Args:
        title (str): title of the page.
        summary (str): a sentence with the question or the result.
        commands (sequence of str): the commands that reproduce the study.
        runs (mapping, optional): the run directory of each environment, agent and seed, for figures of single runs;
            their data are copied into ``folder`` if they are small. Default: the data in ``folder``.
        images (sequence of Path, optional): further images.
        tables (sequence of Path, optional): CSV files.
        out (Path, optional): the file. Default: ``report.html`` in the folder.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.

    Returns:
        Path: the page.

    Raises:
        ValueError: if there is nothing to show.

    Examples:
        >>> import pathlib, tempfile
        >>> from torchrl_dceo.studies.report import make_report
        >>> with tempfile.TemporaryDirectory() as name:
        ...     table = pathlib.Path(name) / "table.csv"
        ...     _ = table.write_text("agent,return\\ndceo,1.0\\n")
        ...     page = make_report(
        ...         table.parent, title="A table", summary="", commands=["python it.py"], tables=[table]
        ...     )
        ...     page.name, "<h1>A table</h1>" in page.read_text()
        ('report.html', True)
    """
    folder = Path(folder)
    numbers = read_numbers(folder, repetitions)
    provenance = read_provenance(folder)
    metric = "eval_return" if numbers is None else numbers.headline
    if runs is not None:
        keep_arrays(folder, runs, metric)
    data = {} if numbers is None else chart_data(numbers)
    sections = [] if numbers is None else _number_sections(numbers, data)
    learned = learned_pictures(folder, runs, metric)
    if learned:
        sections.append(("learned", "What was learned", _learned(learned)))
    sections += _file_sections(folder, images, tables)
    if not sections:
        raise ValueError(
            f"{folder} holds nothing to show: no logs as <environment>/<agent>/seed_<k>.csv, no image and no table"
        )
    origin = origin_section(folder, commands, provenance)
    if origin:
        sections.append(("origin", "How it was made", origin))
    found = [] if numbers is None else findings(numbers)
    values = {
        "title": text(title),
        "summary": tag("p", summary, class_="lede") if summary else "",
        "findings": tag("ul", *(tag("li", line) for line in found), class_="findings")
        if found
        else "",
        "facts": _facts(numbers, provenance, title),
        "links": join([tag("a", name, href=f"#{key}") for key, name, _ in sections]),
        "sections": join([_section(*section) for section in sections], "\n"),
        "version": text(torchrl_dceo.__version__),
        "colours": _colours(numbers),
        "data": embedded_json(data),
        "style": _file("page.css"),
        "script": "\n".join(_file(name) for name in ("chart.js", "controls.js", "page.js")),
    }
    target = folder / PAGE if out is None else Path(out)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(Template(_file("page.html")).substitute(values), encoding="utf-8")
    return target


def report_folder(
    folder: Path,
    *,
    title: str | None = None,
    summary: str | None = None,
    out: Path | None = None,
    repetitions: int = 2000,
) -> Path:
    """Writes the page of any folder of results, with all its figures and tables.

    Args:
        folder (Path): the results.

    Keyword Args:
        title (str, optional): default: that of ``study.json`` or of the README.
        summary (str, optional): a sentence below it. Default: the study's question.
        out (Path, optional): the page. Default: ``report.html`` in the folder.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it holds nothing to show.

    Examples:
        >>> from pathlib import Path
        >>> from torchrl_dceo.studies.report import report_folder
        >>> report_folder(Path("/nowhere"))
        Traceback (most recent call last):
        FileNotFoundError: there is no folder /nowhere
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    found = read_provenance(folder)
    # Logs of runs are drawn, not listed; for other folders all files are shown, at any depth.
    has_logs = any(folder.glob("*/*/seed_*.csv"))
    files = sorted(folder.glob("*") if has_logs else folder.rglob("*"))
    environments = {path.name for path in folder.iterdir() if path.is_dir()}
    images = [
        path
        for path in files
        if path.suffix.lower() in _IMAGES
        and path.name not in _OWN_FIGURES
        and path.stem not in environments
    ]
    tables = [path for path in files if path.suffix == ".csv" and path.name not in _OWN_TABLES]
    return make_report(
        folder,
        title=title or found.title,
        summary=found.summary if summary is None else summary,
        commands=found.commands,
        images=images,
        tables=tables,
        out=out,
        repetitions=repetitions,
    )


def _file(name: str) -> str:
    return (resources.files(__package__) / "page_files" / name).read_text(encoding="utf-8")


def _section(key: str, name: str, inside: Markup) -> Markup:
    return tag("section", tag("h2", name), inside, id=key, aria_label=name)


def _number_sections(numbers: Numbers, data: dict[str, Any]) -> list[Section]:
    sections = [
        ("result", "Result", join([result_tables(numbers), Markup(_file("result_note.html"))]))
    ]
    charts = {
        "curves": ("Learning curves", data["environments"]),
        "profiles": ("Performance profiles", data["profiles"]),
        "improvement": ("Who beats whom", data["improvement"]),
    }
    for key, (name, has) in charts.items():
        if has:
            sections.append((key, name, Markup(_file(f"{key}.html"))))
    changed = adaptation_tables(numbers)
    if changed:
        note = Markup(_file("adaptation_note.html"))
        sections.append(("adaptation", "When the environment changed", join([changed, note])))
    return sections


def _learned(pictures: Markup) -> Markup:
    note = "One run an agent: the middle seed by the area under its curve."
    return join([tag("p", note, class_="note"), tag("div", id="learned-controls"), pictures])


def _file_sections(folder: Path, images: Sequence[Path], tables: Sequence[Path]) -> list[Section]:
    sections = []
    shown = [part for path in images if (part := _picture(folder, path))]
    if shown:
        sections.append(("pictures", "Images", tag("div", *shown, class_="pictures")))
    if tables:
        files = {_name(folder, path): path for path in tables}
        sections.append(("tables", "Tables", show_tables(files)))
    return sections


def _picture(folder: Path, path: Path) -> Markup | None:
    name = _name(folder, path)
    try:
        picture = embed_file(path)
    except ValueError as error:
        # A damaged file is skipped.
        _log.warning("left out: %s", error)
        return None
    title = ": ".join(readable(part) for part in Path(name).with_suffix("").parts)
    return picture.figure(title, title)


def readable(name: str) -> str:
    """A readable name of a file or an environment.

    Examples:
        >>> from torchrl_dceo.studies.report import readable
        >>> readable("small_nine_rooms")
        'Small nine rooms'
    """
    text = name.replace("_", " ")
    return text[:1].upper() + text[1:]


def _name(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name


def _facts(numbers: Numbers | None, provenance: Provenance, title: str) -> Markup:
    facts: dict[str, str] = {}
    if numbers is not None:
        agents = [agent for own in numbers.study.values() for agent in own]
        facts["Environments"] = ", ".join(numbers.study)
        facts["Agents"] = ", ".join(numbers.agents)
        seeds = sorted({len(agent.seeds) for agent in agents})
        facts["Seeds"] = " to ".join(str(n) for n in dict.fromkeys((seeds[0], seeds[-1])))
        frames = sorted({agent.total_frames for agent in agents})
        facts["Frames a run"] = " to ".join(
            f"{n:,.0f}" for n in dict.fromkeys((frames[0], frames[-1]))
        )
    # The seeds are in the last section, the size is in the title.
    facts |= {k: v for k, v in provenance.facts.items() if k != "Seeds" and v not in title}
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()]
    return tag("dl", *rows, class_="facts") if rows else Markup()


def _colours(numbers: Numbers | None) -> Markup:
    """The agents' colours as CSS variables, for the light and the dark scheme."""
    if numbers is None:
        return Markup()
    pairs = agent_colours(numbers.agents).values()
    lines = [f"--agent-{i}: light-dark({c}, {in_the_dark(c)});" for i, c in enumerate(pairs)]
    return Markup(f":root {{ {' '.join(lines)} }}")
