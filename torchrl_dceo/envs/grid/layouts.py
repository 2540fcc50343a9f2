"""The map format of the grid environments: parsing, checks, and the order of the actions.

A map is text, one character per cell:

====================  ==========================================================================
``#``                 wall
``.`` or a space      floor
``S``                 start (several: one is drawn at every reset)
``G``                 goal
``X``                 closed hallway: a wall that keeps its ``state_id`` (for environments that change)
====================  ==========================================================================

The edge of the map is always a wall. States are numbered row by row over all cells
except ``#``. The actions are :data:`ACTIONS`, in this order in every grid environment of the package. The maps
of the package are in :mod:`torchrl_dceo.envs.grid.maps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["ACTIONS", "LARGEST_MAP", "MOVES", "Cell", "Layout", "check_map_size", "parse_layout"]

Cell = tuple[int, int]

ACTIONS: tuple[str, ...] = ("up", "right", "down", "left")
"""The names of the actions 0, 1, 2 and 3."""
MOVES: tuple[Cell, ...] = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""The (row, column) step of each action, in the order of :data:`ACTIONS`."""

LARGEST_MAP = 250_000
"""The largest number of cells of a map, walls included: 500 x 500."""

WALL, FLOOR, CLOSED = "#", ".", "X"
_CHARACTERS = "#. SGX"


def check_map_size(height: int, width: int) -> None:
    """Raises an error for a map of more than :data:`LARGEST_MAP` cells, before it is built.

    Examples:
        >>> from torchrl_dceo.envs.grid.layouts import check_map_size
        >>> check_map_size(1000, 1000)
        Traceback (most recent call last):
        ValueError: the map has 1000 x 1000 cells, and 250,000 are allowed: take a part of it, or smaller rooms
    """
    if height * width > LARGEST_MAP:
        raise ValueError(
            f"the map has {height} x {width} cells, and {LARGEST_MAP:,} are allowed: take a part of it, or smaller "
            "rooms"
        )


def _named(noun: str, cells: Sequence[Cell]) -> str:
    if len(cells) == 1:
        return f"{noun} {cells[0]} lies"
    return f"{noun}s {', '.join(map(str, cells[:-1]))} and {cells[-1]} lie"


