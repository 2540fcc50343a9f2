"""The last section of a page: commands, versions, settings, and runs that are not done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchrl_dceo.studies.report.markup import Markup, join, table, tag
from torchrl_dceo.studies.report.provenance import Provenance

__all__ = ["origin_section"]


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
