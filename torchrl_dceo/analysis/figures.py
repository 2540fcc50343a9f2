"""What a run learned, on the map: state visitation, eigenfunctions, options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchrl_dceo.analysis.maps_drawing import show_arrows, show_map, show_marks
from torchrl_dceo.analysis.option_quality import OptionClimb
from torchrl_dceo.analysis.similarity import Similarity
from torchrl_dceo.analysis.style import (
    COLOURS,
    colormap,
    explain,
    grid_of_axes,
    need,
    new_figure,
    styled,
)
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.envs.layouts import Layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_eigenfunctions", "draw_options", "draw_visits"]

_COLUMNS = 5


@styled
def draw_visits(layout: Layout, counts: Tensor, title: str = "State visitation") -> Figure:
    """Draws how often each state was visited, from white to red as in the paper; grey was never visited.

    Args:
        layout (Layout): the map.
        counts (Tensor): ``[S]``.
        title (str): of the picture.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis import draw_visits
        >>> from torchrl_dceo.envs.layouts import parse_layout
        >>> figure = draw_visits(parse_layout("S..#G..\\n......."), torch.arange(13))
        >>> figure.get_suptitle()
        'State visitation · 12 of 13 states'
    """
    visited = counts > 0
    seen = f"{int(visited.sum())} of {len(counts)} states"
    height = 3.6
    width = min(8.0, max(3.2, (height - 0.5) * layout.width / layout.height + 1.1))
    figure = new_figure(width, height, f"{title} · {seen}")
    axes = grid_of_axes(figure, 1, 1)[0]
    # Logarithmic: on a linear scale the start would outshine the rest.
    norm = need("matplotlib.colors").LogNorm(vmin=1, vmax=max(10.0, float(counts.max())))
    values = counts.double().where(visited, torch.nan)
    image = show_map(axes, layout, values, cmap=colormap("visits"), norm=norm)
    show_marks(axes, layout, size=9)
    bar = figure.colorbar(image, ax=axes, shrink=0.9, pad=0.03, label="visits", format="{x:g}")
    bar.outline.set_visible(False)
    return figure


@styled
def draw_eigenfunctions(
    layout: Layout, representation: Tensor, similarity: Similarity | None = None
) -> Figure:
    r"""Draws every dimension of the representation on the map, each with limits of its own, symmetric about 0.

    Args:
        layout (Layout): the map.
        representation (Tensor): f in every state, ``[S, d]``.
        similarity (Similarity, optional): to the exact eigenfunctions. Each title then has :math:`|\cos|`, or for a
            repeated eigenvalue the alignment of the subspaces.

    Examples:
        >>> from torchrl_dceo.analysis import draw_eigenfunctions, exact_eigenfunctions
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> env = GridWorldEnv("S....\n.....")
        >>> figure = draw_eigenfunctions(env.layout, exact_eigenfunctions(env, 3)[1])
        >>> [axes.get_title() for axes in figure.axes]
        ['$f_{1}$', '$f_{2}$', '$f_{3}$']
    """
    d = representation.shape[1]
    figure, cells = _small_maps(layout, d, "Eigenfunctions of the Laplacian", 1.55)
    normalize = need("matplotlib.colors").Normalize
    for i, axes in enumerate(cells):
        values = representation[:, i]
        limit = max(float(values.abs().max()), 1e-12)
        norm = normalize(vmin=-limit, vmax=limit)
        show_map(axes, layout, values, cmap=colormap("signed"), norm=norm)
        axes.set_title(f"$f_{{{i + 1}}}$" + _alignment(similarity, i), pad=3)
    if similarity is not None:
        note = "|cos| with the exact eigenfunction"
        if any(end - first > 1 for first, end in similarity.groups):
            note += " · * repeated eigenvalue: of its whole subspace"
        explain(figure, note)
    return figure


@styled
def draw_options(
    env: GridWorldEnv,
    option_values: Tensor,
    followed: Tensor | None = None,
    climb: OptionClimb | None = None,
) -> Figure:
    """Draws each option's value and greedy policy: arrows are moves, dots stay where they are (against a wall).

    A ring marks the top of the function that the option climbs.

    Args:
        env (GridWorldEnv): the world.
        option_values (Tensor): ``[S, N, A]``.
        followed (Tensor, optional): the function that each option climbs, ``[S, N]``.
        climb (OptionClimb, optional): how well it does so, for the titles.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis import draw_options
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> figure = draw_options(GridWorldEnv("S....\\n....."), torch.randn(10, 3, 4))
        >>> [axes.get_title() for axes in figure.axes]
        ['option 1', 'option 2', 'option 3']
    """
    layout, num_options = env.layout, option_values.shape[1]
    figure, cells = _small_maps(layout, num_options, "Options: value and greedy policy", 2.3)
    states = torch.arange(env.num_states)
    rows, columns = torch.tensor(layout.cells).T
    for i, axes in enumerate(cells):
        values, actions = option_values[:, i].max(-1)
        show_map(axes, layout, values, cmap=colormap("values"))
        show_arrows(axes, layout, actions, env.next_state[states, actions] != states)
        if followed is not None:
            top = int(followed[:, i].argmax())
            ring = {"s": 70, "facecolors": "none", "edgecolors": COLOURS["second"]}
            axes.scatter(columns[top], rows[top], linewidths=1.6, **ring)
        share = None if climb is None else float(climb.mean()[i])
        title = f"option {i + 1}"
        if share is not None and share == share:
            title += f" · climbs {share:.2f}"
        axes.set_title(title, pad=3)
    note = "arrow: greedy move · dot: stays"
    explain(figure, note + ("" if followed is None else " · ring: top of the eigenfunction"))
    return figure


def _small_maps(layout: Layout, count: int, title: str, size: float) -> tuple[Figure, list]:
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    shape = layout.height / layout.width
    # A title must fit above a single narrow map too.
    width = max(columns * size, 3.4)
    figure = new_figure(width, rows * (size * shape + 0.16) + 0.45, title)
    return figure, grid_of_axes(figure, count, columns)


def _alignment(similarity: Similarity | None, i: int) -> str:
    if similarity is None or i >= len(similarity.cosines):
        return ""
    for first, end in similarity.groups:
        if first <= i < end and end - first > 1:
            return f"  |cos| {float(similarity.subspace_cosines[i]):.2f}*"
    return f"  |cos| {float(similarity.cosines[i]):.2f}"
