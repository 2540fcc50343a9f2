"""Comparisons as tables, figures and numbers for people."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchrl_dceo.analysis.figures import (
    COLOURS,
    agent_colours,
    describe,
    grid_of_axes,
    need,
    new_figure,
    styled,
)
from torchrl_dceo.analysis.figures.curves import mark_switch, switch_places
from torchrl_dceo.analysis.statistics import Aggregate
from torchrl_dceo.analysis.statistics.comparison import ALL_ENVIRONMENTS, AgentRuns, AgentSummary
from torchrl_dceo.analysis.statistics.learning_speed import SampleEfficiency, sample_efficiency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "NONE",
    "SWITCH_HEAD",
    "draw_comparison",
    "interval_text",
    "known",
    "mean_text",
    "reached_text",
    "spread_text",
    "summary_csv",
    "summary_table",
    "switch_cells",
]

NONE = "–"


"""What stands where there is no number."""


def known(values: Sequence[float]) -> list[float]:
    """Those that are not NaN."""
    return [value for value in values if not math.isnan(value)]


def mean_text(values: Sequence[float]) -> str:
    """The mean of those that are known.

    Examples:
        >>> from torchrl_dceo.analysis.statistics.tables import mean_text
        >>> mean_text([0.25, float("nan"), 0.75]), mean_text([])
        ('0.50', '–')
    """
    numbers = known(values)
    return f"{statistics.fmean(numbers):.2f}" if numbers else NONE


def interval_text(found: Aggregate | None, digits: int = 2) -> str:
    """The interquartile mean of the first point, and its interval if it has one.

    Examples:
        >>> from torchrl_dceo.analysis import aggregate
        >>> from torchrl_dceo.analysis.statistics.tables import interval_text
        >>> interval_text(aggregate([[0.0], [1.0]])), interval_text(aggregate([[0.25]]))
        ('0.50 [0.00, 1.00]', '0.25')
    """
    if found is None:
        return NONE
    low, high = found.low[0], found.high[0]
    ends = "" if math.isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{found.iqm[0]:.{digits}f}{ends}"


def spread_text(found: Aggregate | None, digits: int = 2) -> str:
    """Mean and standard deviation of the first point, as the paper has them.

    Examples:
        >>> from torchrl_dceo.analysis import aggregate
        >>> from torchrl_dceo.analysis.statistics.tables import spread_text
        >>> spread_text(aggregate([[0.0], [1.0]])), spread_text(aggregate([[0.25]]))
        ('0.50 ± 0.71', '0.25')
    """
    if found is None:
        return NONE
    mean, std = found.mean[0], found.std[0]
    return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def reached_text(frames: Sequence[float] | None) -> str:
    """The median number of frames, in thousands, and how many runs got there at all.

    Examples:
        >>> from torchrl_dceo.analysis.statistics.tables import reached_text
        >>> reached_text([2000.0, 4000.0, float("inf")]), reached_text([float("inf")])
        ('4k (2/3)', 'never (0/1)')
        >>> reached_text([80_000.0, 105_000.0])
        '92.5k (2/2)'
    """
    if not frames:
        return NONE
    reached = sum(math.isfinite(value) for value in frames)
    middle = statistics.median(frames)
    thousands = f"{middle / 1000:.1f}".removesuffix(".0")
    text = f"{thousands}k" if math.isfinite(middle) else "never" if not reached else NONE
    return f"{text} ({reached}/{len(frames)})"


_PANELS = {
    "eval_return": ("Greedy return", "return"),
    "train_return": ("Training return", "return"),
    "coverage": ("Coverage", "distinct states visited"),
    "option_climb": ("Option quality", "share of the range climbed"),
}


_HEAD = [
    "agent",
    "seeds",
    "final return, IQM [95 %]",
    "mean ± std",
    "area under curve",
    "frames to first goal",
    "frames to return 0.5",
    "final coverage",
]


# How an agent took the change of its environment: what was lost, how soon it was back, which options it used.
SWITCH_HEAD = [
    "agent",
    "return before",
    "return after",
    "mean return since",
    "in training",
    "frames to half of it",
    "frames to a goal",
    "options used again",
    "same use",
]


_TICK: dict[str, Any] = {
    "marker": "^",
    "markersize": 6,
    "markeredgecolor": COLOURS["floor"],
    "linestyle": "",
}


@styled
def draw_comparison(
    environment: str,
    agents: Sequence[AgentRuns],
    metrics: Sequence[str],
    x: str = "frames",
    repetitions: int = 2000,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Draws a panel for each metric: interquartile mean and its interval for each agent, and each run as a thin line.

    Args:
        environment (str): the title.
        agents (sequence of AgentRuns): from :func:`~torchrl_dceo.analysis.statistics.comparison.read_study`.
        metrics (sequence of str): columns of the logs; one that no run has is left out.
        x (str, optional): the column along which curves are drawn: ``"frames"`` (those of discovery included),
            ``"updates"`` or ``"seconds"``. Default: ``"frames"``.
        repetitions (int, optional): bootstrap samples. Default: ``2000``.
        colours (mapping of str to str, optional): of each agent. Default: those of the palette.
    """
    logs = [run for agent in agents for run in agent.seeds.values()]
    panels = {m: sample_efficiency(agents, m, x, repetitions=repetitions) for m in metrics}
    panels = {metric: curves for metric, curves in panels.items() if curves.agents}
    if not panels:
        raise ValueError(f"no run in {environment} has any of {', '.join(metrics)} along {x}")
    sizes = {
        agent.size: None for agent in agents if agent.size
    }  # of the same environment, unless someone changed it
    figure = new_figure(3.4 * len(panels) + 0.4, 3.4, "\n".join([environment, *sizes]))
    if colours is None:
        colours = agent_colours(agent.name for agent in agents)
    for axes, (metric, curves) in zip(
        grid_of_axes(figure, len(panels), len(panels)), panels.items(), strict=True
    ):
        title, label = _PANELS.get(metric, (metric.replace("_", " ").capitalize(), metric))
        describe(axes, x, label, title)
        for agent in reversed(agents):  # the first one on top
            if agent.name in curves.agents:
                _draw_agent(axes, agent, curves, x, colours[agent.name])
        for place in sorted({place for run in logs for place in switch_places(run, x)}):
            mark_switch(axes, place)
        axes.set_xlim(0, curves.grid[-1])
        if metric.endswith("_return"):
            low, high = axes.dataLim.intervaly
            axes.set_ylim(min(0.0, low) * 1.05 - 0.03, max(1.05, high * 1.05))
        else:
            axes.set_ylim(bottom=min(0.0, axes.dataLim.y0))
    handles = {label: handle for axes in figure.axes for handle, label in _legend(axes)}
    if any(_end_of_discovery(run, x) is not None for run in logs):
        handles["end of discovery"] = need("matplotlib.lines").Line2D(
            [], [], color=COLOURS["quiet"], **_TICK
        )
    figure.legend(
        handles.values(),
        handles,
        loc="outside lower center",
        ncols=min(5, 2 * len(panels), len(handles)),  # a panel is wide enough for two names
        frameon=False,
    )
    return figure


