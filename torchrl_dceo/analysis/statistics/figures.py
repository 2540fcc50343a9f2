"""Performance profiles and probabilities of improvement as a figure, as rows of a CSV file and as Markdown tables."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING

from torchrl_dceo.analysis.figures import (
    COLOURS,
    agent_colours,
    describe,
    need,
    new_figure,
    styled,
)
from torchrl_dceo.analysis.statistics import Array, Estimate
from torchrl_dceo.analysis.statistics.comparison import AgentSummary, read_study, summarize
from torchrl_dceo.analysis.statistics.improvement import (
    Improvement,
    improvements,
    profiles_of_study,
)
from torchrl_dceo.analysis.statistics.tables import draw_comparison, summary_csv, summary_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["METRICS", "compare", "draw_statistics", "improvement_csv", "improvement_table"]

_KINDS = ("final", "area")


def _named(kind: str, metric: str) -> str:
    what = "return" if metric.endswith("return") else metric.replace("_", " ")
    return f"final {what}" if kind == "final" else f"mean {what} over the run"


def improvement_csv(pairs: Sequence[Improvement]) -> str:
    """One row for each environment, measure and ordered pair of agents."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([field.name for field in fields(Improvement)])
    for pair in pairs:
        writer.writerow([_cell(v) if isinstance(v, float) else v for v in astuple(pair)])
    return file.getvalue()


def improvement_table(pairs: Sequence[Improvement], metric: str = "eval_return") -> str:
    """Probabilities of improvement as Markdown, each row's agent over each column's; empty if there are none.

    Args:
        pairs (sequence of Improvement): from :func:`~torchrl_dceo.analysis.statistics.improvement.improvements`.
        metric (str, optional): what the tables are about. Default: ``"eval_return"``.
    """
    parts = []
    for environment in dict.fromkeys(pair.environment for pair in pairs):
        for kind in _KINDS:
            chosen = {
                (pair.agent, pair.over): pair
                for pair in pairs
                if pair.environment == environment and pair.measure == f"{kind}_{metric}"
            }
            if chosen:
                parts.append(
                    f"### Probability of improvement: {environment}, {_named(kind, metric)}\n"
                )
                parts.append(_matrix(chosen) + "\n")
    if not parts:
        return ""
    parts.append(
        "How likely a run of the row's agent is better than one of the column's (ties are half), with its bootstrap "
        "interval where both have two runs or more.\n"
    )
    return "\n" + "\n".join(parts)


