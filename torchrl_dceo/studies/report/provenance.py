"""What a study's folder says of its origin, and that section of the page."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrl_dceo.studies.report.markup import Markup, join, table, tag

__all__ = [
    "Provenance",
    "origin_section",
    "read_provenance",
    "show_tables",
]

STUDY_FILE = "study.json"


_LONGEST = 60  # rows of a table that are shown whole


_FIRST = 12  # rows of a longer one


@dataclass(frozen=True)
class Provenance:
    """What a folder says about itself.

    Attributes:
        title (str): by ``study.json``, the README's heading, or the folder's name.
        summary (str): the study's question; empty if it says none.
        commands (list of str): that made it.
        facts (dict of str to str): preset, commit, seeds and the like.
        versions (dict of str to str): of packages.
        runs (list of dict): state, frames and command of each run, as ``study.json`` has them.
    """

    title: str
    summary: str = ""
    commands: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)


def read_provenance(folder: Path) -> Provenance:
    """Reads ``study.json`` and ``README.md``, as far as a folder has them.

    Raises:
        ValueError: if ``study.json`` is no JSON object.

    Examples:
        >>> import pathlib, tempfile
        >>> from torchrl_dceo.studies.report.provenance import read_provenance
        >>> with tempfile.TemporaryDirectory() as name:
        ...     folder = pathlib.Path(name)
        ...     text = "# Maze\\n\\n    python recipes/maze.py\\n\\nCommit `7ece472`."
        ...     _ = (folder / "README.md").write_text(text)
        ...     found = read_provenance(folder)
        >>> found.title, found.commands, found.facts
        ('Maze', ['python recipes/maze.py'], {'Commit': '7ece472'})
    """
    study = _study(folder / STUDY_FILE)
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    commits = (
        study.get("commits")
        or study.get("commit")
        or re.findall(r"[Cc]ommits? `([0-9a-f]{7,40})`", text)
    )
    commands = [str(study["command"])] if study.get("command") else []
    commands += [str(line) for line in study.get("commands") or []]
    named = {
        "Preset": study.get("preset"),
        "Size": study.get("size"),
        "Seeds": study.get("seeds"),
        "Commit": commits,
        "Runs done": _done(study),
        "Written": study.get("written"),
    }
    return Provenance(
        title=str(study.get("title") or (heading[1] if heading else folder.resolve().name)),
        summary=str(study.get("question") or ""),
        commands=list(dict.fromkeys(commands or re.findall(r"^    (\S.*)$", text, re.MULTILINE))),
        facts={name: _plain(value) for name, value in named.items() if value},
        versions={str(k): str(v) for k, v in dict(study.get("versions") or {}).items()},
        runs=[run for run in study.get("runs") or [] if isinstance(run, dict)],
    )


def _study(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): delete it or write it again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(found).__name__}")
    return found


def _done(study: dict[str, Any]) -> str | None:
    if "done" not in study or not study.get("runs"):
        return None
    return f"{study['done']} of {len(study['runs'])}"


def _plain(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(dict.fromkeys(str(one) for one in value))
    return str(value)


def show_tables(files: dict[str, Path]) -> Markup:
    """CSV files as tables, those that are shown whole first; of a long one the first rows.

    Args:
        files (dict of str to Path): each with the name that it has on the page.

    Raises:
        ValueError: if one is no CSV file of text.
    """
    tables = {name: _rows(path) for name, path in files.items()}
    order = sorted(tables, key=lambda name: len(tables[name]) > _LONGEST)
    return join([_table(name, tables[name]) for name in order])


def _rows(path: Path) -> list[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [row for row in csv.reader(file) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no CSV file ({error})") from error


def _table(name: str, rows: list[list[str]]) -> Markup:
    if not rows:
        return tag("p", f"{name} is empty.", class_="note")
    shown = rows[1:] if len(rows) <= _LONGEST else rows[1 : _FIRST + 1]
    parts: Sequence[Markup] = [tag("h3", name), table(rows[0], shown, name)]
    if len(shown) < len(rows) - 1:
        note = f"The first {len(shown)} of {len(rows) - 1} rows; the others are in the file."
        parts = [*parts, tag("p", note, class_="note")]
    return join(parts)


def origin_section(folder: Path, commands: Sequence[str], provenance: Provenance) -> Markup:
    """How the study was made, so that it can be made again.

    Args:
        folder (Path): the study.
        commands (sequence of str): that make it.
        provenance (Provenance): what its folder says about itself.
    """
    parts: list[Markup] = []
    if commands:
        parts.append(_commands(commands))
    open_runs = [run for run in provenance.runs if run.get("state") not in (None, "done")]
    if open_runs:
        head = ["run", "state", "frames", "command"]
        rows = [
            [run.get("name", ""), run["state"], run.get("frames") or 0, run.get("command", "")]
            for run in open_runs
        ]
        parts += [tag("h3", "Runs that are not done"), table(head, rows, "Runs that are not done")]
    if provenance.facts.get("Seeds"):
        parts.append(tag("p", f"Seeds: {provenance.facts['Seeds']}."))
    if provenance.versions:
        entries = [
            tag("div", tag("dt", name), tag("dd", version))
            for name, version in provenance.versions.items()
        ]
        parts += [tag("h3", "Versions"), tag("dl", *entries, class_="facts")]
    settings = sorted(folder.glob("*/*/config.yaml"))
    if settings:
        parts.append(tag("h3", "Settings"))
    for path in settings:
        inside = tag(
            "pre", tag("code", path.read_text(encoding="utf-8", errors="replace")), tabindex="0"
        )
        name = f"{path.parts[-2]} in {path.parts[-3]}"
        parts.append(tag("details", tag("summary", name), inside))
    return join(parts)


def _commands(commands: Sequence[str]) -> Markup:
    code = tag("pre", tag("code", "\n".join(commands), id="commands"), tabindex="0")
    button = tag("button", "Copy", type="button", class_="copy", data_copy="commands")
    return tag("div", button, code, class_="commands")
