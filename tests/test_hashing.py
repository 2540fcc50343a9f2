"""Observations as numbers: equal where they count as one state, and nowhere else; the same in every process."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from torchrl_dceo.hashing import CellHash, ExactHash, SimHash, combine, make_hash


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.int64, torch.float32, torch.float64, torch.bfloat16]
)
def test_exact_hashes_are_equal_where_the_observations_are(dtype):
    draw = torch.randint(0, 2, (500, 2, 3), generator=torch.Generator().manual_seed(0)).to(dtype)
    hashes = ExactHash()(draw)
    same = (draw.flatten(1)[:, None] == draw.flatten(1)).all(-1)
    assert torch.equal(same, hashes[:, None] == hashes)
    assert hashes.unique().numel() == 64


def test_single_bytes_and_their_places_count():
    images = torch.zeros(256 + 99, 100, dtype=torch.uint8)
    images[:256, 0] = torch.arange(256)
    images[256:, 1:].fill_diagonal_(1)
    assert ExactHash()(images).unique().numel() == 256 + 99
    high = torch.zeros(300, 50, dtype=torch.uint8)  # differences in the highest bits alone
    high[torch.arange(300), torch.arange(300) % 50] = 128
    assert ExactHash()(high).unique().numel() == 50


def test_many_random_images_do_not_collide():
    images = torch.randint(0, 2, (100_000, 1, 8, 8), dtype=torch.uint8)
    distinct = images.flatten(1).unique(dim=0).shape[0]
    assert ExactHash()(images).unique().numel() == distinct


def test_a_negative_zero_is_zero():
    assert ExactHash()(torch.tensor([[-0.0], [0.0]])).unique().numel() == 1


def test_no_dimension_beyond_the_batch():
    assert ExactHash()(torch.tensor([3, 4, 3])).unique().numel() == 2


def test_cells():
    image = torch.randint(0, 200, (1, 3, 84, 84), generator=torch.Generator().manual_seed(1))
    noisy = image.clone()
    noisy[0, 0, 40, 40] += 20
    bright = image + 55
    cell = CellHash(height=4, width=4, levels=4)
    assert cell(image.to(torch.uint8)) == cell(noisy.to(torch.uint8))
    assert cell(image.to(torch.uint8)) != cell(bright.to(torch.uint8))
    # The scale of floats is [0, 1].
    assert cell(image.to(torch.uint8)) == cell(image.float() / 255)
    with pytest.raises(ValueError, match=r"cells are of images \[N, C, H, W\]"):
        cell(torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"levels lie in \[2, 256\], got 8, 11 and 1"):
        CellHash(levels=1)


def test_simhash_signs():
    """The share of equal bits of two vectors is 1 - angle/π."""
    hashes = SimHash(bits=63)(torch.tensor([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]]))
    first, second, third = ({i for i in range(63) if int(h) >> i & 1} for h in hashes)
    assert not first & third and len(first | third) == 63
    assert len(first ^ second) == pytest.approx(63 * 0.25, abs=14)  # four standard deviations
    with pytest.raises(ValueError, match=r"bits must lie in \[1, 63\], got 64"):
        SimHash(bits=64)


def test_combining():
    a, b = torch.arange(4), torch.tensor([0, 0, 1, 1])
    assert combine([a, b]).unique().numel() == 4
    assert combine([b, b]).unique().numel() == 2


def test_names():
    own = torch.sum
    assert make_hash(own) is own
    with pytest.raises(ValueError, match="got 'sha'"):
        make_hash("sha")


def test_the_same_in_another_process():
    code = (
        "import torch; from torchrl_dceo.hashing import ExactHash, SimHash;"
        "x = torch.arange(12.).reshape(2, 6) - 6; print(ExactHash()(x).tolist(), SimHash()(x).tolist())"
    )
    x = torch.arange(12.0).reshape(2, 6) - 6
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == f"{ExactHash()(x).tolist()} {SimHash()(x).tolist()}"
