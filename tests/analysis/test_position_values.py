from __future__ import annotations

import pytest
import torch

from torchrl_dceo.analysis.figures.positions import draw_position_values, position_values


def test_means_over_equal_positions():
    generator = torch.Generator().manual_seed(0)
    positions = torch.randint(4, (200, 2), generator=generator)
    values = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    result = position_values(positions, values)
    assert result.counts.sum() == 200 and len(result.positions) == 16
    for place, mean, count in zip(*result[:2], result.counts, strict=True):
        here = (positions == place).all(1)
        assert here.sum() == count
        assert mean.allclose(values[here].mean(0))


def test_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"positions must be \[N, 2\]"):
        position_values(torch.zeros(3, 2), torch.zeros(4, 1))


def test_dots_are_where_they_should_be(tmp_path):
    image = pytest.importorskip("PIL.Image")
    screen = torch.zeros(210, 160, 3, dtype=torch.uint8)
    pixels = torch.tensor([[20, 30], [80, 100], [140, 180]])
    path = draw_position_values(
        screen,
        pixels,
        torch.tensor([[-1.0], [0.0], [1.0]]),
        tmp_path / "f.png",
        titles=["f"],
        size=60,
    )
    drawn = torch.tensor(list(image.open(path).convert("RGB").tobytes()), dtype=torch.int64)
    width, height = image.open(path).size
    drawn = drawn.view(height, width, 3)
    red = (drawn[..., 0] - drawn[..., 2] > 80).nonzero().double().mean(0)
    blue = (drawn[..., 2] - drawn[..., 0] > 80).nonzero().double().mean(0)
    assert (blue < red).all()  # low: above and to the left; high: beneath and to the right
    with pytest.raises(ValueError, match="2 functions need as many titles, got 1"):
        draw_position_values(screen, pixels, torch.zeros(3, 2), tmp_path / "g.png", titles=["f"])
