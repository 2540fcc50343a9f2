from __future__ import annotations

import re

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
