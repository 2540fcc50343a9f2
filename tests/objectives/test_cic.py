from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from torchrl_dceo.modules import CICReward, SkillScores
from torchrl_dceo.objectives import CICLoss

SKILLS = 4
TEMPERATURE = 0.3


def make_parts() -> tuple[TensorDictModule, SkillScores]:
    encoder = TensorDictModule(
        nn.Linear(3, 6), in_keys=["observation"], out_keys=["representation"]
    )
    return encoder, SkillScores(6, SKILLS, num_cells=8, temperature=TEMPERATURE)


def make_batch(*shape: int, option: torch.Tensor | None = None) -> TensorDict:
    if option is None:
        option = torch.arange(math.prod(shape)).remainder(SKILLS + 1).sub(1).view(shape)
    return TensorDict(
        {
            "option": option,
            "observation": torch.randn(*shape, 3),
            "successor": {"observation": torch.randn(*shape, 3)},
            "next": {"observation": torch.randn(*shape, 3)},
        },
        shape,
    )


def plain_scores(encoder, scores, state, following) -> list[float]:
    """Cosines of the transition's embedding with each skill's, over the temperature, number by number."""
    pair = torch.cat([encoder.module(state), encoder.module(following)])
    one = scores.transition(pair).tolist()
    out = []
    for skill in scores.skills.tolist():
        dot = sum(a * b for a, b in zip(one, skill, strict=True))
        lengths = math.hypot(*one) * math.hypot(*skill)
        out.append(dot / lengths / TEMPERATURE)
    return out


def reference(encoder, scores, batch, where, negatives) -> tuple[list[float], int, int]:
    """Each step's InfoNCE loss (0 without a skill), how many skills have the highest score, terms in the sum."""
    skills = batch["option"].reshape(-1).tolist()
    here = batch["observation"].reshape(-1, 3)
    there = batch[where, "observation"].reshape(-1, 3)
    others = list(range(SKILLS)) if negatives == "skills" else [z for z in skills if z != -1]
    losses, hits = [], 0
    for z, state, following in zip(skills, here, there, strict=True):
        if z == -1:
            losses.append(0.0)
            continue
        f = plain_scores(encoder, scores, state, following)
        losses.append(-math.log(math.exp(f[z]) / sum(math.exp(f[other]) for other in others)))
        hits += max(range(SKILLS), key=f.__getitem__) == z
    return losses, hits, len(others)


@pytest.mark.parametrize("negatives", ["skills", "batch"])
@pytest.mark.parametrize("where", ["next", "successor"])
@pytest.mark.parametrize("shape", [(9,), (4, 5)])
def test_loss_is_info_nce_over_the_steps_with_a_skill(negatives, where, shape):
    torch.manual_seed(0)
    encoder, scores = make_parts()
    batch = make_batch(*shape)
    losses, hits, terms = reference(encoder, scores, batch, where, negatives)
    active = int((batch["option"] >= 0).sum())
    assert 0 < active < batch.numel()
    settings = {"successor": where, "negatives": negatives}
    out = CICLoss(encoder, scores, **settings)(batch)
    mean = sum(losses) / active
    assert out["loss_contrastive"].item() == pytest.approx(mean, rel=1e-4)
    assert out["skill_accuracy"].item() == pytest.approx(hits / active)
    assert out["skill_information"].item() == pytest.approx(math.log(terms) - mean, rel=1e-3)
    summed = CICLoss(encoder, scores, reduction="sum", **settings)(batch)
    assert summed["loss_contrastive"].item() == pytest.approx(sum(losses), rel=1e-4)
    each = CICLoss(encoder, scores, reduction="none", **settings)(batch)
    torch.testing.assert_close(
        each["loss_contrastive"], torch.tensor(losses).view(shape), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("negatives", ["skills", "batch"])
def test_without_any_skill_the_loss_is_zero_with_a_graph(negatives):
    loss = CICLoss(*make_parts(), negatives=negatives)
    out = loss(make_batch(5, option=torch.full((5,), -1)))
    assert [out[key].item() for key in loss.out_keys] == [0, 0, 0]
    out["loss_contrastive"].backward()
    for parameter in loss.parameters():
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))


