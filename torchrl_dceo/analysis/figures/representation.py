"""Learned eigenfunctions beside the exact ones, and how they got there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchrl_dceo.analysis.figures.maps import show_map
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
from torchrl_dceo.analysis.spectra.similarity import Similarity, cosine_similarity
from torchrl_dceo.envs.grid.layouts import Layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_comparison", "draw_similarity_curves"]

_LINES = ("first", "second", "third", "fourth", "ink", "quiet")


@styled
def draw_comparison(
    layout: Layout,
    exact: Tensor,
    learned: Mapping[str, Tensor],
    eigenvalues: Tensor | None = None,
    *,
    rho: Tensor | None = None,
    titles: Sequence[str] | None = None,
    title: str = "Exact and learned eigenfunctions",
) -> Figure:
    r"""Draws the exact eigenfunctions in the first row and what each objective learned in one row each, signs aligned.

    Above each panel is :math:`|\cos|` with the exact one above it (with a star: of the whole subspace, where the
    eigenvalue repeats).

    Args:
        layout (Layout): the map.
        exact (Tensor): ``[S, d]``.
        learned (mapping): from the name of a row to its functions, ``[S, d]``.
        eigenvalues (Tensor, optional): those of the exact ones, ``[d]``.

    Keyword Args:
        rho (Tensor, optional): the weight of each state in the cosine, ``[S]``.
        titles (sequence of str, optional): what stands above the first row.
        title (str): of the figure.

    Examples:
        >>> from torchrl_dceo.analysis import exact_eigenfunctions
        >>> from torchrl_dceo.analysis.figures.representation import draw_comparison
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> env = GridWorldEnv("S....\n.....")
        >>> values, exact = exact_eigenfunctions(env, 2)
        >>> figure = draw_comparison(env.layout, exact, {"ALLO": -exact}, values)
        >>> [axes.get_title() for axes in figure.axes]
        ['$e_{1}$', '$e_{2}$', '1.000', '1.000']
    """
    d = exact.shape[1]
    shape = layout.height / layout.width
    rows = 1 + len(learned)
    figure = new_figure(1.25 * d + 0.7, rows * (1.25 * shape + 0.2) + 0.6, title)
    cells = grid_of_axes(figure, rows * d, d)
    normalize = need("matplotlib.colors").Normalize
    names = titles or [f"$e_{{{i}}}$" for i in range(1, d + 1)]
    for row, (name, functions) in enumerate({"exact": exact, **learned}.items()):
        similarity = cosine_similarity(functions, exact, eigenvalues, rho=rho) if row else None
        for i in range(d):
            axes = cells[row * d + i]
            values = _same_sign(functions[:, i], exact[:, i])
            limit = max(float(values.abs().max()), 1e-12)
            norm = normalize(vmin=-limit, vmax=limit)
            show_map(axes, layout, values, cmap=colormap("signed"), norm=norm)
            axes.set_title(names[i] if similarity is None else _cosine(similarity, i), pad=3)
        cells[row * d].set_ylabel(name)
    explain(figure, "number: |cos| with the exact eigenfunction above" + _starred(eigenvalues))
    return figure


def _same_sign(values: Tensor, like: Tensor) -> Tensor:
    return -values if float((values * like).sum()) < 0 else values


def _cosine(similarity: Similarity, i: int) -> str:
    for first, end in similarity.groups:
        if first <= i < end and end - first > 1:
            return f"{float(similarity.subspace_cosines[i]):.3f}*"
    return f"{float(similarity.cosines[i]):.3f}"


def _starred(eigenvalues: Tensor | None) -> str:
    if eigenvalues is None or not bool((eigenvalues.diff() <= 1e-6).any()):
        return ""
    return " · * repeated eigenvalue: of its whole subspace"


@styled
def draw_similarity_curves(
    curves: Mapping[str, Sequence[Mapping[str, Sequence[float]]]],
    *,
    x: str = "step",
    columns: Sequence[str] = ("cosine", "span"),
    title: str | None = None,
) -> Figure:
    r"""Draws how the similarity to the exact eigenfunctions grows: one panel a column, one line an objective.

    The line is the mean over the seeds, the band their range.

    Args:
        curves (mapping): from the name of an objective to the logs of its seeds, each from column to values, all with
            the same steps.

    Keyword Args:
        x (str): the column along the bottom. Default: ``"step"``.
        columns (sequence of str): the columns to draw. Default: ``("cosine", "span")``.
        title (str, optional): of the figure.

    Examples:
        >>> from torchrl_dceo.analysis.figures.representation import draw_similarity_curves
        >>> log = {"step": [1, 2], "cosine": [0.5, 0.9], "span": [0.9, 1.0]}
        >>> figure = draw_similarity_curves({"ALLO": [log, log]})
        >>> [axes.get_title(loc="left") for axes in figure.axes]
        ['Vectors: mean |cos|', 'Span: mean cosine of principal angles']
    """
    names = {
        "cosine": "Vectors: mean |cos|",
        "subspace_cosine": "Subspaces: mean cosine",
        "span": "Span: mean cosine of principal angles",
        "data_cosine": "Against the optimum on the data",
    }
    figure = new_figure(3.9 * len(columns), 3.1, title)
    for axes, column in zip(grid_of_axes(figure, len(columns), len(columns)), columns, strict=True):
        describe(axes, x, "", names.get(column, column))
        for (name, logs), colour in zip(curves.items(), _LINES, strict=False):
            values = torch.tensor([list(log[column]) for log in logs])
            along = [sum(at) / len(at) for at in zip(*(log[x] for log in logs), strict=True)]
            axes.plot(along, values.mean(0), color=COLOURS[colour], label=name)
            low, high = values.min(0).values, values.max(0).values
            axes.fill_between(along, low, high, color=COLOURS[colour], alpha=0.15, linewidth=0)
        axes.set_ylim(0, 1.02)
    # One for all panels, beneath them: inside, a curve would run through it sooner or later.
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure
