"""Values, eigenfunctions and options drawn on the map of a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrl_dceo.analysis.figures import COLOURS, need
from torchrl_dceo.envs.grid.layouts import MOVES, Layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
from typing import TYPE_CHECKING

from torchrl_dceo.analysis.figures import (
    colormap,
    explain,
    grid_of_axes,
    new_figure,
    styled,
)
from torchrl_dceo.analysis.spectra import Similarity, cosine_similarity
from torchrl_dceo.analysis.spectra.options import OptionClimb
from torchrl_dceo.envs import GridWorldEnv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "draw_comparison",
    "draw_eigenfunctions",
    "draw_options",
    "draw_visits",
    "map_image",
    "show_arrows",
    "show_map",
    "show_marks",
]

# With starts anywhere, all cells would be marked.
_MOST_STARTS = 4


def map_image(layout: Layout, values: Tensor) -> Tensor:
    """Maps one number per state to the cells of the map: ``[H, W]``, NaN on walls and closed hallways.

    Args:
        layout (Layout): the map.
        values (Tensor): ``[S]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.figures.maps import map_image
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
        >>> map_image(parse_layout("S#.\\n..."), torch.arange(5)).tolist()
        [[0.0, nan, 1.0], [2.0, 3.0, 4.0]]
    """
    cells = layout.cells
    if values.shape != (len(cells),):
        raise ValueError(
            f"a map of {len(cells)} states needs as many values, got shape {list(values.shape)}"
        )
    image = torch.full((layout.height, layout.width), torch.nan, dtype=torch.float64)
    rows, columns = torch.tensor(cells).T
    image[rows, columns] = values.detach().cpu().double()
    for row, column in cells:
        if not layout.is_open(row, column):
            image[row, column] = torch.nan
    return image


def show_map(
    axes: Axes,
    layout: Layout,
    values: Tensor,
    *,
    cmap: Any,
    norm: Any = None,
    missing: str = COLOURS["unvisited"],
) -> AxesImage:
    """Draws one number per state on the map; walls are dark, states with NaN have the colour ``missing``."""
    rgb = need("matplotlib.colors").to_rgb
    image = map_image(layout, values)
    base = torch.tensor(rgb(COLOURS["wall"])).expand(layout.height, layout.width, 3).clone()
    for row, column in layout.cells:
        if layout.is_open(row, column):
            base[row, column] = torch.tensor(rgb(missing))
    axes.imshow(base.numpy(), interpolation="nearest")
    numpy = need("numpy")
    shown = numpy.ma.masked_invalid(image.numpy())
    drawn = axes.imshow(shown, cmap=cmap, norm=norm, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return drawn


def show_marks(axes: Axes, layout: Layout, size: float = 7.0) -> None:
    """Marks the starts with S and the goals with G."""
    starts = layout.starts if len(layout.starts) <= _MOST_STARTS else ()
    effects = need("matplotlib.patheffects")
    outline = [effects.withStroke(linewidth=size / 4, foreground="white")]
    for letter, cells in (("S", starts), ("G", layout.goals)):
        for row, column in cells:
            axes.text(
                column,
                row,
                letter,
                fontsize=size,
                fontweight="bold",
                color=COLOURS["ink"],
                ha="center",
                va="center_baseline",
                path_effects=outline,
            )


def show_arrows(axes: Axes, layout: Layout, actions: Tensor, moves: Tensor) -> None:
    """Draws a policy: an arrow for each move, a dot if the action does not move (against a wall).

    Args:
        axes (Axes): of a map.
        layout (Layout): the map.
        actions (Tensor): the action of each state, ``[S]``.
        moves (Tensor): whether it leads to another state, ``[S]``.
    """
    rows, columns = torch.tensor(layout.cells).T
    is_open = torch.tensor([layout.is_open(*cell) for cell in layout.cells])
    down, right = torch.tensor(MOVES)[actions].T
    arrows, stays = moves & is_open, ~moves & is_open
    axes.quiver(
        columns[arrows].numpy(),
        rows[arrows].numpy(),
        right[arrows].numpy(),
        down[arrows].numpy(),
        color=COLOURS["ink"],
        angles="xy",
        scale_units="xy",
        scale=1.45,
        pivot="mid",
        units="xy",
        width=0.13,
        headwidth=3.4,
        headlength=3.2,
        headaxislength=2.9,
    )
    axes.scatter(
        columns[stays].numpy(), rows[stays].numpy(), s=5, color=COLOURS["ink"], linewidths=0
    )


_COLUMNS = 5


@styled
def draw_visits(layout: Layout, counts: Tensor, title: str = "State visitation") -> Figure:
    """Draws the visits of each state, from white to red as in the paper; unvisited states are grey.

    Args:
        layout (Layout): the map.
        counts (Tensor): ``[S]``.
        title (str): of the image.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis import draw_visits
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
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
    # Logarithmic: on a linear scale only the start would be visible.
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
    r"""Draws every dimension of the representation on the map, each divided by its largest absolute value.

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
        >>> [axes.get_title() for axes in figure.axes[:3]]
        ['$f_{1}$', '$f_{2}$', '$f_{3}$']
    """
    d = representation.shape[1]
    figure, cells = _small_maps(layout, d, "Eigenfunctions of the Laplacian", 1.55, bar=0.75)
    norm = need("matplotlib.colors").Normalize(vmin=-1, vmax=1)
    for i, axes in enumerate(cells):
        values = representation[:, i]
        values = values / values.abs().max().clamp(min=1e-12)
        image = show_map(axes, layout, values, cmap=colormap("signed"), norm=norm)
        axes.set_title(f"$f_{{{i + 1}}}$" + _alignment(similarity, i), pad=3)
    label = "$f_i$ / max |$f_i$|"
    bar = figure.colorbar(image, ax=cells, shrink=0.7, pad=0.02, label=label, ticks=[-1, 0, 1])
    bar.outline.set_visible(False)
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
    """Draws each option's value and greedy policy: arrows are moves, dots actions against a wall.

    A ring marks the maximum of the function that the option follows.

    Args:
        env (GridWorldEnv): the environment.
        option_values (Tensor): ``[S, N, A]``.
        followed (Tensor, optional): the function that each option follows, ``[S, N]``.
        climb (OptionClimb, optional): the climb of each option, for the titles.

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


def balanced_columns(count: int) -> int:
    """The number of panels per row that leaves as few blank panels as possible in the last row.

    Examples:
        >>> from torchrl_dceo.analysis.figures.maps import balanced_columns
        >>> [balanced_columns(count) for count in (3, 6, 7, 10, 11)]
        [3, 3, 4, 5, 4]
    """
    if count <= _COLUMNS:
        return count
    return min((_COLUMNS, 4, 3, 6), key=lambda columns: -count % columns)


def _small_maps(
    layout: Layout, count: int, title: str, size: float, bar: float = 0.0
) -> tuple[Figure, list]:
    columns = balanced_columns(count)
    rows = -(-count // columns)
    shape = layout.height / layout.width
    # A title must fit above a single narrow map.
    width = max(columns * size + bar, 3.4)
    figure = new_figure(width, rows * (size * shape + 0.16) + 0.45, title)
    return figure, grid_of_axes(figure, count, columns)


def _alignment(similarity: Similarity | None, i: int) -> str:
    if similarity is None or i >= len(similarity.cosines):
        return ""
    for first, end in similarity.groups:
        if first <= i < end and end - first > 1:
            return f"  |cos| {float(similarity.subspace_cosines[i]):.2f}*"
    return f"  |cos| {float(similarity.cosines[i]):.2f}"


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
    r"""Draws the exact eigenfunctions in the first row and each objective's learned ones below, with aligned signs.

    Above each panel is :math:`|\cos|` with the exact one above it (with a star: of the whole subspace, where the
    eigenvalue repeats).

    Args:
        layout (Layout): the map.
        exact (Tensor): ``[S, d]``.
        learned (mapping): from the name of a row to its functions, ``[S, d]``.
        eigenvalues (Tensor, optional): those of the exact ones, ``[d]``.

    Keyword Args:
        rho (Tensor, optional): the weight of each state in the cosine, ``[S]``.
        titles (sequence of str, optional): titles above the first row.
        title (str): of the figure.

    Examples:
        >>> from torchrl_dceo.analysis import exact_eigenfunctions
        >>> from torchrl_dceo.analysis.figures.maps import draw_comparison
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