def _legend(axes: Axes) -> Iterable[tuple[Any, str]]:
    handles, labels = axes.get_legend_handles_labels()
    return zip(reversed(handles), reversed(labels), strict=True)


def _draw_agent(
    axes: Axes, agent: AgentRuns, curves: SampleEfficiency, x: str, colour: str
) -> None:
    grid, own = curves.grid, curves.agents[agent.name]
    for curve in own.runs.values():
        axes.plot(grid, curve, color=colour, linewidth=0.5, alpha=0.35)
    over_seeds = own.over_seeds
    seeds = "1 seed" if len(own.runs) == 1 else f"{len(own.runs)} seeds"
    axes.plot(grid, over_seeds.iqm, color=colour, linewidth=1.8, label=f"{agent.name} ({seeds})")
    axes.fill_between(grid, over_seeds.low, over_seeds.high, color=colour, alpha=0.18, linewidth=0)
    # Where discovery ends, a tick on the axis.
    ends = [end for run in agent.seeds.values() if (end := _end_of_discovery(run, x)) is not None]
    if ends:
        place, bottom = [statistics.median(ends)], [0]
        axes.plot(
            place,
            bottom,
            color=colour,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            **_TICK,
        )


def _end_of_discovery(run: dict[str, list[float]], x: str) -> float | None:
    """Where the last phase begins, if it has."""
    phases = run.get("phase", [])
    later = [i for i in range(1, len(phases)) if phases[i] > phases[i - 1]]
    return run[x][later[-1] - 1] if later else None


