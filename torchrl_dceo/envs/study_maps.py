"""The maps of the representation study: rooms and mazes, each a text file, frozen before anything was tuned on them.

The doors of the rooms and the passages of the mazes were drawn at random, a few dozen times a map; of these the one
whose first twelve eigenvalues lie furthest apart (by the smallest relative gap) was kept, so that no eigenvalue repeats
and the cosine with a single eigenfunction has a meaning. Walls are one cell thick, the start is at the bottom left.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from torchrl_dceo.envs.maps import MAPS

__all__ = ["STUDY_MAPS", "find_map"]

_FOLDER = Path(__file__).parent / "map_files"
_ROOMS, _MAZES = (1, 4, 16, 32, 64), (13, 19, 26, 31)

STUDY_MAPS: dict[str, Path] = {
    **{f"GridRoom{n}": _FOLDER / f"grid_room_{n}.txt" for n in _ROOMS},
    **{f"GridMaze{n}": _FOLDER / f"grid_maze_{n}.txt" for n in _MAZES},
}
"""``GridRoom16`` has 16 rooms, ``GridMaze19`` has 19 x 19 cells."""


def find_map(name: str | Path) -> str:
    """Returns the text of a map, by its name, from a file, or as it is.

    Args:
        name (str or Path): one of :data:`STUDY_MAPS` or of :data:`~torchrl_dceo.envs.maps.MAPS`, the path of a file, or
            the map itself.

    Examples:
        >>> from torchrl_dceo.envs.study_maps import find_map
        >>> print(find_map("GridMaze13")[:27])
        #############
        #.....#.....#
        >>> find_map("S..\\n.#.")
        'S..\\n.#.'
        >>> find_map("GridRom16")
        Traceback (most recent call last):
        ValueError: unknown map 'GridRom16' (did you mean 'GridRoom16'?); choose from ...
    """
    if name in STUDY_MAPS:
        return STUDY_MAPS[str(name)].read_text(encoding="utf-8").strip("\n")
    if name in MAPS:
        return MAPS[str(name)]()
    if isinstance(name, str) and not set(name) - set("#. SGX\n"):
        return name
    if Path(name).is_file():
        return Path(name).read_text(encoding="utf-8").strip("\n")
    known = [*STUDY_MAPS, *MAPS]
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ValueError(
        f"unknown map {str(name)!r}{hint}; choose from {', '.join(known)}, or give the path of a text file"
    )
