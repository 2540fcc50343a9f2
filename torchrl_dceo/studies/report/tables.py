"""The tables of a page, its findings, and its provenance."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from torchrl_dceo.analysis.statistics import Aggregate
from torchrl_dceo.analysis.statistics.comparison import ALL_ENVIRONMENTS, AgentSummary
from torchrl_dceo.analysis.statistics.improvement import Improvement
from torchrl_dceo.analysis.statistics.tables import (
    NONE,
    SWITCH_HEAD,
    interval_text,
    known,
    mean_text,
    reached_text,
    spread_text,
    switch_cells,
)
from torchrl_dceo.studies.provenance import Provenance
from torchrl_dceo.studies.report.markup import Markup, join, table, tag, text
from torchrl_dceo.studies.report.numbers import METRICS, Numbers

__all__ = [
    "adaptation_tables",
    "agent_name",
    "findings",
    "origin_section",
    "result_tables",
    "show_tables",
]

_WIDTH, _HEIGHT = 120, 18
_LONGEST = 60  # files with at most this many rows are shown completely
_FIRST = 12  # rows shown of a longer one
_FEW = 5  # with fewer seeds, intervals are too narrow


def agent_name(numbers: Numbers, name: str) -> Markup:
    """An agent's name with its colour."""
    place = numbers.agents.index(name)
    swatch = tag("span", class_="swatch", style=f"--colour: var(--agent-{place})")
    return join([swatch, name])


def findings(numbers: Numbers) -> list[Markup]:
    """One sentence per environment: the best and the second agent by the headline metric over the run.

    If the environment changed, another one about the returns afterwards.
    """
    sentences = []
    for environment in numbers.study:
        own = _of(numbers, environment)
        measure = f"area_{numbers.headline}"
        ranked = sorted(
            (summary for summary in own if measure in summary.aggregates),
            key=lambda summary: -float(summary.aggregates[measure].iqm[0]),
        )
        if ranked:
            told = [*_ranking(numbers, ranked), *_after_the_change(own)]
            sentences.append(join([tag("strong", environment), ": ", *told]))
        elif own:
            sentences.append(join([tag("strong", environment), ": no run has finished yet."]))
    seeds = [s.finished for s in numbers.summaries if s.environment in numbers.study and s.finished]
    if len(numbers.agents) > 1 and seeds and min(seeds) < _FEW:
        sentences.append(
            text(
                f"Some agents have no more than {min(seeds)} finished seed{'s' * (min(seeds) > 1)}: "
                "differences may be chance."
            )
        )
    return sentences


def _ranking(numbers: Numbers, ranked: Sequence[AgentSummary]) -> list[object]:
    what = METRICS[numbers.headline].lower()
    digits = _digits(numbers)
    texts = [interval_text(s.aggregates[f"area_{numbers.headline}"], digits) for s in ranked]
    best = ranked[0]
    end = interval_text(best.aggregates[f"final_{numbers.headline}"], digits)
    seeds = f"{best.finished} seed{'s' * (best.finished > 1)}"
    if not best.aggregates[f"area_{numbers.headline}"].iqm[0] > 0:
        return [f"no agent has a {what} above 0 ({seeds})."]
    if len(ranked) == 1:
        return [
            f"{best.agent} ends at a {what} of {end}; over the run it has {texts[0]} ({seeds})."
        ]
    return [
        f"{best.agent} has the most {what} over the run, {texts[0]}, against {texts[1]} of {ranked[1].agent}, "
        f"the next best{_chance(numbers, best, ranked[1])}; it ends at {end} ({seeds})."
    ]


def _after_the_change(summaries: Sequence[AgentSummary]) -> list[object]:
    """The best agent after a change, by greedy return or, if that is 0 for all, by training return."""

    def end(summary: AgentSummary) -> tuple[float, ...]:
        values = (summary.measures[f"switch_{name}"] for name in ("after", "train_after"))
        return tuple(_or(sum(own) / len(own), -math.inf) for own in values)

    changed = [s for s in summaries if s.measures.get("switch_after")]
    if len(changed) < 2:
        return []
    best, other = sorted(changed, key=end, reverse=True)[:2]
    greedy, train = (
        [mean_text(s.measures[f"switch_{name}"]) for s in (best, other)]
        for name in ("after", "train_after")
    )
    return [
        f" After the environment changed {best.agent} has most: in the last fifth a return of {greedy[0]} "
        f"({train[0]} in training), {other.agent} {greedy[1]} ({train[1]})."
    ]


def _chance(numbers: Numbers, best: AgentSummary, other: AgentSummary) -> str:
    """The probability of improvement, if there are enough runs."""
    for pair in numbers.pairs:
        names = (pair.environment, pair.agent, pair.over, pair.measure)
        wanted = (best.environment, best.agent, other.agent, f"area_{numbers.headline}")
        if names == wanted and not math.isnan(pair.low):
            ends = f"[{pair.low:.2f}, {pair.high:.2f}]"
            return f" (a run of it is better with probability {pair.probability:.2f} {ends})"
    return ""


