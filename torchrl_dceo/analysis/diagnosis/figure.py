"""The figure of a diagnosis."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchrl_dceo.analysis.diagnosis.result import MEASURES, PARTS, Diagnosis
from torchrl_dceo.analysis.figures import COLOURS, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_diagnosis"]


@styled
def draw_diagnosis(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> Path:
    """Draws both metrics of all parts: every value as a dot, the mean as a bar with its interval.

    Args:
        diagnosis (Diagnosis): from :func:`diagnose`.
        path (path-like): the file, by its ending: png, pdf or svg.
    """
    figure: Figure = new_figure(9, 2.9, diagnosis.name or None)
    axes = figure.subplots(1, 2, sharey=True)
    titles = (
        "goals per 1,000 steps at ε = 1",
        f"states seen in {diagnosis.steps:,} steps at ε = 1",
    )
    colours = ("quiet", "second", "fourth", "first", "first", "third")
    for ax, measure, title in zip(axes, MEASURES, titles, strict=True):
        for row, (part, colour) in enumerate(zip(PARTS, colours, strict=True)):
            mean, half = diagnosis.mean(part, measure)
            ax.barh(row, mean, xerr=half or None, color=COLOURS[colour], alpha=0.6, height=0.65)
            values = getattr(diagnosis, measure)[part].tolist()
            ax.plot(values, [row] * len(values), ".", color=COLOURS["ink"], markersize=3)
        ax.set_title(title)
        ax.spines[["top", "right"]].set_visible(False)
    axes[1].axvline(diagnosis.num_states, color=COLOURS["quiet"], linestyle=":")
    axes[1].axvline(diagnosis.num_visited, color=COLOURS["quiet"], linewidth=0.8)
    axes[1].set_xlabel(f"line: visited before; dots: all {diagnosis.num_states}")
    axes[0].set_yticks(range(len(PARTS)), list(PARTS.values()))
    axes[0].invert_yaxis()
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    return target
