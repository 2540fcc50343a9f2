"""What agents learned, as pictures: a representative run for each world and agent."""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchrl_dceo.analysis.figures.birds_eye import BIRDS_EYE_FILE, load_birds_eye
from torchrl_dceo.analysis.figures.birds_eye_figures import draw_birds_eye, draw_option_ways
from torchrl_dceo.analysis.figures.curves import PROGRESS_FILE, read_progress
from torchrl_dceo.analysis.figures.run import map_figures
from torchrl_dceo.analysis.run_files import ANALYSIS_FILE, load_analysis
from torchrl_dceo.analysis.statistics.comparison import area_under_curve
from torchrl_dceo.studies.report.markup import Markup, embed_figure, join, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["keep_arrays", "learned_pictures", "representative"]

Runs = Mapping[tuple[str, str, int], Path]
_FILES = (ANALYSIS_FILE, BIRDS_EYE_FILE)
_LARGEST = 400_000  # bytes that are copied beside the logs
_log = logging.getLogger(__name__)
_WHAT = {
    "visits": "State visitation: how often each state was visited; grey was never visited.",
    "eigenfunctions": "Eigenfunctions: each dimension of the learned representation on the map.",
    "options": "Options: each one's value and its greedy move in every state.",
    "birds_eye": "Eigenfunctions from above: the learned representation over the floor.",
    "option_ways": "Options from above: the ways that each one takes.",
}


def representative(runs: Runs, metric: str) -> dict[tuple[str, str], int]:
    """The seed to show for each world and agent: the middle one by the area under the curve, of those with pictures.

    Args:
        runs (mapping): the directory of each world, agent and seed.
        metric (str): a column of the logs.

    Examples:
        >>> from pathlib import Path
        >>> from torchrl_dceo.studies.report.learned import representative
        >>> representative({("maze", "dceo", 0): Path("/nowhere")}, "eval_return")
        {}
    """
    areas: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for (world, agent, seed), folder in sorted(runs.items()):
        if any((folder / name).is_file() for name in _FILES):
            areas.setdefault((world, agent), []).append((_area(folder, metric), seed))
    return {key: sorted(own)[(len(own) - 1) // 2][1] for key, own in areas.items()}


def _area(folder: Path, metric: str) -> float:
    try:
        area = area_under_curve(read_progress(folder / PROGRESS_FILE), metric)
    except (FileNotFoundError, ValueError):
        return -math.inf
    return -math.inf if math.isnan(area) else area


def keep_arrays(folder: Path, runs: Runs, metric: str) -> None:
    """Copies the arrays behind the pictures to ``<world>/<agent>/seed_<k>/``, so that the page can be made again.

    Args:
        folder (Path): the study.
        runs (mapping): the directory of each world, agent and seed.
        metric (str): by which the seed is chosen.
    """
    for (world, agent), seed in representative(runs, metric).items():
        own = folder / world / agent
        for old in own.glob("seed_*/*.npz"):
            if old.name in _FILES:
                old.unlink()
        for name in _FILES:
            source = runs[world, agent, seed] / name
            if source.is_file() and source.stat().st_size <= _LARGEST:
                target = own / f"seed_{seed}" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        for empty in own.glob("seed_*/"):
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()


def learned_pictures(folder: Path, runs: Runs | None, metric: str) -> Markup:
    """The pictures of a representative run for each world and agent, from the runs or from what is kept of them.

    Args:
        folder (Path): the study.
        runs (mapping, optional): the directory of each world, agent and seed.
        metric (str): by which the seed is chosen.
    """
    if runs is not None:
        chosen = representative(runs, metric)
        places = {(*key, seed): runs[(*key, seed)] for key, seed in chosen.items()}
    else:
        places = _kept(folder)
    parts = []
    for (world, agent, seed), place in places.items():
        pictures = _pictures(place, f"{agent} in {world}")
        if pictures:
            name = f"{agent} in {world}" + (f", seed {seed}" if seed >= 0 else "")
            heading = tag("h3", name)
            inside = join([heading, *pictures])
            parts.append(tag("div", inside, class_="learned", data_world=world, data_agent=agent))
    return join(parts)


def _kept(folder: Path) -> dict[tuple[str, str, int], Path]:
    """Arrays in the study itself; without a seed in their path, -1 stands for it."""
    places = {}
    for name in _FILES:
        for path in sorted(folder.glob(f"*/*/{name}")):
            places[path.parts[-3], path.parts[-2], -1] = path.parent
        for path in sorted(folder.glob(f"*/*/seed_*/{name}")):
            seed = re.fullmatch(r"seed_(\d+)", path.parts[-2])
            if seed:
                places[path.parts[-4], path.parts[-3], int(seed[1])] = path.parent
    return places


def _pictures(place: Path, of: str) -> list[Markup]:
    figures: dict[str, Figure] = {}
    try:
        if (place / ANALYSIS_FILE).is_file():
            figures |= map_figures(load_analysis(place))
        if (place / BIRDS_EYE_FILE).is_file():
            view = load_birds_eye(place)
            if view.values.shape[1] > 1:
                figures["birds_eye"] = draw_birds_eye(view)
            if view.ways is not None:
                figures["option_ways"] = draw_option_ways(view)
    except (FileNotFoundError, ValueError) as error:
        # A damaged file costs its pictures, not the page.
        _log.warning("no pictures of %s: %s", of, error)
    return [
        embed_figure(figure).figure(f"{_WHAT[name].partition(':')[0]} of {of}", _WHAT[name])
        for name, figure in figures.items()
    ]
