"""Random maps: rooms with random doors, mazes and caves, to test settings on unseen maps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

from torchrl_dceo.envs.grid.layouts import MOVES, Cell

__all__ = ["MapKind", "random_map", "random_maze"]

MapKind = Literal["rooms", "maze", "cave"]

_ATTEMPTS = 1000


def random_map(
    seed: int, kind: MapKind | None = None, *, min_states: int = 60, max_states: int = 600
) -> str:
    """Returns a connected random map with a start ``S``, the same for the same arguments.

    Args:
        seed (int): seed of all random choices.
        kind (str, optional): ``"rooms"``: rooms of different sizes, connected by doors of one cell, some of them
            closed; ``"maze"``: corridors of one cell, some walls between them removed; ``"cave"``: an open space with
            irregular walls and pillars. Default: chosen at random.

    Keyword Args:
        min_states (int): the fewest open cells. Default: ``60``.
        max_states (int): the most open cells. Default: ``600``.

    Examples:
        >>> from torchrl_dceo.envs.grid.random_maps import random_map
        >>> print(random_map(3, "maze", min_states=20, max_states=40))
        #######
        #.#...#
        #.#.###
        #.#...#
        #.###.#
        #...#.#
        #S#.#.#
        #.#...#
        #.###.#
        #...#.#
        #.#.#.#
        #.#...#
        #######
    """
    if not 4 <= min_states <= max_states:
        raise ValueError(
            f"min_states must be at least 4 and no more than max_states, got {min_states} and {max_states}"
        )
    if kind is not None and kind not in _MAKERS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, _MAKERS))}, got {kind!r}")
    generator = random.Random(f"torchrl_dceo map {seed}")
    chosen = generator.choice(list(_MAKERS)) if kind is None else kind
    for _ in range(_ATTEMPTS):
        # A new size for every attempt, so that small and large maps are equally likely.
        states = min_states * (max_states / min_states) ** generator.random()
        cells = _largest_part(_MAKERS[chosen](generator, states))
        if min_states <= len(cells) <= max_states:
            return _drawn(cells, generator.choice(sorted(cells)))
    raise ValueError(
        f"no {chosen} with {min_states} to {max_states} states was found: allow a wider range"
    )


def random_maze(map_seed: int = 0, min_states: int = 80, max_states: int = 110) -> str:
    """Returns a random maze with start and goal at the ends of its longest shortest path.

    Args:
        map_seed (int): seed of the walls. Default: ``0``.
        min_states (int): the fewest open cells. Default: ``80``.
        max_states (int): the most. Default: ``110``.

    Examples:
        >>> from torchrl_dceo.envs.grid.random_maps import random_maze
        >>> print(random_maze(3, min_states=20, max_states=40))
        #######
        #.#..S#
        #.#.###
        #.#...#
        #.###.#
        #...#.#
        #.#.#.#
        #.#...#
        #.###.#
        #...#.#
        #.#.#.#
        #G#...#
        #######
    """
    drawn = random_map(map_seed, "maze", min_states=min_states, max_states=max_states)
    lines = [list(line) for line in drawn.replace("S", ".").splitlines()]
    cells = {(r, c) for r, line in enumerate(lines) for c, mark in enumerate(line) if mark == "."}
    # The first of several paths of the same length, in the order of rows and columns.
    far = [(max(_steps_from(cell, cells).values()), cell) for cell in sorted(cells)]
    longest = max(length for length, _ in far)
    start = next(cell for length, cell in far if length == longest)
    steps = _steps_from(start, cells)
    goal = next(cell for cell in sorted(cells) if steps[cell] == longest)
    lines[start[0]][start[1]], lines[goal[0]][goal[1]] = "S", "G"
    return "\n".join("".join(line) for line in lines)


def _steps_from(start: Cell, cells: set[Cell]) -> dict[Cell, int]:
    """The length of the shortest path to every cell."""
    steps, frontier = {start: 0}, [start]
    for r, c in frontier:
        for dr, dc in MOVES:
            cell = (r + dr, c + dc)
            if cell in cells and cell not in steps:
                steps[cell] = steps[r, c] + 1
                frontier.append(cell)
    return steps


def _rooms(generator: random.Random, states: float) -> set[Cell]:
    side = max(2.0, states**0.5)
    count = generator.randint(2, max(2, min(6, int(side / 3))))
    mean = max(2.0, side / count)

    def bounds(number: int) -> list[tuple[int, int]]:
        found, at = [], 0
        for _ in range(number):
            length = max(2, round(generator.gauss(mean, mean / 4)))
            found.append((at, at + length))
            at += length + 1
        return found

    rows, columns = bounds(count), bounds(generator.randint(max(1, count - 1), count + 1))
    cells = {
        (r, c)
        for top, bottom in rows
        for left, right in columns
        for r in range(top, bottom)
        for c in range(left, right)
    }
    open_share = generator.uniform(0.55, 0.95)
    for i, (top, bottom) in enumerate(rows):
        for j, (left, right) in enumerate(columns):
            if j + 1 < len(columns) and generator.random() < open_share:
                cells.add((generator.randrange(top, bottom), right))
            if i + 1 < len(rows) and generator.random() < open_share:
                cells.add((bottom, generator.randrange(left, right)))
    return cells


def _maze(generator: random.Random, states: float) -> set[Cell]:
    # A tree over n nodes has n - 1 edges: two cells per node.
    nodes = max(4.0, states / 2)
    height = max(2, round(nodes**0.5 * generator.uniform(0.7, 1.3)))
    width = max(2, round(nodes / height))
    path, seen = [(0, 0)], {(0, 0)}
    cells: set[Cell] = {(0, 0)}
    while path:
        r, c = path[-1]
        ways = [
            (r + dr, c + dc)
            for dr, dc in MOVES
            if 0 <= r + dr < height and 0 <= c + dc < width and (r + dr, c + dc) not in seen
        ]
        if not ways:
            path.pop()
            continue
        to = generator.choice(ways)
        seen.add(to)
        path.append(to)
        cells |= {(2 * to[0], 2 * to[1]), (r + to[0], c + to[1])}
    broken = generator.uniform(0.0, 0.15)
    for r in range(2 * height - 1):
        for c in range(2 * width - 1):
            if (r + c) % 2 and generator.random() < broken:
                cells.add((r, c))
    return cells


def _cave(generator: random.Random, states: float) -> set[Cell]:
    """A cellular automaton on random rock (the 4-5 rule)."""
    area = states / 0.6
    height = max(4, round(area**0.5 * generator.uniform(0.7, 1.3)))
    width = max(4, round(area / height))
    share = generator.uniform(0.55, 0.65)
    cells = {(r, c) for r in range(height) for c in range(width) if generator.random() < share}
    for _ in range(generator.randint(2, 4)):
        cells = {
            (r, c)
            for r in range(height)
            for c in range(width)
            if sum((r + i, c + j) in cells for i in (-1, 0, 1) for j in (-1, 0, 1)) >= 5
        }
    return cells


_MAKERS: dict[str, Callable[[random.Random, float], set[Cell]]] = {
    "rooms": _rooms,
    "maze": _maze,
    "cave": _cave,
}


def _largest_part(cells: set[Cell]) -> set[Cell]:
    largest: set[Cell] = set()
    left = set(cells)
    # Sorted: which of two components of the same size is kept must not depend on the order of a set.
    for first in sorted(cells):
        if first not in left:
            continue
        part, frontier = {first}, [first]
        while frontier:
            r, c = frontier.pop()
            for dr, dc in MOVES:
                cell = (r + dr, c + dc)
                if cell in left and cell not in part:
                    part.add(cell)
                    frontier.append(cell)
        left -= part
        largest = part if len(part) > len(largest) else largest
    return largest


def _drawn(cells: set[Cell], start: Cell) -> str:
    top, left = min(r for r, _ in cells) - 1, min(c for _, c in cells) - 1
    bottom, right = max(r for r, _ in cells) + 1, max(c for _, c in cells) + 1
    return "\n".join(
        "".join(
            "S" if (r, c) == start else "." if (r, c) in cells else "#"
            for c in range(left, right + 1)
        )
        for r in range(top, bottom + 1)
    )
