from __future__ import annotations

import pytest
import torch

from torchrl_dceo.envs.grid.grid_world import TILE_KINDS, draw_tiles, tile, tile_set


@pytest.mark.parametrize("size", [1, 3, 8, 16])
def test_all_tiles_are_squares_and_differ(size):
    tiles = tile_set(size)
    assert tiles.shape == (len(TILE_KINDS), 3, size, size) and tiles.dtype == torch.uint8
    assert len(tiles.flatten(1).unique(dim=0)) == len(TILE_KINDS)


@pytest.mark.parametrize("size", [1, 4, 9])
def test_draw_tiles_puts_each_tile_in_its_place(size):
    kinds = torch.randint(len(TILE_KINDS), (2, 3, 4, 5))
    pictures = draw_tiles(kinds, size)
    assert pictures.shape == (2, 3, 3, 4 * size, 5 * size)
    for i, j, row, column in [(0, 0, 0, 0), (1, 2, 3, 4), (0, 1, 2, 3), (1, 0, 0, 4)]:
        patch = pictures[
            i, j, :, row * size : (row + 1) * size, column * size : (column + 1) * size
        ]
        assert patch.equal(tile(TILE_KINDS[kinds[i, j, row, column]], size))


def test_unknown_kind_and_size():
    with pytest.raises(KeyError, match="unknown tile kind 'lava'"):
        tile("lava")
    with pytest.raises(ValueError, match="tile_size must be at least 1, got 0"):
        tile("wall", 0)
