"""The pictures of the tabular studies, from their CSV files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchrl_dceo.analysis.figures.maps import show_map, show_marks
from torchrl_dceo.analysis.figures.style import (
    COLOURS,
    colormap,
    describe,
    explain,
    grid_of_axes,
    need,
    new_figure,
    styled,
)
from torchrl_dceo.envs.grid.layouts import Layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "nine_rooms": "Nine Rooms",
    "maze": "Maze",
    "cube": "Cube within 3 moves",
    "four_rooms": "Four Rooms",
    "cube5": "Cube within 5 moves",
}
STATES = {"nine_rooms": 237, "maze": 91, "cube": 385, "cube5": 12_224}
# One colour a method, in every figure.
LOOKS = {
    "random": (COLOURS["quiet"], "random"),
    "counts": (COLOURS["fourth"], "counts"),
    "ez_greedy": (COLOURS["third"], "εz-greedy"),
    "ceo": (COLOURS["second"], "CEO"),
    "ceo_two_phase": (COLOURS["first"], "CEO, two phases"),
    "ddqn": (COLOURS["quiet"], "ε-greedy"),
    "rnd": ("#8d5a97", "RND"),
    "diayn": ("#7f6a4d", "DIAYN"),
    "dceo": (COLOURS["second"], "DCEO"),
    "dceo_short": ("#f08a5d", "DCEO, μ = 0.1, D = 3"),
    "dceo_two_phase": (COLOURS["first"], "DCEO, two phases"),
}


@styled
def draw_curves(
    rows: Sequence[Mapping[str, Any]],
    name: str,
    title: str,
    delays: Mapping[str, int] | None = None,
) -> Figure:
    """Mean and standard deviation over seeds of each method, a panel a world; a discovery phase is shaded."""
    worlds = [world for world in TITLES if any(row["world"] == world for row in rows)]
    figure = new_figure(3.5 * len(worlds) + 1.5, 3.0, title)
    label = {"coverage": "distinct states visited", "eval_return": "return"}[name]
    for axes, world in zip(grid_of_axes(figure, len(worlds), len(worlds)), worlds, strict=True):
        describe(axes, "steps", label if world == worlds[0] else "", TITLES[world])
        for method, (colour, text) in LOOKS.items():
            points = [
                (
                    float(row["frames"]),
                    float(row[f"{name}_mean"]),
                    float(row[f"{name}_std"] or "nan"),
                )
                for row in rows
                if (row["world"], row["method"]) == (world, method)
            ]
            delay = (delays or {}).get(world, 0) if method.endswith("two_phase") else 0
            points = [p for p in points if not math.isnan(p[1]) and p[0] > delay]
            if not points:
                continue
            frames, mean, std = zip(*points, strict=True)
            std = tuple(0.0 if math.isnan(s) else s for s in std)  # of a single seed
            low = [max(0.0, m - s) for m, s in zip(mean, std, strict=True)]
            high = [m + s for m, s in zip(mean, std, strict=True)]
            most = 1.0 if name == "eval_return" else float(STATES[world])
            high = [min(most, value) for value in high]
            front = "ceo" in method
            axes.plot(
                frames, mean, color=colour, label=text, linewidth=1.8, zorder=3 if front else 2
            )
            axes.fill_between(frames, low, high, color=colour, alpha=0.15, linewidth=0)
        if name == "coverage":
            axes.axhline(STATES[world], color=COLOURS["quiet"], linestyle="--", linewidth=0.8)
            axes.set_ylim(0, STATES[world] * 1.05)
        else:
            axes.set_ylim(-0.03, 1.05)
        if delays is not None:
            axes.axvspan(0, delays[world], color=COLOURS["first"], alpha=0.08, linewidth=0)
        axes.set_xlim(left=0)
        if world == worlds[-1]:
            # Beside the panel: inside, a curve would run through it sooner or later.
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    seeds = rows[0].get("seeds", 30)
    note = f"line: mean over {seeds} seed{'s' * (int(seeds) != 1)} · band: standard deviation"
    if delays is not None:
        note += " · " if len(worlds) > 1 else "\n"
        note += "shaded: the discovery of the agent in two phases, whose curve starts after it"
    explain(figure, note)
    return figure


@styled
def draw_visit_maps(layout: Layout, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Where each method was in its first 100 episodes: the first seed of each, white to red; grey was never visited."""
    methods = [method for method in LOOKS if any(row["method"] == method for row in rows)]
    counts = {
        method: torch.tensor([float(row["first_seed"]) for row in rows if row["method"] == method])
        for method in methods
    }
    shape = layout.height / layout.width
    figure = new_figure(
        2.6 * len(methods) + 0.8, 2.6 * shape + 0.8, "State visitation after 100 episodes"
    )
    # Logarithmic and the same for all: on a linear scale the start would outshine the rest.
    top = max(float(values.max()) for values in counts.values())
    norm = need("matplotlib.colors").LogNorm(vmin=1, vmax=max(10.0, top))
    panels = grid_of_axes(figure, len(methods), len(methods))
    for axes, method in zip(panels, methods, strict=True):
        visits = counts[method].double()
        shown = visits.where(visits > 0, torch.nan)
        image = show_map(axes, layout, shown, cmap=colormap("visits"), norm=norm)
        show_marks(axes, layout, size=8)
        axes.set_title(f"{LOOKS[method][1]} · {int((visits > 0).sum())} of {len(visits)}", pad=3)
    bar = figure.colorbar(image, ax=panels, shrink=0.85, pad=0.02, label="visits", format="{x:g}")
    bar.outline.set_visible(False)
    return figure
