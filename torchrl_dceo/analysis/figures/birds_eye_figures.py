"""Figures of first-person environments from above, and films of an option's view."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchrl_dceo.analysis.figures import (
    COLOURS,
    colormap,
    explain,
    grid_of_axes,
    new_figure,
    save_rollout_gif,
    styled,
)
from torchrl_dceo.analysis.figures.birds_eye import BirdsEye

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
import dataclasses
import functools

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

from torchrl_dceo.analysis.figures.birds_eye import (
    look_from_above,
    option_reach,
    option_ways,
    save_birds_eye,
)
from torchrl_dceo.analysis.spectra.options import followed_eigenfunctions
from torchrl_dceo.envs.gym import MiniWorldEnv3D
from torchrl_dceo.modules import EigenReward

if TYPE_CHECKING:
    from torchrl_dceo.envs.miniworld import MiniWorld3D

__all__ = [
    "draw_birds_eye",
    "draw_option_ways",
    "first_person_env",
    "save_film",
    "save_first_person",
]


def _shade(axes: Axes, view: BirdsEye, values: np.ndarray) -> None:
    """Colours the floor: white at the mean, blue below, red above."""
    image = np.full(view.free.shape, np.nan)
    image[view.free] = values - values.mean()
    # Without unreachable rows and columns, so that the image fits its extent.
    image = image[view.free.any(1)][:, view.free.any(0)].T
    limit = float(np.nanmax(np.abs(image))) or 1.0
    axes.imshow(image, cmap=colormap("signed"), vmin=-limit, vmax=limit, extent=_extent(view))


def _floor(axes: Axes, view: BirdsEye) -> None:
    for wall in view.walls:
        axes.plot(wall[:, 0], wall[:, 1], color=COLOURS["wall"], linewidth=1.2)
    axes.set_aspect("equal")
    # As on the map: z grows downwards, whatever was drawn before.
    axes.set_ylim(view.walls[..., 1].max() + 0.3, view.walls[..., 1].min() - 0.3)
    axes.set_xlim(view.walls[..., 0].min() - 0.3, view.walls[..., 0].max() + 0.3)
    axes.set_axis_off()


def _extent(view: BirdsEye) -> tuple[float, float, float, float]:
    low, high = view.positions.min(0), view.positions.max(0)
    half = _spacing(view) / 2
    return (low[0] - half, high[0] + half, high[1] + half, low[1] - half)


def _spacing(view: BirdsEye) -> float:
    x = np.unique(view.positions[:, 0])
    return float(np.diff(x).min()) if len(x) > 1 else 1.0


@styled
def draw_birds_eye(
    view: BirdsEye,
    *,
    first: int = 1,
    count: int = 2,
    notes: Sequence[str] = (),
    title: str = "Eigenfunctions from above",
) -> Figure:
    """Draws outputs of a representation over the floor plan, each centred on its mean.

    Args:
        view (BirdsEye): the values.

    Keyword Args:
        first (int): the first output to draw, from 0 on. Default: 1, the first that is not constant.
        count (int): how many. Default: 2.
        notes (sequence of str): a line more for each panel's title.
        title (str): of the image.
    """
    count = min(count, view.values.shape[1] - first)
    aspect = view.free.shape[1] / view.free.shape[0]
    figure = new_figure(3.2 * count + 0.3, 3.2 * aspect + 1.0, title)
    for panel, axes in enumerate(grid_of_axes(figure, count, count)):
        _shade(axes, view, view.values[:, first + panel])
        _floor(axes, view)
        note = f"\n{notes[panel]}" if panel < len(notes) else ""
        axes.set_title(f"f{first + panel + 1}{note}")
    x, z = math.cos(float(view.heading)), -math.sin(float(view.heading))
    sides = {(1, 0): "right", (-1, 0): "left", (0, 1): "down", (0, -1): "up"}
    looks = sides.get(
        (round(x), round(z)), f"{math.degrees(float(view.heading)):.0f}° from the right"
    )
    explain(figure, f"the agent looks {looks}; blue below the mean, red above")
    return figure


@styled
def draw_option_ways(view: BirdsEye, *, title: str = "Where options lead, greedily") -> Figure:
    """Draws the way of each option over the function that it climbs.

    Args:
        view (BirdsEye): with ``ways``, and with ``followed`` for the colours of the floor.

    Keyword Args:
        title (str): of the image.
    """
    if view.ways is None:
        raise ValueError("this view from above holds no ways of options")
    count, columns = len(view.ways), min(5, len(view.ways))
    aspect = view.free.shape[1] / view.free.shape[0]
    figure = new_figure(
        2.2 * columns + 0.3, -(-count // columns) * (2.2 * aspect + 0.3) + 0.7, title
    )
    for option, axes in enumerate(grid_of_axes(figure, count, columns)):
        if view.followed is not None:
            _shade(axes, view, view.followed[:, option])
        _floor(axes, view)
        way = view.ways[option]
        axes.plot(way[:, 0], way[:, 1], color=COLOURS["ink"], linewidth=1.6)
        axes.plot(*way[0], "o", color="white", markeredgecolor=COLOURS["ink"], markersize=5)
        axes.plot(
            *way[-1], "o", color=COLOURS["fourth"], markeredgecolor=COLOURS["ink"], markersize=6
        )
        axes.set_title(f"option {option + 1}", pad=3)
    explain(figure, f"white: start; yellow: after {view.ways.shape[1] - 1} steps{_reach(view)}")
    return figure


def _reach(view: BirdsEye) -> str:
    if view.reach is None or view.walk_reach is None or view.crossed is None:
        return ""
    options, walks = view.reach.mean(), view.walk_reach.mean()
    return (
        f"; from {len(view.reach)} places all over: {options:.1f} m away, a random walk {walks:.1f} m, "
        f"{100 * view.crossed.mean():.0f} % in another room or hallway"
    )


def save_film(
    file: str | os.PathLike[str], frames: Sequence[Any], *, frames_per_second: int = 15
) -> Path:
    """Writes frames as an mp4 if PyAV is installed (``pip install 'torchrl-dceo[video]'``), else as a GIF.

    Args:
        file (path-like): where to; the suffix is set by what is written.
        frames (sequence of arrays): ``uint8 [H, W, 3]``, of even width and height for an mp4.

    Keyword Args:
        frames_per_second (int): Default: 15.

    Returns:
        Path: the file.
    """
    if not len(frames):
        raise ValueError("a film needs at least one frame, got none")
    try:
        import av
    except ImportError:
        return save_rollout_gif(
            Path(file).with_suffix(".gif"), frames, seconds_per_step=1 / frames_per_second
        )
    path = Path(file).with_suffix(".mp4")
    height, width, _ = frames[0].shape
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=frames_per_second)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


def first_person_env(env: EnvBase, **settings: Any) -> MiniWorld3D | None:
    """Builds another first-person environment like the given one; ``None`` if it is not a first-person environment.

    Args:
        env (EnvBase): any environment, also of several environments, in this process or in others.
        **settings: settings to change, e.g. ``coverage=True``.
    """
    while isinstance(env, TransformedEnv):
        env = env.base_env
    if isinstance(env, BatchedEnvBase):
        make = env.create_env_fn[0]
        if not (isinstance(make, functools.partial) and make.func is MiniWorldEnv3D):
            return None
        return make(**settings).gym_env
    return env.another(**settings).gym_env if isinstance(env, MiniWorldEnv3D) else None


def save_first_person(
    run_dir: Path,
    env: EnvBase,
    reward: EigenReward | None,
    option_actor: TensorDictModuleBase | None,
) -> list[Path]:
    """Evaluates encoder and options in a first-person environment and stores the top view and a video of one option.

    Args:
        run_dir (Path): the run's directory.
        env (EnvBase): its environment; nothing is done if it is not a first-person environment.
        reward (EigenReward, optional): the options' reward, with the representation f.
        option_actor (TensorDictModuleBase, optional): the options.

    Returns:
        list of Path: the files.
    """
    miniworld_env = first_person_env(env, coverage=True)
    if miniworld_env is None or (reward is None and option_actor is None):
        return []
    files = []
    view = look_from_above(None if reward is None else reward.encoder, miniworld_env)
    if reward is not None:
        followed = followed_eigenfunctions(reward, torch.from_numpy(view.values))
        view = dataclasses.replace(view, followed=followed.numpy())
    if option_actor is not None:
        ways, frames = option_ways(option_actor, miniworld_env, film=0)
        view = dataclasses.replace(view, ways=ways, **option_reach(option_actor, miniworld_env))
        files.append(save_film(run_dir / "option", frames))
    files.append(save_birds_eye(run_dir, view))
    return files
