"""The maps of the paper and of the representation studies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from torchrl_dceo.envs.grid.layouts import CLOSED, FLOOR, WALL, Cell, Layout, check_map_size
from torchrl_dceo.envs.grid.random_maps import random_maze
from torchrl_dceo.settings import choices

__all__ = [
    "MAPS",
    "STUDY_MAPS",
    "find_map",
    "four_rooms",
    "grid_maze",
    "maze",
    "nine_rooms",
    "nine_rooms_goal_switch",
    "nine_rooms_topology_switch",
    "rooms",
    "sixteen_rooms",
]


def rooms(
    n_rows: int,
    n_cols: int,
    room_size: int,
    *,
    start: Cell | None = None,
    goal: Cell | None = None,
    closed: Iterable[tuple[Cell, Cell]] = (),
) -> str:
    """Returns a map of square rooms; neighbouring rooms are connected by a hallway of one cell.

    Args:
        n_rows (int): rows of rooms.
        n_cols (int): columns of rooms.
        room_size (int): cells along the side of a room.

    Keyword Args:
        start (cell, optional): Default: the top right corner.
        goal (cell, optional): Default: the bottom left corner (none if that is the start).
        closed (pairs of rooms): the hallways to close, each given by the (row, column) of the two rooms
            that it connects.

    Examples:
        >>> from torchrl_dceo.envs.grid.maps import rooms
        >>> print(rooms(1, 2, 3))
        #########
        #...#..S#
        #.......#
        #G..#...#
        #########
    """
    for name, value in (("n_rows", n_rows), ("n_cols", n_cols), ("room_size", room_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    pitch = room_size + 1
    height, width = n_rows * pitch + 1, n_cols * pitch + 1
    check_map_size(height, width)
    grid = [
        [WALL if r % pitch == 0 or c % pitch == 0 else FLOOR for c in range(width)]
        for r in range(height)
    ]
    shut = {frozenset(pair) for pair in closed}
    hallways = {}
    for r in range(n_rows):
        for c in range(n_cols):
            centre = (r * pitch + 1 + room_size // 2, c * pitch + 1 + room_size // 2)
            if r + 1 < n_rows:
                hallways[frozenset({(r, c), (r + 1, c)})] = ((r + 1) * pitch, centre[1])
            if c + 1 < n_cols:
                hallways[frozenset({(r, c), (r, c + 1)})] = (centre[0], (c + 1) * pitch)
    for pair in shut - hallways.keys():
        raise ValueError(f"rooms {sorted(pair)} are not neighbours: there is no hallway to close")
    for pair, (r, c) in hallways.items():
        grid[r][c] = CLOSED if pair in shut else FLOOR
    start = (1, width - 2) if start is None else start
    corner = (height - 2, 1)
    goal = corner if goal is None and corner != start else goal
    plain = Layout(tuple("".join(row) for row in grid), starts=(start,), goals=())
    return str(plain.with_marks(goals=() if goal is None else (goal,)))


def nine_rooms(room_size: int = 5) -> str:
    """Nine Rooms: 3 x 3 rooms, start top right, goal bottom left.

    With rooms of 5 x 5 cells these are 19 x 19 cells and 237 states.

    Examples:
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
        >>> from torchrl_dceo.envs.grid.maps import nine_rooms
        >>> [len(parse_layout(nine_rooms(size)).cells) for size in (3, 5)]
        [93, 237]
    """
    return rooms(3, 3, room_size)


def sixteen_rooms(room_size: int = 4) -> str:
    """Sixteen Rooms: 4 x 4 rooms, start top right, goal bottom left; not used for any tuning.

    Examples:
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
        >>> from torchrl_dceo.envs.grid.maps import sixteen_rooms
        >>> len(parse_layout(sixteen_rooms()).cells)
        280
    """
    return rooms(4, 4, room_size)


def _corner(room_size: int, row: int, column: int) -> Cell:
    far = 3 * (room_size + 1) - 1
    return (1 if row == 0 else far, 1 if column == 0 else far)


def nine_rooms_goal_switch(room_size: int = 5) -> tuple[str, str]:
    """Nine Rooms before and after the goal switch: start and goal move to the two other corners.

    Examples:
        >>> from torchrl_dceo.envs.grid.layouts import parse_layout
        >>> from torchrl_dceo.envs.grid.maps import nine_rooms_goal_switch
        >>> [(m.starts, m.goals) for m in map(parse_layout, nine_rooms_goal_switch())]
        [(((1, 17),), ((17, 1),)), (((1, 1),), ((17, 17),))]
    """
    after = rooms(3, 3, room_size, start=_corner(room_size, 0, 0), goal=_corner(room_size, 2, 2))
    return nine_rooms(room_size), after


def nine_rooms_topology_switch(room_size: int = 5) -> tuple[str, str]:
    """Nine Rooms before and after the topology switch.

    Start and goal move as in the goal switch, and seven of the twelve hallways close. One path is
    left from the new start to the new goal, through the rooms of the middle column. The room of the
    old start stays connected to it, and the three other rooms can no longer be entered.

    Examples:
        >>> from torchrl_dceo.envs.grid.maps import nine_rooms_topology_switch
        >>> print(nine_rooms_topology_switch(room_size=3)[1])
        #############
        #S..#...#...#
        #...........#
        #...#...#...#
        ##X###.###X##
        #...#...#...#
        #...X...X...#
        #...#...#...#
        ##X###.###X##
        #...#...#...#
        #...X.......#
        #...#...#..G#
        #############
    """
    closed = [
        ((0, 0), (1, 0)),
        ((1, 0), (2, 0)),
        ((0, 2), (1, 2)),
        ((1, 2), (2, 2)),
        ((1, 0), (1, 1)),
        ((1, 1), (1, 2)),
        ((2, 0), (2, 1)),
    ]
    start, goal = _corner(room_size, 0, 0), _corner(room_size, 2, 2)
    return nine_rooms(room_size), rooms(3, 3, room_size, start=start, goal=goal, closed=closed)


def four_rooms() -> str:
    """Four Rooms of Sutton, Precup and Singh (1999): 13 x 13 cells, 104 states.

    Start (top left) and goal (bottom right) are not from the paper.

    Examples:
        >>> from torchrl_dceo.envs.grid.maps import four_rooms
        >>> print(four_rooms()[:27])
        #############
        #S....#.....#
    """
    return """
