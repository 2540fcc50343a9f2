"""All figures of a run, including one option's rollout as a strip of images and as a film."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrl_dceo.analysis.figures import (
    COLOURS,
    colormap,
    grid_of_axes,
    need,
    new_figure,
    styled,
)
from torchrl_dceo.analysis.figures.maps import map_image
from torchrl_dceo.envs.grid.layouts import Layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from torchrl_dceo.analysis.figures import save_rollout_gif
from torchrl_dceo.analysis.figures.birds_eye import BIRDS_EYE_FILE, load_birds_eye
from torchrl_dceo.analysis.figures.birds_eye_figures import draw_birds_eye, draw_option_ways
from torchrl_dceo.analysis.figures.curves import (
    PROGRESS_FILE,
    Progress,
    draw_learning_curve,
    draw_option_use,
    draw_visit_curve,
    option_starts,
    read_progress,
)
from torchrl_dceo.analysis.figures.maps import draw_eigenfunctions, draw_options, draw_visits
from torchrl_dceo.analysis.run_files import ANALYSIS_FILE, RunAnalysis, load_analysis
from torchrl_dceo.analysis.spectra import Similarity, cosine_similarity
from torchrl_dceo.analysis.spectra.exact import exact_eigenfunctions
from torchrl_dceo.analysis.spectra.options import (
    OptionClimb,
    greedy_path,
    option_climb,
    reachable_states,
)
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.settings import choices

__all__ = [
    "draw_rollout",
    "draw_run",
    "map_figures",
    "rollout_frames",
]

# Drawn larger and scaled down (anti-aliasing).
_OVERSAMPLING = 3


def rollout_frames(
    layout: Layout, path: Sequence[int], values: Tensor | None = None, *, tile_size: int = 16
) -> list[Any]:
    """Draws each step of a rollout: the path so far and the current position.

    Args:
        layout (Layout): the map.
        path (sequence of int): the states visited, in order.
        values (Tensor, optional): what colours the floor, ``[S]``: the function that the option climbs.

    Keyword Args:
        tile_size (int): pixels along the side of a cell. Default: 16.

    Returns:
        list of numpy arrays, uint8 ``[H * tile_size, W * tile_size, 3]``.

    Examples:
        >>> from torchrl_dceo.analysis import rollout_frames
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
        >>> frames = rollout_frames(parse_layout("S..\\n..."), [0, 1, 2])
        >>> len(frames), frames[0].shape
        (3, (32, 48, 3))
    """
    image_module, draw_module = need("PIL.Image"), need("PIL.ImageDraw")
    numpy = need("numpy")
    size = tile_size * _OVERSAMPLING
    cells = _cell_colours(layout, values)
    large = cells.repeat_interleave(size, 0).repeat_interleave(size, 1)
    canvas = image_module.fromarray(large.numpy())
    centres = [((c + 0.5) * size, (r + 0.5) * size) for r, c in (layout.cells[s] for s in path)]
    pen = draw_module.Draw(canvas)
    frames = []
    for step, (x, y) in enumerate(centres):
        if step:
            pen.line([centres[step - 1], (x, y)], fill=COLOURS["ink"], width=max(1, size // 6))
        _disc(pen, x, y, size / 12, COLOURS["ink"])  # rounds the corners of the path
        frame = canvas.copy()
        top = draw_module.Draw(frame)
        _disc(top, x, y, 0.42 * size, "white")
        _disc(top, x, y, 0.34 * size, COLOURS["fourth"])
        shape = (layout.width * tile_size, layout.height * tile_size)
        frames.append(numpy.asarray(frame.resize(shape, image_module.Resampling.BOX)))
    return frames


@styled
def draw_rollout(
    layout: Layout,
    path: Sequence[int],
    values: Tensor | None = None,
    *,
    title: str = "Rollout of an option",
    images: int = 5,
) -> Figure:
    """Draws a rollout as a strip of images: its first step, its last, and some in between.

    Args:
        layout (Layout): the map.
        path (sequence of int): the states visited, in order.
        values (Tensor, optional): what colours the floor, ``[S]``.

    Keyword Args:
        title (str): of the strip.
        images (int): the maximum number of images. Default: 5.

    Examples:
        >>> from torchrl_dceo.analysis import draw_rollout
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
        >>> figure = draw_rollout(parse_layout("S....\\n....."), [0, 1, 2, 3, 4], images=3)
        >>> [axes.get_title() for axes in figure.axes]
        ['step 0', 'step 2', 'step 4']
    """
    count = min(images, len(path))
    last = len(path) - 1
    steps = [round(i * last / max(1, count - 1)) for i in range(count)]
    frames = rollout_frames(layout, path, values)
    width = 1.9
    height = width * layout.height / layout.width + 0.5
    figure = new_figure(max(width * count, 3.6), height, title)
    for axes, step in zip(grid_of_axes(figure, count, count), steps, strict=True):
        axes.imshow(frames[step])
        axes.set_axis_off()
        axes.set_title(f"step {step}", pad=3)
    return figure


def _cell_colours(layout: Layout, values: Tensor | None) -> Tensor:
    rgb = need("matplotlib.colors").to_rgb
    heights = torch.zeros(len(layout.cells)) if values is None else values
    image = map_image(layout, heights)
    is_floor = ~image.isnan()
    limit = max(float(image[is_floor].abs().max()), 1e-12)
    if values is None:
        floor = torch.tensor(rgb(COLOURS["floor"])).expand(*image.shape, 3)
    else:
        shade = colormap("signed")(((image / limit + 1) / 2).nan_to_num().numpy())
        floor = torch.from_numpy(shade)[..., :3].float()
    wall = torch.tensor(rgb(COLOURS["wall"]))
    return (torch.where(is_floor.unsqueeze(-1), floor, wall) * 255).round().to(torch.uint8)


def _disc(pen: Any, x: float, y: float, radius: float, colour: str) -> None:
    pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour)


_log = logging.getLogger(__name__)


_REASONS = {
    "visits": "no state visitation: the environment did not count its visits",
    "eigenfunctions": "no eigenfunctions: the agent learns no representation",
    "options": "no options: the agent has none",
}


Format = Literal["png", "pdf", "svg"]


def draw_run(run_dir: str | os.PathLike[str], format: Format = "png") -> list[Path]:
    """Draws all figures for which a run directory has data, into the directory.

    ``learning_curve`` from its log, ``progress.csv``; from ``analysis.npz``, where the environment is a grid,
    ``visits``, ``eigenfunctions``, ``options``, and one option's rollout as ``rollout`` and ``rollout.gif``; in any
    other environment ``visits`` as a curve over the states, and ``options`` as the number of starts of each; from
    ``birds_eye.npz``, in first-person environments, ``birds_eye`` and ``option_ways``. Omitted figures are logged,
    with the reason.

    Args:
        run_dir (path-like): the directory of a run.
        format (str, optional): ``"png"``, ``"pdf"`` or ``"svg"``. Default: ``"png"``.

    Returns:
        list of Path: the figures.

    Raises:
        FileNotFoundError: if the directory is missing, or is not that of a run.
        ValueError: if a file is damaged, or the format is unknown.

    Examples:
        >>> import tempfile, torch
        >>> from torchrl_dceo.analysis import draw_run, save_analysis
        >>> from torchrl_dceo.envs import make_env
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save_analysis(folder, make_env("S..\\n..G"), counts=torch.arange(6))
        ...     [path.name for path in draw_run(folder)]
        ['visits.png']
    """
    if format not in get_args(Format):
        raise ValueError(f"unknown format {choices(str(format), get_args(Format))}")
    folder = Path(run_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run directory at {folder}")
    has_log, has_arrays = (folder / PROGRESS_FILE).is_file(), (folder / ANALYSIS_FILE).is_file()
    if not has_log and not has_arrays:
        raise FileNotFoundError(
            f"{folder} is not the directory of a run: it holds neither {PROGRESS_FILE} nor {ANALYSIS_FILE}"
        )
    stored = load_analysis(folder) if has_arrays else None
    figures: dict[str, Figure] = {}
    progress: Progress = {}
    if has_log:
        num_states = None if stored is None else stored.env.get("num_states")
        progress = read_progress(folder)
        figures["learning_curve"] = draw_learning_curve(progress, num_states)
    else:
        _log.info("no learning curve: %s holds no %s", folder, PROGRESS_FILE)
    if stored is None:
        _log.info("no maps: %s holds no %s, which a run writes when it ends", folder, ANALYSIS_FILE)
    elif stored.grid is None:
        figures |= _figures_without_map(stored, progress)
    else:
        figures |= _map_figures(stored)
    if (folder / BIRDS_EYE_FILE).is_file():
        view = load_birds_eye(folder)
        if view.values.shape[1] > 1:
            figures["birds_eye"] = draw_birds_eye(view)
        if view.ways is not None:
            figures["option_ways"] = draw_option_ways(view)
    drawn = []
    for name, figure in figures.items():
        drawn.append(folder / f"{name}.{format}")
        figure.savefig(drawn[-1])
    if stored is not None and stored.grid is not None and "options" in figures:
        drawn += _draw_rollout(folder, stored, stored.grid, format)
    return drawn


def _figures_without_map(stored: RunAnalysis, progress: Progress) -> dict[str, Figure]:
    """The figures of an environment without a map: visits of states, and starts of options."""
    figures = {}
    if stored.counts is not None:
        figures["visits"] = draw_visit_curve(stored.counts)
    starts = option_starts(progress)
    if starts:
        figures["options"] = draw_option_use(starts)
    for name, reason in _REASONS.items():
        if name not in figures and name != "eigenfunctions":
            _log.info(reason)
    return figures


def map_figures(stored: RunAnalysis) -> dict[str, Figure]:
    """Draws a run's ``visits``, ``eigenfunctions`` and ``options`` on the map of its environment.

    Args:
        stored (RunAnalysis): from :func:`~torchrl_dceo.analysis.load_analysis`.

    Returns:
        dict of str to Figure: those with data; empty if its environment is not a grid.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis import RunAnalysis, map_figures
        >>> stored = RunAnalysis({"map": "S..\\n..G", "slip": 0.0}, counts=torch.arange(6))
        >>> list(map_figures(stored))
        ['visits']
    """
    grid, figures = stored.grid, {}
    if grid is None:
        return {}
    if stored.counts is not None:
        figures["visits"] = draw_visits(grid.layout, stored.counts)
    if stored.representation is not None:
        similarity = _similarity(stored, grid)
        figures["eigenfunctions"] = draw_eigenfunctions(
            grid.layout, stored.representation, similarity
        )
    if stored.option_values is not None:
        climb = _climb(stored, grid)
        figures["options"] = draw_options(grid, stored.option_values, stored.followed, climb)
    return figures


def _map_figures(stored: RunAnalysis) -> dict[str, Figure]:
    figures = map_figures(stored)
    for name, reason in _REASONS.items():
        if name not in figures:
            _log.info(reason)
    return figures


def _climb(stored: RunAnalysis, grid: GridWorldEnv) -> OptionClimb | None:
    assert stored.option_values is not None
    if stored.followed is None:
        return None
    return option_climb(stored.option_values, stored.followed, grid.next_state)


def _draw_rollout(
    folder: Path, stored: RunAnalysis, grid: GridWorldEnv, format: Format
) -> list[Path]:
    values, followed = stored.option_values, stored.followed
    assert values is not None
    start = int(grid._starts[0])
    option = _farthest(_climb(stored, grid), start)
    path = greedy_path(values[:, option], grid.next_state, start)
    floor = None if followed is None else followed[:, option]
    title = f"Greedy rollout of option {option + 1} from the start"
    strip = draw_rollout(grid.layout, path, floor, title=title)
    frames = rollout_frames(grid.layout, path, floor)
    strip.savefig(folder / f"rollout.{format}")
    film = save_rollout_gif(folder / "rollout.gif", frames)
    return [folder / f"rollout.{format}", film]


def _farthest(climb: OptionClimb | None, start: int) -> int:
    """The option that climbs most from the start."""
    return 0 if climb is None else int(climb.gain[start].argmax())


def _similarity(stored: RunAnalysis, grid: GridWorldEnv) -> Similarity:
    assert stored.representation is not None
    reachable = reachable_states(grid.next_state, grid._starts).double()
    d = min(stored.representation.shape[1], int(reachable.sum()))
    values, exact = exact_eigenfunctions(grid, d, rho=reachable)
    return cosine_similarity(stored.representation[:, :d], exact, values, rho=reachable)
