from __future__ import annotations

import pytest
import torch

from torchrl_dceo.envs.atari.env import AreaResize


def _plain(picture: torch.Tensor, new_size: tuple[int, int]) -> torch.Tensor:
    """Every pixel becomes a tile of equal parts, so that each new pixel covers whole parts: no fractions anywhere."""
    height, width = picture.shape
    fine = picture.double().repeat_interleave(new_size[0], 0).repeat_interleave(new_size[1], 1)
    return fine.view(new_size[0], height, new_size[1], width).mean((1, 3))


@pytest.mark.parametrize(
    ("size", "new_size"),
    [
        ((210, 160), (84, 84)),
        ((7, 5), (3, 4)),
        ((6, 4), (3, 2)),
        ((5, 5), (5, 5)),
        ((9, 8), (1, 1)),
    ],
)
def test_equals_the_mean_over_the_area(size, new_size):
    pictures = torch.randint(
        256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    ours = AreaResize(size, new_size)(pictures)
    assert ours.dtype == torch.uint8 and ours.shape == (3, *new_size)
    for one, picture in zip(ours, pictures, strict=True):
        # Half a level is rounding itself; float32 may round the other way at a tie.
        assert (one.double() - _plain(picture, new_size)).abs().max() <= 0.5 + 1e-4


def test_any_leading_shape():
    resize = AreaResize((6, 4), (3, 3))
    picture = torch.arange(24, dtype=torch.uint8).view(6, 4)
    batch = picture.expand(2, 1, 6, 4).contiguous()
    assert resize(batch)[1, 0].equal(resize(picture))


@pytest.mark.parametrize("new_size", [(7, 4), (6, 0)])
def test_only_shrinks(new_size):
    with pytest.raises(ValueError, match="new_size must have 1 to"):
        AreaResize((6, 4), new_size)
