"""Top views of first-person environments: values over the floor plan, and the paths of options."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase

from torchrl_dceo.analysis.figures import need
from torchrl_dceo.analysis.run_files import check_npz

if TYPE_CHECKING:
    from torchrl_dceo.envs.miniworld import MiniWorld3D

__all__ = [
    "BIRDS_EYE_FILE",
    "BirdsEye",
    "axis_correlation",
    "geodesic_distances",
    "load_birds_eye",
    "look_from_above",
    "option_reach",
    "option_ways",
    "save_birds_eye",
]

BIRDS_EYE_FILE = "birds_eye.npz"
"""The file's name in the run directory."""
_IMAGES_PER_PASS = 64


@dataclass(frozen=True)
class BirdsEye:
    """Values on a square grid of positions with the same heading, and paths on the same floor.

    Attributes:
        walls (np.ndarray): both ends (x, z) of each wall, ``[W, 2, 2]``.
        free (np.ndarray): the points of the grid where an agent can be, bool ``[I, J]``, by x and z.
        positions (np.ndarray): those points, ``[P, 2]``, in the order of ``free``.
        heading (float): in radians; 0 looks towards larger x, π/2 towards smaller z.
        values (np.ndarray): the values at the positions, ``[P, d]``; d may be 0.
        followed (np.ndarray, optional): the function that each of N options follows, ``[P, N]``.
        ways (np.ndarray, optional): the paths of N options, ``[N, T + 1, 2]``.
        reach (np.ndarray, optional): ``[M, N]``, the distance in metres from each of M positions to each option's end.
        walk_reach (np.ndarray, optional): ``[M]``, the same for random walks of the same length.
        crossed (np.ndarray, optional): bool ``[M, N]``, whether the option ends in another room or hallway.
    """

    walls: np.ndarray
    free: np.ndarray
    positions: np.ndarray
    heading: np.ndarray | float
    values: np.ndarray
    followed: np.ndarray | None = None
    ways: np.ndarray | None = None
    reach: np.ndarray | None = None
    walk_reach: np.ndarray | None = None
    crossed: np.ndarray | None = None


@torch.no_grad()
def look_from_above(
    module: TensorDictModuleBase | None,
    env: MiniWorld3D,
    *,
    spacing: float = 0.5,
    heading: float = 0.0,
    pixels_key: str = "pixels",
) -> BirdsEye:
    """Evaluates a network on the observations at a grid of positions with a fixed heading.

    Args:
        module (TensorDictModuleBase, optional): reads the images; its first output is used. ``None``: no values.
        env (MiniWorld3D): the environment. The pose of the agent is restored afterwards.

    Keyword Args:
        spacing (float): of the grid, in metres. Default: 0.5.
        heading (float): in radians. Default: 0.
        pixels_key (str): the entry that the module reads. Default: ``"pixels"``.
    """
    free, positions = env.floor_plan.lattice_grid(spacing)
    if module is None:
        empty = np.zeros((len(positions), 0))
        return BirdsEye(env.floor_plan.walls, free, positions, heading, empty)
    pictures = torch.from_numpy(env.observe_at(positions, heading))
    parts = [
        module(TensorDict({pixels_key: part}, [len(part)])).get(module.out_keys[0])
        for part in pictures.split(_IMAGES_PER_PASS)
    ]
    values = torch.cat(parts).flatten(1).double().numpy()
    return BirdsEye(env.floor_plan.walls, free, positions, heading, values)