@pytest.mark.parametrize("negatives", ["skills", "batch"])
def test_steps_without_a_skill_have_no_say(negatives):
    batch = make_batch(12)
    loss = CICLoss(*make_parts(), negatives=negatives)
    loss(batch)["loss_contrastive"].backward()
    gradient = [p.grad.clone() for p in loss.parameters()]
    assert any(g.any() for g in gradient)
    loss.zero_grad()
    loss(batch[batch["option"] >= 0])["loss_contrastive"].backward()
    for with_others, alone in zip(gradient, loss.parameters(), strict=True):
        torch.testing.assert_close(with_others, alone.grad)


def test_a_skill_that_no_step_had_is_no_negative_of_the_batch():
    torch.manual_seed(0)
    loss = CICLoss(*make_parts(), negatives="batch")
    loss(make_batch(3, option=torch.tensor([0, 1, 0])))["loss_contrastive"].backward()
    gradient = loss.scores_network_params["skills"].grad.abs().sum(-1)
    assert gradient[:2].min() > 0 and not gradient[2:].any()


def test_the_reward_follows_the_scores_as_they_learn():
    """On steps whose direction tells the skill, and no state alone, training raises the active skill's reward."""
    torch.manual_seed(0)
    encoder, scores = make_parts()
    loss = CICLoss(encoder, scores)
    reward = CICReward(encoder, scores, entropy_scale=0.0)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.02)
    skill = torch.randint(3, (256,))
    here = torch.randn(256, 3)
    step = nn.functional.one_hot(skill, 3) * 2.0
    batch = TensorDict(
        {"option": skill, "observation": here, "next": {"observation": here + step}}, [256]
    )
    before = reward(batch.clone())["option_reward"].gather(-1, skill[:, None]).mean()
    for _ in range(200):
        loss(batch)["loss_contrastive"].backward()
        optimizer.step()
        optimizer.zero_grad()
    after = reward(batch.clone())["option_reward"].gather(-1, skill[:, None]).mean()
    out = loss(batch)
    assert before < 0.3 < 1.0 < after <= math.log(SKILLS)
    assert out["skill_accuracy"] > 0.95
    assert out["skill_information"].item() == pytest.approx(after.item(), rel=1e-4)


def test_keys_dispatch_and_tensor_arguments():
    batch = make_batch(6)
    loss = CICLoss(*make_parts(), successor="successor")
    assert loss.in_keys == ["option", "observation", ("successor", "observation")]
    expected = loss(batch)["loss_contrastive"]
    value, *_ = loss(
        option=batch["option"],
        observation=batch["observation"],
        successor_observation=batch["successor", "observation"],
    )
    torch.testing.assert_close(value, expected)
    loss.set_keys(option="skill")
    renamed = batch.rename_key_("option", "skill")
    torch.testing.assert_close(loss(renamed)["loss_contrastive"], expected)


def test_a_single_step_without_batch_dimension():
    encoder, scores = make_parts()
    batch = make_batch(option=torch.tensor(2))
    losses, *_ = reference(encoder, scores, batch, "next", "skills")
    assert CICLoss(encoder, scores)(batch)["loss_contrastive"].item() == pytest.approx(
        losses[0], rel=1e-4
    )


def test_bad_input():
    encoder, scores = make_parts()
    with pytest.raises(ValueError, match=r"reduction must be one of .*, got 'average'"):
        CICLoss(encoder, scores, reduction="average")
    with pytest.raises(ValueError, match=r"negatives must be one of .*, got 'prior'"):
        CICLoss(encoder, scores, negatives="prior")
    two = TensorDictModule(lambda x: (x, x), in_keys=["observation"], out_keys=["a", "b"])
    with pytest.raises(ValueError, match="the encoder must have one out_key, got"):
        CICLoss(two, scores)
    loss = CICLoss(encoder, scores, successor="successor")
    with pytest.raises(KeyError, match=r"CICLoss reads 'option'.*step_keys"):
        loss(make_batch(3).exclude("option"))
    with pytest.raises(KeyError, match="successor"):
        loss(make_batch(3).exclude("successor"))