@dataclass(frozen=True)
class Layout:
    """A checked map. Cells are (row, column), counted from the top left.

    Args:
        rows (tuple of str): the map's lines, of ``#``, ``.`` and ``X`` only.
        starts (tuple of cells): where episodes start.
        goals (tuple of cells): where episodes end; may be empty.

    Raises:
        ValueError: if a start or a goal is outside the map, on a wall or on a closed hallway, if
            there is no start, if some goal cannot be reached from any start or some start reaches
            no goal.

    Examples:
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
        >>> layout = parse_layout("S.#\\n#.G")
        >>> layout.starts, layout.goals, layout.cells
        (((0, 0),), ((1, 2),), ((0, 0), (0, 1), (1, 1), (1, 2)))
        >>> layout.distances((0, 0))[(1, 2)]
        3
    """

    rows: tuple[str, ...]
    starts: tuple[Cell, ...]
    goals: tuple[Cell, ...]

    def __post_init__(self) -> None:
        check_map_size(self.height, self.width)
        if not self.starts:
            raise ValueError("the map has no start: mark at least one floor cell with 'S'")
        for noun, cells in (("start", self.starts), ("goal", self.goals)):
            outside = [(r, c) for r, c in cells if not self._inside(r, c)]
            if outside:
                raise ValueError(
                    f"{_named(noun, outside)} outside the map of {self.height} x {self.width} cells"
                )
            walled = [cell for cell in cells if not self.is_open(*cell)]
            if walled:
                raise ValueError(f"{_named(noun, walled)} on a wall: choose a floor cell")
        both = sorted(set(self.starts) & set(self.goals))
        if both:
            raise ValueError(f"start {both[0]} is also a goal: move one of the two")
        regions = self.regions if self.goals else None
        if regions is not None:
            with_goal = {int(regions[goal]) for goal in self.goals}
            with_start = {int(regions[start]) for start in self.starts}
            for start in self.starts:
                if int(regions[start]) not in with_goal:
                    raise ValueError(
                        f"no goal can be reached from start {start}: open a way to one"
                    )
            for goal in self.goals:
                if int(regions[goal]) not in with_start:
                    raise ValueError(
                        f"goal {goal} cannot be reached from any start: open a way to it"
                    )

    @property
    def height(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.rows[0])

    @cached_property
    def marks(self) -> npt.NDArray[np.str_]:
        """The map as an array of characters, ``[height, width]``."""
        return np.array([list(row) for row in self.rows])

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that have a ``state_id``, in its order."""
        rows, columns = np.nonzero(self.marks != WALL)
        return tuple(zip(rows.tolist(), columns.tolist(), strict=True))

    @cached_property
    def regions(self) -> npt.NDArray[np.int64]:
        """The connected component of each cell, ``[height, width]``; -1 for walls."""
        width = self.width + 2  # with a wall around the map
        regions = np.full((self.height + 2, width), -1)
        regions[1:-1, 1:-1][self.marks == FLOOR] = 0  # open, and not yet in a region
        flat: list[int] = regions.ravel().tolist()
        count = 0
        for seed in np.flatnonzero(regions.ravel() == 0).tolist():
            if flat[seed]:
                continue
            count += 1
            flat[seed] = count
            stack = [seed]
            while stack:
                cell = stack.pop()
                for near in (cell - width, cell + 1, cell + width, cell - 1):
                    if flat[near] == 0:
                        flat[near] = count
                        stack.append(near)
        return np.array(flat).reshape(-1, width)[1:-1, 1:-1]

    def _inside(self, row: int, column: int) -> bool:
        return 0 <= row < self.height and 0 <= column < self.width

    def is_open(self, row: int, column: int) -> bool:
        """Whether a move can enter the cell."""
        return self._inside(row, column) and self.rows[row][column] == FLOOR

    def distances(self, start: Cell) -> dict[Cell, int]:
        """Returns the number of moves from ``start`` to every cell that can be reached."""
        width = self.width + 2
        is_open: list[bool] = np.pad(self.marks == FLOOR, 1).ravel().tolist()
        first = (start[0] + 1) * width + start[1] + 1
        distance = {first: 0}
        frontier = [first]
        steps = [row * width + column for row, column in MOVES]
        while frontier:
            following = []
            for cell in frontier:
                for step in steps:
                    near = cell + step
                    if is_open[near] and near not in distance:
                        distance[near] = distance[cell] + 1
                        following.append(near)
            frontier = following
        return {(at // width - 1, at % width - 1): moves for at, moves in distance.items()}

    def with_marks(
        self, starts: Iterable[Cell] | None = None, goals: Iterable[Cell] | None = None
    ) -> Layout:
        """Returns the same map with other starts or goals (``None``: keep), checked again."""
        return replace(
            self,
            starts=self.starts if starts is None else _as_cells(starts),
            goals=self.goals if goals is None else _as_cells(goals),
        )

    def __str__(self) -> str:
        grid = [list(row) for row in self.rows]
        for mark, cells in (("S", self.starts), ("G", self.goals)):
            for r, c in cells:
                grid[r][c] = mark
        return "\n".join("".join(row) for row in grid)


def _as_cells(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    return tuple((int(r), int(c)) for r, c in cells)


def _read(source: str | Path) -> str:
    if isinstance(source, str) and ("\n" in source or not set(source) - set(_CHARACTERS)):
        return source
    path = Path(source)
    if not path.is_file():
        raise ValueError(
            f"{str(source)!r} is neither a map (of the characters {_CHARACTERS!r}) nor a file"
        )
    if path.stat().st_size > 2 * LARGEST_MAP:
        raise ValueError(
            f"{path} has {path.stat().st_size:,} bytes, and a map has {LARGEST_MAP:,} cells at most"
        )
    return path.read_text(encoding="utf-8")


def parse_layout(source: str | Path | Layout) -> Layout:
    """Reads and checks a map.

    Args:
        source (str, Path or Layout): the map, or the path of a file with the map. Empty
            lines before and after the map are dropped. A :class:`Layout` is returned as it is.

    Raises:
        ValueError: if the map is empty or ragged, holds an unknown character, or fails the checks
            of :class:`Layout`.

    Examples:
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
        >>> parse_layout("S..#\\n.##G")
        Traceback (most recent call last):
        ValueError: no goal can be reached from start (0, 0): open a way to one
    """
    if isinstance(source, Layout):
        return source
    lines = _read(source).strip("\n").split("\n")
    if not lines[0]:
        raise ValueError("the map is empty: it needs at least one row of cells")
    for r, line in enumerate(lines):
        if len(line) != len(lines[0]):
            raise ValueError(
                f"the map is ragged: row {r} has {len(line)} cells, row 0 has {len(lines[0])} "
                "(write floor at the end of a row as '.')"
            )
        unknown = set(line) - set(_CHARACTERS)
        if unknown:
            raise ValueError(
                f"unknown character {min(unknown)!r} in row {r} of the map: use '#' for wall, '.' "
                "or ' ' for floor, 'S' for start, 'G' for goal, 'X' for a closed hallway"
            )
    marks = {
        mark: tuple((r, c) for r, line in enumerate(lines) for c, m in enumerate(line) if m == mark)
        for mark in "SG"
    }
    to_floor = str.maketrans(" SG", FLOOR * 3)
    rows = tuple(line.translate(to_floor) for line in lines)
    return Layout(rows, starts=marks["S"], goals=marks["G"])