@torch.no_grad()
def option_ways(
    actor: TensorDictModuleBase,
    env: MiniWorld3D,
    *,
    start: Sequence[float] | None = None,
    heading: float = 0.0,
    steps: int = 100,
    pixels_key: str = "pixels",
    film: int | None = None,
    film_size: tuple[int, int] = (320, 240),
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Follows each option's greedy policy from one position.

    Args:
        actor (TensorDictModuleBase): writes the options' action values ``[*, N, A]`` as its first output.
        env (MiniWorld3D): an environment that is used for nothing else, because it is stepped.

    Keyword Args:
        start (sequence of float, optional): (x, z). Default: the agent's position after a reset.
        heading (float): at the start, in radians; only used with ``start``. Default: 0.
        steps (int): steps of each option; the end of an episode is ignored. Default: 100.
        pixels_key (str): the entry that the actor reads. Default: ``"pixels"``.
        film (int, optional): the option whose view is filmed.
        film_size (tuple of int): width and height of the film. Default: 320 x 240.

    Returns:
        The paths ``[N, steps + 1, 2]``, and the film's frames, ``uint8 [H, W, 3]`` each.
    """
    from torchrl_dceo.envs.miniworld.view import View

    env.reset(seed=0)
    begin = (
        (env.agent.pos, env.agent.dir)
        if start is None
        else (np.array([start[0], 0.0, start[1]]), heading)
    )
    camera = None if film is None else View(*film_size)
    ways: list[list[np.ndarray]] = []
    frames: list[np.ndarray] = []
    option, count = 0, 1
    while option < count:
        env.agent.pos, env.agent.dir = np.array(begin[0]), begin[1]
        way = [env.agent.pos[[0, 2]]]
        for step in range(steps + 1):
            if option == film:
                frames.append(env.render_obs(camera))
            if step == steps:
                break
            pixels = torch.from_numpy(env.observe()["pixels"]).unsqueeze(0)
            values = actor(TensorDict({pixels_key: pixels}, [1])).get(actor.out_keys[0])
            count = values.shape[1]
            env.step_count = 0
            env.step(int(values[0, option].argmax()))
            way.append(env.agent.pos[[0, 2]])
        ways.append(way)
        option += 1
    return np.array(ways), frames


@torch.no_grad()
def option_reach(
    actor: TensorDictModuleBase,
    env: MiniWorld3D,
    *,
    places: int = 20,
    steps: int = 100,
    walks: int = 10,
    seed: int = 0,
    pixels_key: str = "pixels",
) -> dict[str, np.ndarray]:
    """The distances that greedy options reach, compared with uniformly random walks from the same positions.

    From positions all over the floor, because an option correctly stays where its function is maximal.
    Distances are straight lines, which are shorter than the path through a door.

    Args:
        actor (TensorDictModuleBase): writes the options' action values ``[*, N, A]`` as its first output.
        env (MiniWorld3D): an environment that is used for nothing else, because its agent is moved.

    Keyword Args:
        places (int): M, the number of positions, drawn from a grid over the floor. Default: 20.
        steps (int): steps of options and walks; no episode ends. Default: 100.
        walks (int): random walks from each position. Default: 10.
        seed (int): seed of positions, headings and walks. Default: 0.
        pixels_key (str): the entry that the actor reads. Default: ``"pixels"``.

    Returns:
        ``reach`` ``[M, N]``, ``walk_reach`` ``[M]`` and ``crossed`` ``[M, N]``, as in :class:`BirdsEye`.
    """
    rng = np.random.default_rng(seed)
    lattice = env.floor_plan.lattice(0.25)
    starts = lattice[rng.choice(len(lattice), places, replace=len(lattice) < places)]
    fixed = env.fixed_heading
    headings = rng.uniform(-np.pi, np.pi, places) if fixed is None else np.full(places, fixed)

    def moved(positions: np.ndarray, angles: np.ndarray, actions: np.ndarray) -> None:
        for i, action in enumerate(actions.tolist()):
            x, z = positions[i]
            env.agent.pos, env.agent.dir = np.array([x, 0.0, z]), angles[i]
            env._act(action)
            positions[i], angles[i] = env.agent.pos[[0, 2]], env.agent.dir

    def values(positions: np.ndarray, angles: np.ndarray) -> torch.Tensor:
        views = [
            env.observe_at(p[None], a)[0] for p, a in zip(positions, angles.tolist(), strict=True)
        ]
        pixels = torch.from_numpy(np.stack(views))
        parts = [
            actor(TensorDict({pixels_key: part}, [len(part)])).get(actor.out_keys[0])
            for part in pixels.split(_IMAGES_PER_PASS)
        ]
        return torch.cat(parts)

    count = values(starts[:1], headings[:1]).shape[1]
    positions, angles = starts.repeat(count, 0), headings.repeat(count)
    option = torch.arange(count).repeat(places)
    for _ in range(steps):
        best = values(positions, angles).argmax(-1)
        moved(positions, angles, best.gather(1, option.unsqueeze(-1)).squeeze(-1).numpy())
    walkers, turned = starts.repeat(walks, 0), headings.repeat(walks)
    for _ in range(steps):
        moved(walkers, turned, rng.integers(len(env.action_names), size=len(walkers)))

    def distance(ends: np.ndarray) -> np.ndarray:
        return np.linalg.norm(ends.reshape(places, -1, 2) - starts[:, None], axis=-1)

    rooms, begun = (env.floor_plan.room_of(points) for points in (positions, starts))
    return {
        "reach": distance(positions),
        "walk_reach": distance(walkers).mean(1),
        "crossed": rooms.reshape(places, count) != begun[:, None],
    }


def geodesic_distances(free: np.ndarray, spacing: float, source: int) -> np.ndarray:
    """The length of the shortest path on a grid from one free point to each, along edges and diagonals.

    Args:
        free (np.ndarray): bool ``[I, J]``.
        spacing (float): of the grid.
        source (int): the index of a free point.

    Returns:
        np.ndarray: ``[P]``, infinite if there is no path.

    Examples:
        >>> import numpy as np
        >>> from torchrl_dceo.analysis.figures.birds_eye import geodesic_distances
        >>> around = np.array([[1, 1, 1], [1, 0, 1], [1, 0, 1]], bool)
        >>> geodesic_distances(around, 0.5, source=6).round(2).tolist()
        [2.0, 1.5, 1.0, 2.5, 0.5, 3.0, 0.0]
    """
    sparse, graph = need("scipy.sparse"), need("scipy.sparse.csgraph")
    number: np.ndarray = np.full((free.shape[0] + 2, free.shape[1] + 2), -1)
    number[1:-1, 1:-1][free] = np.arange(free.sum())
    here = number[1:-1, 1:-1]
    rows, columns, lengths = [], [], []
    for di, dj in ((0, 1), (1, 0), (1, 1), (1, -1)):
        there = number[1 + di : number.shape[0] - 1 + di, 1 + dj : number.shape[1] - 1 + dj]
        joined = (here >= 0) & (there >= 0)
        if di and dj:
            # Not across a corner.
            joined &= number[1 + di : number.shape[0] - 1 + di, 1:-1] >= 0
            joined &= number[1:-1, 1 + dj : number.shape[1] - 1 + dj] >= 0
        rows.append(here[joined])
        columns.append(there[joined])
        lengths.append(np.full(int(joined.sum()), spacing * float(np.hypot(di, dj))))
    joins = (np.concatenate(rows), np.concatenate(columns))
    count = int(free.sum())
    matrix = sparse.coo_matrix((np.concatenate(lengths), joins), shape=(count, count)).tocsr()
    return graph.dijkstra(matrix, directed=False, indices=source)


def axis_correlation(values: np.ndarray, free: np.ndarray, spacing: float) -> float:
    r"""The rank correlation of a function on the floor with the position along its main axis.

    The main axis leads from the minimum of the function to its maximum. The position of a point along it is
    :math:`d(\text{minimum}, s) - d(\text{maximum}, s)`, with geodesic distances on the floor.

    Args:
        values (np.ndarray): ``[P]``.
        free (np.ndarray): bool ``[I, J]``, P of them.
        spacing (float): of the grid.

    Returns:
        float: Spearman's correlation, at most 1.

    Examples:
        >>> import numpy as np
        >>> from torchrl_dceo.analysis.figures.birds_eye import axis_correlation
        >>> corridor = np.ones((1, 9), bool)
        >>> round(axis_correlation(np.arange(9.0) ** 3, corridor, 1.0), 3)
        1.0
    """
    least, largest = int(values.argmin()), int(values.argmax())
    along = geodesic_distances(free, spacing, least) - geodesic_distances(free, spacing, largest)
    return float(need("scipy.stats").spearmanr(along, values).statistic)


def save_birds_eye(run_dir: str | os.PathLike[str], view: BirdsEye) -> Path:
    """Stores a top view as ``birds_eye.npz`` (no pickle)."""
    target = Path(run_dir) / BIRDS_EYE_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    entries: dict[str, Any] = {
        field.name: np.asarray(getattr(view, field.name))
        for field in fields(view)
        if getattr(view, field.name) is not None
    }
    temporary = target.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **entries)
    temporary.replace(target)
    return target


def load_birds_eye(run_dir: str | os.PathLike[str]) -> BirdsEye:
    """Loads a file of :func:`save_birds_eye`."""
    path = Path(run_dir) / BIRDS_EYE_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{run_dir} holds no {BIRDS_EYE_FILE}")
    try:
        check_npz(path)
        with np.load(path, allow_pickle=False) as file:
            entries: dict[str, Any] = {name: file[name] for name in file.files}
        return BirdsEye(**{**entries, "heading": float(entries["heading"])})
    except (
        ValueError,
        KeyError,
        TypeError,
        OSError,
        EOFError,
        MemoryError,
        zipfile.BadZipFile,
    ) as error:
        raise ValueError(
            f"{path} is damaged or was not written by save_birds_eye ({error})"
        ) from error
