from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from torchrl_dceo.modules import Centred, CentringFit
from torchrl_dceo.modules.networks import MultiHeadNet, grid_net

SHAPE = (3, 7, 7)


def make_batch(size: int = 16) -> TensorDict:
    """A wall that is always there, and one bright pixel that moves."""
    images = torch.zeros(2, size, *SHAPE, dtype=torch.uint8)
    images[..., 0, :] = 100
    where = torch.randint(1, 7, (2, size, 2))
    for k in range(2):
        for i in range(size):
            images[k, i, 0, where[k, i, 0], where[k, i, 1]] = 255
    batch = TensorDict({"pixels": images[0], "successor": {"pixels": images[1]}}, [size])
    return batch


def test_before_a_fit_it_is_the_network_on_images_scaled_to_one():
    network = grid_net(SHAPE, 4)
    pixels = make_batch()["pixels"]
    torch.testing.assert_close(Centred(network, SHAPE)(pixels), network(pixels))


def test_fit_takes_mean_image_and_one_deviation_of_both_states():
    net, batch = Centred(nn.Flatten(-3), SHAPE), make_batch()
    CentringFit([net])(batch)
    images = torch.cat([batch["pixels"], batch["successor", "pixels"]]).double()
    mean = sum(images) / len(images)
    deviation = (sum(((image - mean) ** 2).mean() for image in images) / len(images)) ** 0.5
    torch.testing.assert_close(net.centre, mean.float())
    torch.testing.assert_close(1 / net.scale, deviation.float())
    inputs = net(torch.cat([batch["pixels"], batch["successor", "pixels"]]))
    assert inputs.mean().abs() < 1e-5 and abs(inputs.square().mean() - 1) < 1e-4
    assert not inputs.unflatten(-1, SHAPE)[..., 0, :].any()  # the wall is gone


def test_a_centred_network_tells_states_apart_from_the_start():
    """What it is for: the spread over states, in units of the output's own size."""
    torch.manual_seed(0)
    network, batch = grid_net(SHAPE, 8), make_batch(64)
    batch["pixels"][:, :, 0] = batch["successor", "pixels"][:, :, 0] = 255
    net = Centred(network, SHAPE)

    def spread() -> float:
        out = net(batch["pixels"]).detach()
        return float((out - out.mean(0)).norm() / out.norm())

    before = spread()
    CentringFit([net])(batch)
    assert spread() > 2 * before


def test_only_the_first_batch_counts_also_after_loading():
    net = Centred(nn.Flatten(-3), SHAPE)
    fit = CentringFit([net])
    fit(make_batch())
    first = net.centre.clone()
    fit(make_batch())
    assert torch.equal(net.centre, first)
    other = Centred(nn.Flatten(-3), SHAPE)
    again = CentringFit([other])
    assert again(make_batch()) is not None  # fitted to something else before it loads
    again.load_state_dict(fit.state_dict())
    other.load_state_dict(net.state_dict())
    again(make_batch())
    assert torch.equal(other.centre, first)
    fresh = CentringFit([other])
    fresh.load_state_dict(CentringFit([net]).state_dict())  # of one that has not seen a batch
    fresh(make_batch())
    assert not torch.equal(other.centre, first)


def test_images_that_never_change_are_left_at_their_scale():
    net, batch = Centred(nn.Flatten(-3), SHAPE), make_batch()
    batch["pixels"][:] = batch["successor", "pixels"][:] = 7
    CentringFit([net])(batch)
    assert net(batch["pixels"]).eq(0).all() and net.scale == 1 / 255


def test_any_batch_shape_and_heads():
    net = Centred(MultiHeadNet(lambda out: grid_net(SHAPE, out), 2, 4), SHAPE)
    pixels = make_batch(6)["pixels"]
    out = net(pixels.view(2, 3, *SHAPE))
    assert out.shape == (2, 3, 2, 4)
    torch.testing.assert_close(out.flatten(0, 1), net(pixels))


def test_a_shape_that_is_no_image_is_refused():
    with pytest.raises(ValueError, match=r"shape must be \(channels, height, width\), got \(6,\)"):
        Centred(nn.Linear(6, 2), (6,))


def test_a_scale_of_its_own_is_not_fitted():
    net, other, batch = (
        Centred(nn.Flatten(-3), SHAPE, scale=2 / 255),
        Centred(nn.Flatten(-3), SHAPE),
        make_batch(),
    )
    CentringFit([net, other])(batch)
    torch.testing.assert_close(net(batch["pixels"]) * 255 / 2, other(batch["pixels"]) / other.scale)
    with pytest.raises(ValueError, match=r"scale must be positive, or None to be fitted, got 0"):
        Centred(nn.Flatten(-3), SHAPE, scale=0)