#############
#S....#.....#
#.....#.....#
#...........#
#.....#.....#
#.....#.....#
##.####.....#
#.....###.###
#.....#.....#
#.....#.....#
#...........#
#.....#....G#
#############
""".strip()


def maze() -> str:
    """The Maze: one winding corridor of 91 cells with the start in the middle.

    There is a goal at each end, both 45 moves away.

    Examples:
        >>> from torchrl_dceo.envs.grid.maps import maze
        >>> print(maze()[:53])
        #################
        ###...#.S.#...###
        ###.#.#.#.#.#.###
    """
    return """
#################
###...#.S.#...###
###.#.#.#.#.#.###
#G#.#.#.#.#.#.#G#
#.#.#.#.#.#.#.#.#
#.#.#.#.#.#.#.#.#
#.#.#.#.#.#.#.#.#
#.#.#.#.#.#.#.#.#
#.#.#.#.#.#.#.#.#
#.#.#.#.#.#.#.#.#
#.#.#.#.#.#.#.#.#
#...#...#...#...#
#################
""".strip()


def grid_maze() -> str:
    """GridMaze, similar to the maze of Wang et al. (2021): wide corridors and dead ends.

    19 x 19 cells and 214 states; start bottom left, goal top right, 42 moves away.

    Examples:
        >>> from torchrl_dceo.envs.grid.maps import grid_maze
        >>> print(grid_maze()[:39])
        ###################
        #................G#
    """
    return """
###################
#................G#
#.................#
#..#############..#
#........#..#.....#
#........#..#.....#
#######..#..#..####
#........#.....#..#
#........#.....#..#
#..#######..####..#
#..#..#.....#.....#
#..#..#.....#.....#
#..#..#..#######..#
#..#..#...........#
#..#..#...........#
#..#..##########..#
#..#..............#
#S.#..............#
###################
""".strip()


MAPS: dict[str, Callable[[], str]] = {
    "NineRooms": nine_rooms,
    "FourRooms": four_rooms,
    "Maze": maze,
    "GridMaze": grid_maze,
    "SixteenRooms": sixteen_rooms,
    "RandomMaze": random_maze,
}


"""The maps of the package, by name."""


_FOLDER = Path(__file__).parent / "map_files"


_ROOMS, _MAZES = (1, 4, 16, 32, 64), (13, 19, 26, 31)


STUDY_MAPS: dict[str, Path] = {
    **{f"GridRoom{n}": _FOLDER / f"grid_room_{n}.txt" for n in _ROOMS},
    **{f"GridMaze{n}": _FOLDER / f"grid_maze_{n}.txt" for n in _MAZES},
}


"""``GridRoom16`` has 16 rooms, ``GridMaze19`` has 19 x 19 cells."""


def find_map(name: str | Path) -> str:
    """Returns the text of a map given by its name, by a file, or directly.

    Args:
        name (str or Path): one of :data:`STUDY_MAPS` or of :data:`MAPS`, the path of a file, or
            the map itself.

    Examples:
        >>> from torchrl_dceo.envs.grid.maps import find_map
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
    raise ValueError(f"unknown map {choices(str(name), known)}, or give the path of a text file")
