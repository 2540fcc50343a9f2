from __future__ import annotations

from collections import deque

import pytest

from torchrl_dceo.envs.grid.layouts import parse_layout
from torchrl_dceo.envs.grid.maps import (
    MAPS,
    four_rooms,
    grid_maze,
    maze,
    nine_rooms,
    nine_rooms_goal_switch,
    nine_rooms_topology_switch,
    rooms,
)


def shortest_paths(text, blocked="#X"):
    """Breadth-first search on the characters alone: moves from S to every reachable cell."""
    grid = text.split("\n")
    start = next((r, c) for r, row in enumerate(grid) for c, mark in enumerate(row) if mark == "S")
    distance, queue = {start: 0}, deque([start])
    while queue:
        r, c = queue.popleft()
        for cell in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)):
            if 0 <= cell[0] < len(grid) and 0 <= cell[1] < len(grid[0]) and cell not in distance:
                if grid[cell[0]][cell[1]] in blocked:
                    continue
                distance[cell] = distance[(r, c)] + 1
                queue.append(cell)
    return distance


def marked(text, mark):
    return [
        (r, c) for r, row in enumerate(text.split("\n")) for c, m in enumerate(row) if m == mark
    ]


@pytest.mark.parametrize(
    ("text", "size", "states"),
    [
        (nine_rooms(), (19, 19), 237),
        (nine_rooms(3), (13, 13), 93),
        (four_rooms(), (13, 13), 104),
        (maze(), (13, 17), 91),
        (grid_maze(), (19, 19), 214),
        (rooms(2, 4, 3), (9, 17), 8 * 9 + 10),
        (rooms(1, 1, 1), (3, 3), 1),
    ],
)
def test_sizes(text, size, states):
    layout = parse_layout(text)
    assert (layout.height, layout.width) == size
    assert len(layout.cells) == states == len(text.replace("\n", "").replace("#", ""))


@pytest.mark.parametrize("name", MAPS)
def test_every_map_is_connected_walled_in_and_solvable_within_the_step_limit(name):
    text = MAPS[name]()
    distance = shortest_paths(text)
    assert len(distance) == len(parse_layout(text).cells)
    assert all(distance[goal] < 100 for goal in marked(text, "G"))
    assert distance == parse_layout(text).distances(marked(text, "S")[0])
    lines = text.split("\n")
    edge = lines[0] + lines[-1] + "".join(line[0] + line[-1] for line in lines)
    assert set(edge) == {"#"}


@pytest.mark.parametrize("room_size", [1, 2, 3, 5, 6])
def test_nine_rooms_of_any_size_go_from_top_right_to_bottom_left(room_size):
    text = nine_rooms(room_size)
    last = 3 * (room_size + 1) - 1
    assert marked(text, "S") == [(1, last)] and marked(text, "G") == [(last, 1)]
    assert len(shortest_paths(text)) == 9 * room_size**2 + 12
    # All hallways are aligned, so that no detour is needed.
    assert shortest_paths(text)[(last, 1)] == 2 * (last - 1) <= 100


def test_maze_is_one_corridor_with_its_ends_equally_far():
    text = maze()
    distance = shortest_paths(text)
    ends = marked(text, "G")
    assert [distance[end] for end in ends] == [45, 45]
    free = set(distance)
    neighbours = {
        (r, c): sum(cell in free for cell in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)))
        for r, c in free
    }
    assert {cell for cell, count in neighbours.items() if count == 1} == set(ends)
    assert all(count == 2 for cell, count in neighbours.items() if cell not in ends)


@pytest.mark.parametrize("room_size", [1, 2, 3, 5])
def test_goal_switch_moves_start_and_goal_only(room_size):
    before, after = nine_rooms_goal_switch(room_size)
    assert before == nine_rooms(room_size)
    assert marked(before, "S") != marked(after, "S") and marked(before, "G") != marked(after, "G")
    plain = str.maketrans("SG", "..")
    assert before.translate(plain) == after.translate(plain)


@pytest.mark.parametrize("room_size", [1, 2, 3, 5])
def test_topology_switch_closes_most_hallways_and_leaves_a_way(room_size):
    before, after = nine_rooms_topology_switch(room_size)
    assert before == nine_rooms(room_size)
    assert marked(before, "S") != marked(after, "S") and marked(before, "G") != marked(after, "G")
    assert parse_layout(before).cells == parse_layout(after).cells
    pitch = room_size + 1
    hallways = [(r, c) for r, c in parse_layout(before).cells if r % pitch == 0 or c % pitch == 0]
    closed = marked(after, "X")
    assert len(hallways) == 12
    assert set(closed) <= set(hallways) and 2 * len(closed) >= len(hallways)
    distance = shortest_paths(after)
    assert distance[marked(after, "G")[0]] <= 100
    # What is still joined is joined to the start: every open hallway can be reached.
    assert all(hallway in distance for hallway in hallways if hallway not in closed)
    assert all(hallway not in distance for hallway in closed)


def test_rooms_refuse_what_cannot_be_built():
    with pytest.raises(ValueError, match="room_size must be at least 1, got 0"):
        rooms(2, 2, 0)
    with pytest.raises(ValueError, match=r"rooms \[\(0, 0\), \(1, 1\)\] are not neighbours"):
        rooms(2, 2, 3, closed=[((0, 0), (1, 1))])
    with pytest.raises(ValueError, match=r"goal \(0, 0\) lies on a wall"):
        rooms(2, 2, 3, goal=(0, 0))
