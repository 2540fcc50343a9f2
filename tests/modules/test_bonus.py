from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.objectives import RNDLoss

from torchrl_dceo.modules import CountBonus, RNDBonus, RunningNormalizer
from torchrl_dceo.modules.networks import grid_net

SHAPE = (3, 9, 9)


def make_batch(size: int = 6) -> TensorDict:
    return TensorDict(
        {
            "pixels": torch.randint(256, (size, *SHAPE), dtype=torch.uint8),
            "state_id": torch.zeros(size, dtype=torch.int64),
            "next": {
                "pixels": torch.randint(256, (size, *SHAPE), dtype=torch.uint8),
                "state_id": torch.randint(4, (size,)),
                "reward": torch.randn(size, 1),
            },
        },
        [size],
    )


def make_rnd(**kwargs) -> tuple[RNDBonus, RNDLoss]:
    normalizer = RunningNormalizer(SHAPE)
    predictor, target = (nn.Sequential(normalizer, grid_net(SHAPE, 16)) for _ in range(2))
    loss = RNDLoss(predictor, target, update_fraction=1.0)
    loss.set_keys(observation=("next", "pixels"))
    return RNDBonus(predictor, target, normalizer=normalizer, **{"scale": 0.5, **kwargs}), loss


def test_count_bonus_is_beta_over_root_n_of_the_next_state():
    counts = torch.tensor([1, 4, 9, 400])
    batch = make_batch()
    before = batch["next", "reward"].clone()
    out = CountBonus(lambda ids: counts[ids].rsqrt(), scale=0.1)(batch)
    for b in range(6):
        n = int(counts[batch["next", "state_id"][b]])
        assert out["next", "reward"][b].item() == pytest.approx(
            before[b].item() + 0.1 / math.sqrt(n), abs=1e-6
        )


def test_count_bonus_follows_the_counts_and_leaves_the_stored_reward_alone():
    counts = torch.ones(4)
    bonus = CountBonus(lambda ids: counts[ids].rsqrt(), scale=1.0)
    batch = make_batch()
    stored = batch["next", "reward"]
    kept = stored.clone()
    torch.testing.assert_close(bonus(batch.copy())["bonus"], torch.ones(6, 1))
    counts += 3
    torch.testing.assert_close(bonus(batch.copy())["bonus"], torch.full((6, 1), 0.5))
    assert torch.equal(stored, kept), "the reward tensor was changed in place"


def test_rnd_bonus_is_the_error_at_the_normalised_next_observation_over_its_deviation():
    bonus, _ = make_rnd(scale=0.25)
    seen, errors = [], []
    for _ in range(3):
        batch = make_batch()
        before = batch["next", "reward"].clone()
        out = bonus(batch)
        pixels = batch["next", "pixels"].float()
        seen.append(pixels)
        all_pixels = torch.cat(seen)
        mean, std = all_pixels.mean(0), all_pixels.std(0, unbiased=False)
        x = ((pixels - mean) / std).clamp(-5, 5)
        with torch.no_grad():
            error = [
                ((bonus.predictor[1](x[b]) - bonus.target[1](x[b])) ** 2).mean() for b in range(6)
            ]
        errors += error
        expected = torch.stack(error) / torch.stack(errors).std(unbiased=False)
        torch.testing.assert_close(out["bonus"][:, 0], expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(out["next", "reward"], before + 0.25 * out["bonus"])
        assert not out["next", "reward"].requires_grad


def test_rnd_counts_each_batch_once_though_both_networks_and_the_loss_normalise():
    bonus, loss = make_rnd()
    batch = make_batch()
    bonus(batch)
    loss(batch)["loss_predictor"].backward()
    assert bonus.normalizer.count == 6
    assert bonus.errors.count == 6


def test_rnd_loss_trains_the_predictor_alone_and_the_bonus_fades_where_it_learned():
    bonus, loss = make_rnd()
    trained = [p for p in loss.parameters() if p.requires_grad]
    assert {id(p) for p in trained} == {id(p) for p in bonus.predictor.parameters()}
    target = [p.clone() for p in bonus.target.parameters()]
    optimizer = torch.optim.Adam(trained, lr=1e-3)
    familiar, novel = make_batch(), make_batch()
    for _ in range(150):
        bonus(familiar.clone())
        loss(familiar)["loss_predictor"].backward()
        optimizer.step()
        optimizer.zero_grad()
    bonus.eval()
    known, unknown = bonus(familiar.clone())["bonus"], bonus(novel.clone())["bonus"]
    assert known.max() < 0.1 * unknown.min()
    for before, after in zip(target, bonus.target.parameters(), strict=True):
        assert torch.equal(before, after)


def test_rnd_in_eval_mode_keeps_its_statistics():
    bonus, _ = make_rnd()
    bonus(make_batch())
    bonus.eval()
    before = {k: v.clone() for k, v in bonus.state_dict().items()}
    bonus(make_batch())
    for key, value in bonus.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_rnd_statistics_are_saved():
    bonus, _ = make_rnd()
    bonus(make_batch())
    loaded, _ = make_rnd()
    loaded.load_state_dict(bonus.state_dict())
    batch = make_batch()
    assert torch.equal(loaded(batch.clone())["bonus"], bonus(batch.clone())["bonus"])


def test_vectors_need_no_normalizer():
    bonus = RNDBonus(
        nn.Linear(3, 5), nn.Linear(3, 5), scale=1.0, observation_key=("next", "observation")
    )
    batch = TensorDict(
        {"next": {"observation": torch.randn(4, 3), "reward": torch.zeros(4, 1)}}, [4]
    )
    assert (bonus(batch)["bonus"] > 0).all()


@pytest.mark.parametrize("scale", [-0.1, float("nan"), float("inf")])
def test_a_bad_scale_is_refused(scale):
    with pytest.raises(ValueError, match="scale must be finite and not negative, got"):
        CountBonus(lambda ids: ids, scale=scale)


def test_a_missing_entry_is_named():
    batch = make_batch().exclude(("next", "state_id"))
    with pytest.raises(KeyError, match=r"CountBonus reads.*state_id.*does not contain"):
        CountBonus(lambda ids: ids, scale=1.0)(batch)


def test_dispatch_and_set_keys():
    counts = torch.tensor([4, 100, 1])
    bonus = CountBonus(lambda ids: counts[ids].rsqrt(), scale=0.1)
    ids, reward = torch.tensor([0, 1]), torch.zeros(2, 1)
    value, own = bonus(next_state_id=ids, next_reward=reward)
    torch.testing.assert_close(value, torch.tensor([[0.05], [0.01]]))
    torch.testing.assert_close(value, 0.1 * own)
    bonus.set_keys(state_id="id", reward="r")
    out = bonus(TensorDict({"id": ids, "r": reward}, [2]))
    torch.testing.assert_close(out["r"], value)
    assert bonus.in_keys == ["id", "r"] and bonus.out_keys == ["r", "bonus"]