def _matrix(chosen: Mapping[tuple[str, str], Improvement]) -> str:
    names = list(dict.fromkeys(agent for agent, _ in chosen))
    table = [["agent", *names], ["---"] * (len(names) + 1)]
    for a in names:
        table.append([a, *("" if a == b else _text(chosen[a, b]) for b in names)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


def _text(pair: Improvement) -> str:
    ends = "" if math.isnan(pair.low) else f" [{pair.low:.2f}, {pair.high:.2f}]"
    return f"{pair.probability:.2f}{ends}"


@styled
def draw_statistics(
    summaries: Sequence[AgentSummary],
    pairs: Sequence[Improvement],
    metric: str,
    repetitions: int,
    colours: Mapping[str, str],
) -> Figure | None:
    """Draws, for each environment and for all together, performance profiles and the first agent against the others.

    Args:
        summaries (sequence of AgentSummary): from :func:`~torchrl_dceo.analysis.statistics.comparison.summarize`.
        pairs (sequence of Improvement): from :func:`~torchrl_dceo.analysis.statistics.improvement.improvements`.
        metric (str): what they are about.
        repetitions (int): bootstrap samples.
        colours (mapping of str to str): of each agent.

    Returns:
        Figure: or ``None`` if no agent has finished a run with the metric.
    """
    profiles = {
        kind: profiles_of_study(summaries, f"{kind}_{metric}", repetitions) for kind in _KINDS
    }
    environments = list(profiles["final"])
    if not environments:
        return None
    columns = len(_KINDS) + (1 if pairs else 0)
    figure = new_figure(3.2 * columns + 0.4, 2.5 * len(environments) + 0.6)
    grid = figure.subplots(len(environments), columns, squeeze=False)
    for environment, row in zip(environments, grid, strict=True):
        for axes, kind in zip(row, _KINDS, strict=False):
            title = f"{environment}: {_named(kind, metric)}"
            describe(axes, "score τ", "share of runs above τ", title)
            axes.xaxis.set_major_formatter(need("matplotlib.ticker").ScalarFormatter())
            levels, agents = profiles[kind][environment]
            for name in reversed(agents):  # the first one on top
                _draw_profile(axes, levels, agents[name], name, colours[name])
            axes.set_ylim(-0.03, 1.05)
        if pairs:
            _draw_pairs(row[-1], environment, pairs, metric, colours)
    handles = {
        label: handle
        for axes in grid.flatten()
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        [handles[name] for name in colours if name in handles],
        [name for name in colours if name in handles],
        loc="outside lower center",
        ncols=min(5, len(handles)),
        frameon=False,
    )
    return figure


def _draw_profile(axes: Axes, levels: Array, profile: Estimate, name: str, colour: str) -> None:
    # A profile falls at the scores of the runs, and nowhere between.
    axes.step(levels, profile.value, where="post", color=colour, linewidth=1.8, label=name)
    axes.fill_between(
        levels, profile.low, profile.high, step="post", color=colour, alpha=0.15, linewidth=0
    )


def _draw_pairs(
    axes: Axes,
    environment: str,
    pairs: Sequence[Improvement],
    metric: str,
    colours: Mapping[str, str],
) -> None:
    """The first agent over each other one: a bar is the interval, by the final value above, by the area below."""
    own = [pair for pair in pairs if pair.environment == environment]
    if not own:
        axes.set_axis_off()
        return
    first = own[0].agent
    others = list(dict.fromkeys(pair.over for pair in own if pair.agent == first))
    describe(axes, f"P({first} better)", "", f"{environment}: improvement")
    axes.grid(visible=False, axis="y")
    for kind, shift, marker in (("final", -0.14, "o"), ("area", 0.14, "s")):
        for pair in own:
            if pair.agent == first and pair.measure == f"{kind}_{metric}":
                height = others.index(pair.over) + shift
                axes.plot([pair.low, pair.high], [height] * 2, color=colours[pair.over], alpha=0.5)
                axes.plot(pair.probability, height, marker, color=colours[pair.over], markersize=5)
    axes.axvline(0.5, color=COLOURS["quiet"], linestyle="--", linewidth=0.8)
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(len(others) - 0.5, -0.5)
    axes.set_yticks(range(len(others)), [f"over {name}" for name in others])
    axes.xaxis.set_major_formatter(need("matplotlib.ticker").ScalarFormatter())
    axes.set_xlabel(f"P({first} better)   ● final   ■ over the run")


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


METRICS = ("eval_return", "train_return", "coverage")


def compare(
    folder: str | Path,
    metrics: Sequence[str] = METRICS,
    x: str = "frames",
    repetitions: int = 2000,
) -> list[Path]:
    """Draws ``<environment>.png`` for each environment and writes ``summary.csv`` and ``summary.md`` to the study.

    Performance profiles and probabilities of improvement go to ``statistics.png`` and, where there are two agents or
    more, to ``improvement.csv`` and into ``summary.md``.

    Args:
        folder (path-like): the study, laid out as ``<environment>/<agent>/seed_<k>.csv``.
        metrics (sequence of str, optional): the columns to draw and to summarise. Default: returns and coverage.
        x (str, optional): the column along which curves are drawn. Default: ``"frames"``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.

    Returns:
        list of Path: what was written.
    """
    study, folder = read_study(folder), Path(folder)
    written = []
    # One colour an agent in all environments of the study.
    colours = agent_colours(agent.name for agents in study.values() for agent in agents)
    for environment, agents in study.items():
        written.append(folder / f"{environment}.png")
        figure = draw_comparison(environment, agents, metrics, x, repetitions, colours)
        figure.savefig(written[-1])
    summaries = summarize(study, metrics, repetitions)
    returns = [metric for metric in metrics if metric.endswith("return")]
    pairs = improvements(summaries, metrics, repetitions)
    metric = returns[0] if returns else metrics[0]
    statistics = draw_statistics(summaries, pairs, metric, repetitions, colours)
    if statistics is not None:
        written.append(folder / "statistics.png")
        statistics.savefig(written[-1])
    texts = {"summary.csv": summary_csv(summaries)}
    if pairs:
        texts["improvement.csv"] = improvement_csv(pairs)
    texts["summary.md"] = summary_table(summaries, *returns[:1]) + improvement_table(pairs, metric)
    for name, text in texts.items():
        written.append(folder / name)
        written[-1].write_text(text)
    return written