def result_tables(numbers: Numbers) -> Markup:
    """One table per environment: final and mean metrics, learning speed, and wins against other agents."""
    parts = []
    for environment in dict.fromkeys(summary.environment for summary in numbers.summaries):
        own = _of(numbers, environment)
        parts.append(tag("h3", environment))
        parts.append(_result_table(numbers, environment, own))
    return join(parts)


def _result_table(numbers: Numbers, environment: str, own: Sequence[AgentSummary]) -> Markup:
    digits = _digits(numbers)
    what = METRICS[numbers.headline]
    final, area = f"final_{numbers.headline}", f"area_{numbers.headline}"
    shown = [s.aggregates[final] for s in own if final in s.aggregates]
    top = max([1.0] + [float(max(a.iqm[0], _or(a.high[0], 0.0))) for a in shown])
    low = min([0.0] + [float(min(a.iqm[0], _or(a.low[0], 0.0))) for a in shown])
    columns = {
        "agent": lambda s: agent_name(numbers, s.agent),
        "seeds": _seeds,
        f"{what} at the end, IQM [95 %]": lambda s: interval_text(s.aggregates.get(final), digits),
        f"from {low:.{digits}f} to {top:.{digits}f}": lambda s: _bar(
            s.aggregates.get(final), low, top, numbers.agents.index(s.agent)
        ),
        "mean ± std": lambda s: spread_text(s.aggregates.get(final), digits),
        "over the run, IQM [95 %]": lambda s: interval_text(s.aggregates.get(area), digits),
    }
    # Frames and states of different environments do not mix.
    if environment != ALL_ENVIRONMENTS:
        if any(known(s.measures.get("frames_to_goal", [])) for s in own):
            columns["frames to first goal"] = lambda s: reached_text(
                s.measures.get("frames_to_goal")
            )
        if numbers.headline != "coverage" and any("final_coverage" in s.aggregates for s in own):
            columns["states visited"] = lambda s: interval_text(
                s.aggregates.get("final_coverage"), 0
            )
    if any(pair.environment == environment for pair in numbers.pairs):
        columns["beats the others"] = lambda s: _beats(numbers.pairs, environment, s.agent, area)
    rows = [[make(summary) for make in columns.values()] for summary in own]
    return table(list(columns), rows, f"Agents in {environment}")


def _seeds(summary: AgentSummary) -> str:
    unfinished = summary.started > summary.finished
    return f"{summary.finished} of {summary.started}" if unfinished else f"{summary.finished}"


def _beats(pairs: Sequence[Improvement], environment: str, agent: str, measure: str) -> str:
    """The mean probability that a run of the agent is better than a run of another agent."""
    own = [
        pair.probability
        for pair in pairs
        if (pair.environment, pair.agent, pair.measure) == (environment, agent, measure)
    ]
    return f"{sum(own) / len(own):.0%}" if own else NONE


def _bar(found: Aggregate | None, low: float, top: float, place: int) -> Markup | str:
    """The interquartile mean as a dot on a line from the lowest to the highest value of the table."""
    if found is None:
        return NONE

    def at(value: float) -> float:
        return round(5 + (_WIDTH - 10) * (float(value) - low) / (top - low), 1)

    middle = _HEIGHT // 2
    axis = tag("line", x1=5, x2=_WIDTH - 5, y1=middle, y2=middle, class_="axis")
    parts = [axis]
    if not math.isnan(found.low[0]):
        ends = {"x1": at(found.low[0]), "x2": at(found.high[0])}
        parts.append(tag("line", **ends, y1=middle, y2=middle, class_="ends"))
    parts.append(tag("circle", cx=at(found.iqm[0]), cy=middle, r=4))
    return tag(
        "svg",
        *parts,
        class_="interval",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        width=_WIDTH,
        height=_HEIGHT,
        role="img",
        aria_label=interval_text(found),
        style=f"--colour: var(--agent-{place})",
    )


def adaptation_tables(numbers: Numbers) -> Markup:
    """One table per changing environment: loss of return, recovery, and use of options."""
    parts = []
    for environment in numbers.study:
        own = [s for s in _of(numbers, environment) if "switch_before" in s.measures]
        if own:
            rows = [[agent_name(numbers, s.agent), *switch_cells(s)] for s in own]
            parts += [
                tag("h3", environment),
                table(SWITCH_HEAD, rows, f"After {environment} changed"),
            ]
    return join(parts)


def _of(numbers: Numbers, environment: str) -> list[AgentSummary]:
    return [summary for summary in numbers.summaries if summary.environment == environment]


def _digits(numbers: Numbers) -> int:
    return 0 if numbers.headline == "coverage" else 2


def _or(value: float, other: float) -> float:
    return other if math.isnan(value) else value


def show_tables(files: dict[str, Path]) -> Markup:
    """CSV files as tables, complete ones first; of long files only the first rows.

    Args:
        files (dict of str to Path): the files by their names on the page.

    Raises:
        ValueError: if a file is not a CSV file.
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
    """The provenance of the study: commands, versions and runs.

    Args:
        folder (Path): the study.
        commands (sequence of str): the commands that produce it.
        provenance (Provenance): the provenance of the folder.
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
