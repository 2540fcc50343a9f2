from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from torchrl_dceo.modules import CICReward, SkillScores
from torchrl_dceo.modules.skill_rewards import particle_entropy

SKILLS = 3


class Zero(nn.Module):
    """Scores that know nothing."""

    def forward(self, here, there):
        return torch.zeros(*here.shape[:-1], SKILLS)


def make_encoder(net: nn.Module | None = None) -> TensorDictModule:
    net = nn.Linear(2, 5) if net is None else net
    return TensorDictModule(net, in_keys=["observation"], out_keys=["representation"])


def make_batch(*shape: int) -> TensorDict:
    return TensorDict(
        {
            "observation": torch.randn(*shape, 2),
            "next": {"observation": torch.randn(*shape, 2)},
            "successor": {"observation": torch.randn(*shape, 2)},
        },
        shape,
    )


def plain_entropy(points: list[list[float]], k: int) -> list[float]:
    out = []
    for i, point in enumerate(points):
        others = sorted(math.dist(point, other) for j, other in enumerate(points) if j != i)
        out.append(sum(others[:k]) / len(others[:k]))
    return out


@pytest.mark.parametrize("k", [1, 3, 100])
def test_particle_entropy_is_the_mean_distance_to_the_nearest_others(k):
    points = torch.randn(20, 3).double()
    points[7] = points[3]  # the same state twice is a neighbour at distance 0
    entropy = particle_entropy(points, k)
    assert entropy.tolist() == pytest.approx(plain_entropy(points.tolist(), k))
    assert k > 1 or entropy[7] == entropy[3] == 0


@pytest.mark.parametrize("where", ["next", "successor"])
@pytest.mark.parametrize("shape", [(9,), (3, 4)])
def test_reward_is_entropy_plus_the_score_of_each_skill(where, shape):
    encoder, scores = make_encoder(), SkillScores(5, SKILLS)
    module = CICReward(
        encoder, scores, entropy_scale=0.5, skill_scale=2.0, num_neighbours=2, successor=where
    )
    batch = make_batch(*shape)
    reward = module(batch.clone())["option_reward"]
    assert reward.shape == (*shape, SKILLS) and not reward.requires_grad
    with torch.no_grad():
        here, there = (
            encoder.module(batch[key]).reshape(-1, 5)
            for key in ("observation", (where, "observation"))
        )
        distances = plain_entropy(there.tolist(), 2)
        f = scores(here, there).tolist()
    mean = sum(distances) / len(distances)
    for row, distance, values in zip(reward.reshape(-1, SKILLS), distances, f, strict=True):
        entropy = math.log(1 + distance / mean)
        total = sum(map(math.exp, values)) / SKILLS
        for z in range(SKILLS):
            expected = 0.5 * entropy + 2.0 * (values[z] - math.log(total))
            assert row[z].item() == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert "representation" not in batch.keys() and "representation" not in batch[where].keys()


def test_without_knowledge_of_skills_all_get_the_entropy_and_the_rare_state_most():
    batch = make_batch(8)
    batch["next", "observation"][:] = 0
    batch["next", "observation"][5] = 3.0
    reward = CICReward(make_encoder(nn.Identity()), Zero())(batch)["option_reward"]
    torch.testing.assert_close(reward, reward[:, :1].expand(-1, SKILLS))
    assert reward[:, 0].argmax() == 5 and reward[5, 0] > reward[4, 0] == 0


def test_the_unit_makes_the_entropy_blind_to_the_scale_of_the_representation():
    batch = make_batch(16)
    values = []
    for scale in (1.0, 1000.0):
        batch_scaled = batch.apply(lambda x, scale=scale: x * scale)
        values.append(CICReward(make_encoder(nn.Identity()), Zero())(batch_scaled)["option_reward"])
    torch.testing.assert_close(*values)


def test_mean_distance_counts_batches_in_training_only_and_is_saved():
    reward = CICReward(make_encoder(), Zero())
    reward(make_batch(6))
    reward(make_batch(6))
    reward.eval()
    reward(make_batch(6))
    assert reward.distances.count == 12
    fresh = CICReward(make_encoder(), Zero())
    fresh.load_state_dict(reward.state_dict())
    assert torch.equal(fresh.distances.mean, reward.distances.mean)


def test_a_constant_representation_gives_finite_rewards():
    net = nn.Linear(2, 5)
    nn.init.zeros_(net.weight)
    reward = CICReward(make_encoder(net), SkillScores(5, SKILLS))(make_batch(6))["option_reward"]
    assert reward.isfinite().all()


def test_bad_input():
    encoder, scores = make_encoder(), SkillScores(5, SKILLS)
    with pytest.raises(ValueError, match="skill_scale must be finite and not negative, got -1"):
        CICReward(encoder, scores, skill_scale=-1)
    with pytest.raises(ValueError, match="num_neighbours must be at least 1, got 0"):
        CICReward(encoder, scores, num_neighbours=0)
    with pytest.raises(ValueError, match="a batch of at least 2 states, got 1"):
        CICReward(encoder, scores)(make_batch(1))
    with pytest.raises(ValueError, match="num_skills must be at least 2"):
        SkillScores(5, 1)
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        SkillScores(5, 2, temperature=0)
