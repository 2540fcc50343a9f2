"""What the Laplacian losses share: keys, one encoder pass, shared weights, masks, reductions, errors."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from torchrl_dceo.objectives.laplacian import GeneralizedLaplacianLoss, GraphDrawingLoss


def make_encoder(d, dtype=torch.float64, in_features=4):
    net = nn.Sequential(nn.Linear(in_features, 8), nn.Tanh(), nn.Linear(8, d)).to(dtype)
    return TensorDictModule(net, in_keys=["observation"], out_keys=["f"])


def make_batch(*batch, dtype=torch.float64, in_features=4):
    draw = torch.randn(2, *batch, in_features, dtype=dtype)
    return TensorDict({"observation": draw[0], "next": {"observation": draw[1]}}, batch)


def test_weights_are_shared_with_the_encoder_after_an_update():
    encoder, batch = make_encoder(3), make_batch(8)
    loss = GeneralizedLaplacianLoss(encoder)
    assert {id(p) for p in loss.parameters()} == {id(p) for p in encoder.parameters()}
    before = encoder.module(batch["observation"]).detach()
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    loss(batch)["loss_laplacian"].backward()
    optimizer.step()
    after = encoder.module(batch["observation"]).detach()
    assert (after - before).abs().max() > 1e-3
    loss(batch)
    torch.testing.assert_close(batch["f"], after)


def test_representations_are_written_detached_for_reuse():
    encoder, batch = make_encoder(3), make_batch(8)
    GraphDrawingLoss(encoder)(batch)
    torch.testing.assert_close(batch["f"], encoder.module(batch["observation"]).detach())
    torch.testing.assert_close(
        batch["next", "f"], encoder.module(batch["next", "observation"]).detach()
    )
    assert not batch["f"].requires_grad and not batch["next", "f"].requires_grad


def test_one_encoder_pass_serves_both_states():
    encoder = make_encoder(3)
    sizes = []
    encoder.module.register_forward_hook(lambda module, args, out: sizes.append(args[0].shape[0]))
    GraphDrawingLoss(encoder)(make_batch(8))
    assert sizes == [16]


def test_dispatch():
    encoder, batch = make_encoder(3), make_batch(8)
    loss = GraphDrawingLoss(encoder)
    out = loss(batch)
    values = loss(observation=batch["observation"], next_observation=batch["next", "observation"])
    for value, key in zip(values, loss.out_keys, strict=True):
        torch.testing.assert_close(value, out[key])


def test_nested_keys_and_successor():
    net = nn.Linear(4, 3).double()
    encoder = TensorDictModule(net, in_keys=[("agent", "obs")], out_keys=[("agent", "f")])
    plain = make_batch(8)
    batch = TensorDict(
        {
            "agent": {"obs": plain["observation"]},
            # A state n steps on, which must not be read.
            "next": {"agent": {"obs": torch.full((8, 4), float("nan"), dtype=torch.float64)}},
            "extra": {"successor": {"agent": {"obs": plain["next", "observation"]}}},
        },
        [8],
    )
    loss = GeneralizedLaplacianLoss(encoder, successor=("extra", "successor"))
    assert loss.in_keys == [("agent", "obs"), ("extra", "successor", "agent", "obs")]
    expected = GeneralizedLaplacianLoss(
        TensorDictModule(net, in_keys=["observation"], out_keys=["f"])
    )(plain)
    torch.testing.assert_close(loss(batch)["loss_laplacian"], expected["loss_laplacian"])
    torch.testing.assert_close(batch["extra", "successor", "agent", "f"], plain["next", "f"])


def test_encoder_with_two_inputs():
    class Sum(nn.Module):
        def forward(self, a, b):
            return a + b[..., None]

    encoder = TensorDictModule(Sum(), in_keys=["a", "b"], out_keys=["f"])
    a, b = torch.randn(2, 6, 3), torch.randn(2, 6)
    batch = TensorDict({"a": a[0], "b": b[0], "next": {"a": a[1], "b": b[1]}}, [6])
    GraphDrawingLoss(encoder)(batch)
    torch.testing.assert_close(batch["next", "f"], a[1] + b[1][:, None])


def test_set_keys():
    loss, batch = GraphDrawingLoss(make_encoder(3)), make_batch(8)
    expected = loss(batch.clone())["loss_laplacian"]
    batch.rename_key_("next", "successor")
    loss.set_keys(successor="successor", representation="phi")
    assert loss.in_keys == ["observation", ("successor", "observation")]
    torch.testing.assert_close(loss(batch)["loss_laplacian"], expected)
    assert batch["phi"].shape == batch["successor", "phi"].shape == (8, 3)
    assert "f" not in batch
    loss.set_keys(successor=None, representation=None)
    assert loss.in_keys == ["observation", ("next", "observation")]
    with pytest.raises(ValueError, match="reward is not an accepted tensordict key"):
        loss.set_keys(reward="reward")


@pytest.mark.parametrize("estimator", ["pairs", "split"])
def test_reductions_agree(estimator):
    encoder, batch = make_encoder(3), make_batch(2, 3)
    values, gradients = {}, {}
    for reduction in ("mean", "sum", "none"):
        loss = GeneralizedLaplacianLoss(encoder, estimator=estimator, reduction=reduction)
        values[reduction] = loss(batch)["loss_laplacian"]
        gradients[reduction] = torch.autograd.grad(
            values[reduction].mean(), encoder.module[0].weight
        )[0]
    assert values["none"].shape == (2, 3)
    assert values["none"].std() > 0
    torch.testing.assert_close(values["none"].mean(), values["mean"])
    torch.testing.assert_close(values["sum"], 6 * values["mean"])
    torch.testing.assert_close(gradients["none"], gradients["mean"])


def test_batch_shape_does_not_matter():
    encoder, batch = make_encoder(3), make_batch(2, 3)
    loss = GeneralizedLaplacianLoss(encoder)
    torch.testing.assert_close(
        loss(batch)["loss_laplacian"], loss(batch.reshape(6))["loss_laplacian"]
    )
    assert batch["f"].shape == (2, 3, 3)


@pytest.mark.parametrize("estimator", ["pairs", "split"])
def test_masked_states_are_left_out(estimator):
    """TorchRL's validity masks (padding of a slice) drop states from the pairs too."""
    encoder, batch = make_encoder(3), make_batch(2, 4)
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
    loss = GeneralizedLaplacianLoss(encoder, estimator=estimator)
    expected = loss(batch[mask])
    batch["observation"][~mask] = float("nan")
    batch["collector", "mask"] = mask[..., None]
    got = loss(batch)
    for key in loss.out_keys:
        torch.testing.assert_close(got[key], expected[key])
    loss.reduction = "none"
    values = loss(batch)["loss_laplacian"]
    assert values.shape == (2, 4) and (values[~mask] == 0).all()
    torch.testing.assert_close(values[mask].mean(), expected["loss_laplacian"])


