from __future__ import annotations

import pytest
import torch

from torchrl_dceo.modules import RunningMoments, RunningNormalizer


@pytest.mark.parametrize("shape", [(), (3,), (2, 4, 5)])
def test_moments_are_those_of_all_samples_together(shape):
    sizes = [1, 7, 32, 2]
    # Means that move and are large against the deviation: a naive E[x²] - E[x]² fails here.
    batches = [500 + 3 * k + (1 + k) * torch.randn(size, *shape) for k, size in enumerate(sizes)]
    moments = RunningMoments(shape)
    for batch in batches:
        moments.update(batch)
    everything = torch.cat(batches).double()
    assert moments.count == sum(sizes)
    torch.testing.assert_close(moments.mean.double(), everything.mean(0), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        moments.var.double(), everything.var(0, unbiased=False), rtol=1e-3, atol=0
    )


def test_any_leading_shape_counts_every_sample():
    batch = torch.randn(4, 3, 5)
    one, other = RunningMoments((5,)), RunningMoments((5,))
    one.update(batch)
    other.update(batch.reshape(12, 5))
    assert one.count == 12
    torch.testing.assert_close(one.var, other.var)


def test_integers_and_empty_batches():
    moments = RunningMoments((2,))
    moments.update(torch.zeros(0, 2))
    assert moments.count == 0 and moments.mean.isfinite().all()
    moments.update(torch.tensor([[0, 255], [0, 1]], dtype=torch.uint8))
    torch.testing.assert_close(moments.mean, torch.tensor([0.0, 128.0]))
    torch.testing.assert_close(moments.var, torch.tensor([0.0, 127.0**2]))


def test_statistics_are_saved():
    moments = RunningMoments((2,))
    moments.update(torch.randn(9, 2))
    loaded = RunningMoments((2,))
    loaded.load_state_dict(moments.state_dict())
    loaded.update(torch.ones(3, 2))
    moments.update(torch.ones(3, 2))
    assert loaded.count == 12
    torch.testing.assert_close(loaded.var, moments.var, rtol=0, atol=0)


def test_normalizer_gives_every_pixel_its_own_statistics():
    images = torch.randint(256, (200, 3, 4, 4), dtype=torch.uint8)
    images[:, 0] = images[:, 0] // 50  # one channel on a far smaller scale than the others
    normalize = RunningNormalizer((3, 4, 4))
    normalize.update(images)
    out = normalize(images)
    expected = (images.float() - images.float().mean(0)) / images.float().std(0, unbiased=False)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def test_normalizer_clips_and_is_pure():
    normalize = RunningNormalizer((1,), clip=2.0)
    normalize.update(torch.tensor([[-1.0], [1.0]]))
    before = {k: v.clone() for k, v in normalize.state_dict().items()}
    out = normalize(torch.tensor([[-9.0], [0.5], [9.0]]))
    torch.testing.assert_close(out, torch.tensor([[-2.0], [0.5], [2.0]]))
    for key, value in normalize.state_dict().items():
        assert torch.equal(value, before[key]), "calling the normaliser counted a batch"


def test_a_pixel_that_never_changed_is_new_when_it_does():
    normalize = RunningNormalizer((2,))
    normalize.update(torch.full((50, 2), 17.0))
    torch.testing.assert_close(normalize(torch.tensor([17.0, 18.0])), torch.tensor([0.0, 5.0]))


def test_bad_input():
    with pytest.raises(ValueError, match=r"shape \(3,\) cannot use a batch of shape \(5, 2\)"):
        RunningMoments((3,)).update(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="clip must be positive and finite, got 0"):
        RunningNormalizer((3,), clip=0)
    with pytest.raises(ValueError, match="eps must be positive, got 0"):
        RunningMoments(eps=0)
