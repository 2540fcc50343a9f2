from __future__ import annotations

import re

import numpy as np
import pytest

from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
from torchrl_dceo.envs.grid.layouts import ACTIONS, MOVES, parse_layout

SMALL = "####\n#S.#\n#.G#\n####"


def test_reads_marks_and_numbers_cells_row_by_row():
    layout = parse_layout("#S #\nX.SG")
    assert (layout.height, layout.width) == (2, 4)
    assert layout.starts == ((0, 1), (1, 2))
    assert layout.goals == ((1, 3),)
    assert layout.cells == ((0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3))
    assert [layout.is_open(*cell) for cell in layout.cells] == [True, True, False, True, True, True]
    assert not layout.is_open(-1, 1) and not layout.is_open(0, 4)


def test_text_and_file_give_the_same_layout(tmp_path):
    path = tmp_path / "map.txt"
    path.write_text("\n" + SMALL + "\n\n")
    assert parse_layout(path) == parse_layout(str(path)) == parse_layout(SMALL)
    assert parse_layout(parse_layout(SMALL)) == parse_layout(SMALL)
    assert str(parse_layout(SMALL)) == SMALL


def test_distances_count_moves_around_walls():
    layout = parse_layout("S#G\n.#.\n...")
    assert layout.distances((0, 0)) == {
        (0, 0): 0,
        (1, 0): 1,
        (2, 0): 2,
        (2, 1): 3,
        (2, 2): 4,
        (1, 2): 5,
        (0, 2): 6,
    }


def test_actions_move_as_they_are_called():
    assert dict(zip(ACTIONS, MOVES, strict=True)) == {
        "up": (-1, 0),
        "right": (0, 1),
        "down": (1, 0),
        "left": (0, -1),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the map is empty"),
        ("\n\n", "the map is empty"),
        ("S..\n..", "the map is ragged: row 1 has 2 cells, row 0 has 3"),
        ("...\n..G", "the map has no start"),
        ("S.\n.k", "unknown character 'k' in row 1"),
        ("S#G", "no goal can be reached from start (0, 0)"),
        ("SG#G", "goal (0, 3) cannot be reached from any start"),
        ("SXG", "no goal can be reached from start (0, 0)"),
        ("S.kG", "'S.kG' is neither a map"),
        ("no/such/file.txt", "'no/such/file.txt' is neither a map"),
    ],
)
def test_bad_maps_get_one_sentence(text, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        parse_layout(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({"goals": [(0, 0)]}, "goal (0, 0) lies on a wall"),
        ({"goals": [(0, 0), (0, 1)]}, "goals (0, 0) and (0, 1) lie on a wall"),
        ({"goals": [(9, 9)]}, "goal (9, 9) lies outside the map of 4 x 4 cells"),
        ({"goals": [(-1, 1)]}, "goal (-1, 1) lies outside the map"),
        ({"starts": [(3, 3)]}, "start (3, 3) lies on a wall"),
        ({"starts": []}, "the map has no start"),
        ({"goals": [(1, 1)]}, "start (1, 1) is also a goal"),
    ],
)
def test_bad_marks_get_one_sentence(marks, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_layout(SMALL).with_marks(**marks)
    with pytest.raises(ValueError, match=re.escape(message)):
        GridWorldEnv(SMALL, **marks)


def random_map(side, seed, walls=0.3):
    cells = np.where(np.random.default_rng(seed).random((side, side)) < walls, "#", ".")
    cells[0], cells[:, -1] = ".", "."
    cells[0, 0], cells[-1, -1] = "S", "G"
    return "\n".join("".join(row) for row in cells)


def slow_distances(layout, start):
    """Dijkstra with all distances 1, cell by cell."""
    distance = {start: 0}
    queue = [start]
    while queue:
        r, c = queue.pop(0)
        for dr, dc in MOVES:
            cell = (r + dr, c + dc)
            if layout.is_open(*cell) and cell not in distance:
                distance[cell] = distance[r, c] + 1
                queue.append(cell)
    return distance


@pytest.mark.parametrize("seed", range(3))
def test_distances_and_regions_are_those_of_a_walk(seed):
    layout = parse_layout(random_map(12, seed, walls=0.45))
    for cell in layout.cells:
        near = slow_distances(layout, cell)
        assert layout.distances(cell) == near
        same = {other for other in layout.cells if layout.regions[other] == layout.regions[cell]}
        assert same == set(near)
    assert (layout.regions == -1).sum() == 144 - len(layout.cells)


def test_a_map_of_500_by_500_cells_can_start_anywhere():
    """200,000 starts: a walk from each of them would take days."""
    env = GridWorldEnv(random_map(500, 0, walls=0.2), starts="anywhere", observation="xy")
    assert env.num_states > 190_000 and len(env.layout.starts) > 180_000


def test_larger_maps_are_refused(tmp_path):
    sentence = r"the map has 501 x 500 cells, and 250,000 are allowed"
    with pytest.raises(ValueError, match=sentence):
        parse_layout("\n".join(["S" + "." * 499] + ["." * 500] * 500))
    path = tmp_path / "map.txt"
    path.write_text("." * 600_000)
    with pytest.raises(ValueError, match=r"has 600,000 bytes, and a map has 250,000 cells at most"):
        parse_layout(path)


@pytest.mark.parametrize("seed", range(3))
def test_moves_are_those_of_a_slow_table(seed):
    text = random_map(9, seed).replace("#", "X", 3)
    layout = parse_layout(text)
    number = {cell: i for i, cell in enumerate(layout.cells)}
    table = [
        [
            number[r + dr, c + dc] if layout.is_open(r + dr, c + dc) else number[r, c]
            for dr, dc in MOVES
        ]
        for r, c in layout.cells
    ]
    env = GridWorldEnv(layout)
    assert env._moves.view(env.num_states, 4).tolist() == table
