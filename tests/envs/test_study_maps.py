"""The frozen maps of the representation study."""

from __future__ import annotations

import pytest

from torchrl_dceo.analysis import exact_eigenfunctions
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.envs.grid.layouts import parse_layout
from torchrl_dceo.envs.grid.maps import STUDY_MAPS, find_map

STATES = {
    "GridRoom1": 221,
    "GridRoom4": 229,
    "GridRoom16": 195,
    "GridRoom32": 350,
    "GridRoom64": 596,
    "GridMaze13": 75,
    "GridMaze19": 169,
    "GridMaze26": 508,
    "GridMaze31": 622,
}


@pytest.mark.parametrize("name", STUDY_MAPS)
def test_frozen_connected_and_of_the_size_in_the_name(name):
    layout = parse_layout(find_map(name))
    assert len(layout.cells) == STATES[name]
    assert len(layout.distances(layout.starts[0])) == STATES[name]
    if "Maze" in name:
        size = int(name.removeprefix("GridMaze"))
        assert (layout.height, layout.width) == (size, size)


@pytest.mark.parametrize("name", STUDY_MAPS)
def test_no_eigenvalue_of_the_first_twelve_repeats(name):
    values, _ = exact_eigenfunctions(GridWorldEnv(find_map(name), observation="xy"), 12)
    relative = values.diff() / values[1:]
    assert relative.min() > 0.015
    if name in ("GridRoom16", "GridMaze19", "GridMaze26"):
        assert relative.min() > 0.14


def test_a_map_by_its_name_its_file_or_its_text(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("S..\n.#.\n")
    assert find_map(str(file)) == find_map("S..\n.#.")
    assert find_map("NineRooms").startswith("###")
    with pytest.raises(ValueError, match=r"unknown map 'GridMase19' \(did you mean 'GridMaze19'"):
        find_map("GridMase19")