def test_state_dict_round_trip():
    batch = make_batch(8)
    first, second = (GeneralizedLaplacianLoss(make_encoder(3)) for _ in range(2))
    assert not torch.equal(first(batch)["loss_laplacian"], second(batch)["loss_laplacian"])
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(batch)["loss_laplacian"], first(batch)["loss_laplacian"])


@pytest.mark.parametrize("norm", ["squared", "log1p"])
@pytest.mark.parametrize("estimator", ["pairs", "split"])
def test_nothing_is_made_on_the_wrong_device(estimator, norm):
    """On the meta device any tensor left on the CPU raises."""
    encoder = make_encoder(3).to("meta")
    loss = GeneralizedLaplacianLoss(encoder, estimator=estimator, norm=norm)
    assert loss(make_batch(8).to("meta"))["loss_laplacian"].device.type == "meta"


def test_loss_follows_a_change_of_dtype():
    loss = GeneralizedLaplacianLoss(make_encoder(3))
    loss(make_batch(8))
    loss.float()
    assert loss(make_batch(8).float())["loss_laplacian"].dtype == torch.float32


def test_lazy_encoder():
    encoder = TensorDictModule(nn.LazyLinear(3), in_keys=["observation"], out_keys=["f"])
    assert GeneralizedLaplacianLoss(encoder)(make_batch(8).float())["loss_laplacian"].isfinite()


# --- bad input ---
def test_encoder_must_be_a_tensordict_module_with_one_out_key():
    with pytest.raises(TypeError, match="must be a TensorDictModule, got Linear"):
        GraphDrawingLoss(nn.Linear(4, 3))
    encoder = TensorDictSequential(
        TensorDictModule(nn.Linear(4, 3).double(), in_keys=["observation"], out_keys=["hidden"]),
        TensorDictModule(nn.Linear(3, 2).double(), in_keys=["hidden"], out_keys=["f"]),
    )
    with pytest.raises(ValueError, match=r"exactly one out_key, got \['hidden', 'f'\]"):
        GraphDrawingLoss(encoder)
    encoder.select_out_keys("f")
    assert GraphDrawingLoss(encoder)(make_batch(8))["loss_laplacian"].isfinite()


def test_missing_successor_is_named():
    loss = GraphDrawingLoss(make_encoder(3), successor="successor")
    with pytest.raises(KeyError, match=r"reads \('successor', 'observation'\)"):
        loss(make_batch(8))


@pytest.mark.parametrize(
    ("estimator", "batch", "message"),
    [
        ("pairs", (1,), "at least 2 states, got 1"),
        ("pairs", (), "at least 2 states, got 1"),
        ("split", (1,), "an even batch of at least 2 states, got 1"),
        ("split", (5,), "an even batch of at least 2 states, got 5"),
        ("split", (0,), "an even batch of at least 2 states, got 0"),
    ],
)
def test_batch_too_small_or_odd(estimator, batch, message):
    with pytest.raises(ValueError, match=message):
        GraphDrawingLoss(make_encoder(3), estimator=estimator)(make_batch(*batch))