def summary_csv(summaries: Sequence[AgentSummary]) -> str:
    """One row for each environment, agent and measure: the aggregates, and how many runs reached what can be missed."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    numbers = ("iqm", "low", "high", "mean", "std")
    writer.writerow(["environment", "agent", "measure", "runs", "reached", *numbers])
    for summary in summaries:
        for name in dict.fromkeys([*summary.measures, *summary.aggregates]):
            values = summary.measures.get(name)
            reached = summary.finished if values is None else int(np.isfinite(values).sum())
            found = summary.aggregates.get(name)
            cells = ["" if found is None else _cell(getattr(found, n)[0]) for n in numbers]
            writer.writerow(
                [summary.environment, summary.agent, name, summary.finished, reached, *cells]
            )
    return file.getvalue()


def summary_table(summaries: Sequence[AgentSummary], metric: str = "eval_return") -> str:
    """The comparison as Markdown, a table an environment, over finished runs.

    Args:
        summaries (sequence of AgentSummary): from :func:`~torchrl_dceo.analysis.statistics.comparison.summarize`.
        metric (str, optional): the return that the table is about. Default: ``"eval_return"``.
    """
    parts = []
    for environment in dict.fromkeys(summary.environment for summary in summaries):
        # Frames and states of different environments do not mix.
        head = _HEAD[:5] if environment == ALL_ENVIRONMENTS else _HEAD
        rows = [
            _cells(summary, metric) for summary in summaries if summary.environment == environment
        ]
        table = [head, ["---"] * len(head), *(row[: len(head)] for row in rows)]
        lines = [f"| {' | '.join(cells)} |" for cells in table]
        parts.append("\n".join([f"### {environment}", "", *lines]))
        changed = [
            s for s in summaries if s.environment == environment and "switch_before" in s.measures
        ]
        if changed:
            parts.append(_switch_table(changed))
    parts.append(
        "Final: mean over the last tenth of a run. Area: mean return over the run. IQM: interquartile mean "
        "over seeds (the mean of three or fewer), interval by stratified bootstrap. Frames: the median over "
        "seeds, discovery included, and how many seeds got there."
    )
    return "\n\n".join(parts) + "\n"


def switch_cells(summary: AgentSummary) -> list[str]:
    """A row of :data:`SWITCH_HEAD`, after the agent's name: how it took the change of its environment."""
    measures = {
        name.removeprefix("switch_"): values
        for name, values in summary.measures.items()
        if name.startswith("switch_")
    }
    return [
        *(mean_text(measures[name]) for name in ("before", "after", "area_after", "train_after")),
        *(reached_text(known(measures[name])) for name in ("recovery", "goal_again")),
        *(mean_text(measures[name]) for name in ("reused", "overlap")),
    ]


def _switch_table(summaries: Sequence[AgentSummary]) -> str:
    table = [SWITCH_HEAD, ["---"] * len(SWITCH_HEAD)]
    table += [[summary.agent, *switch_cells(summary)] for summary in summaries]
    lines = [f"| {' | '.join(cells)} |" for cells in table]
    note = (
        "Before, after: mean return over the last fifth of the period before and after the environment changed, mean "
        "over seeds; in training: the same for the training return after the change. To half of it: frames from the "
        "change to half of the return before it, over the seeds that had one. Options: the fraction of those used "
        "before that were used after, and the overlap of their distributions."
    )
    return "\n".join(["After the environment changed:", "", *lines, "", note])


def _cells(summary: AgentSummary, metric: str) -> list[str]:
    final = summary.aggregates.get(f"final_{metric}")
    area = summary.aggregates.get(f"area_{metric}")
    coverage = summary.aggregates.get("final_coverage")
    seeds = f"{summary.finished}"
    if summary.started > summary.finished:
        seeds += f" of {summary.started} finished"
    return [
        summary.agent,
        seeds,
        interval_text(final),
        spread_text(final),
        interval_text(area),
        reached_text(summary.measures.get("frames_to_goal")),
        reached_text(summary.measures.get("frames_to_half")),
        NONE if coverage is None else f"{coverage.iqm[0]:.0f}",
    ]


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"
