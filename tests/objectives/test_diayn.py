from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from torchrl_dceo.modules import DIAYNReward
from torchrl_dceo.objectives import DIAYNLoss

SKILLS = 4


def make_discriminator() -> TensorDictModule:
    return TensorDictModule(
        nn.Linear(3, SKILLS), in_keys=["observation"], out_keys=["skill_logits"]
    )


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


def reference(discriminator, batch, where) -> tuple[list[float], int]:
    """Each step's cross-entropy, 0 without a skill, and how many skills the discriminator finds."""
    losses, hits = [], 0
    skills = batch["option"].reshape(-1).tolist()
    states = batch[where, "observation"].reshape(-1, 3)
    for z, state in zip(skills, states, strict=True):
        if z == -1:
            losses.append(0.0)
            continue
        logits = discriminator.module(state).tolist()
        losses.append(-logits[z] + math.log(sum(math.exp(x) for x in logits)))
        hits += max(range(SKILLS), key=logits.__getitem__) == z
    return losses, hits


@pytest.mark.parametrize("where", ["next", "successor"])
@pytest.mark.parametrize("shape", [(9,), (4, 5)])
def test_loss_is_the_cross_entropy_over_the_steps_with_a_skill(where, shape):
    discriminator, batch = make_discriminator(), make_batch(*shape)
    losses, hits = reference(discriminator, batch, where)
    active = int((batch["option"] >= 0).sum())
    assert 0 < active < batch.numel()
    out = DIAYNLoss(discriminator, successor=where)(batch)
    assert out["loss_discriminator"].item() == pytest.approx(sum(losses) / active, rel=1e-5)
    assert out["skill_accuracy"].item() == pytest.approx(hits / active)
    summed = DIAYNLoss(discriminator, successor=where, reduction="sum")(batch)
    assert summed["loss_discriminator"].item() == pytest.approx(sum(losses), rel=1e-5)
    each = DIAYNLoss(discriminator, successor=where, reduction="none")(batch)
    torch.testing.assert_close(
        each["loss_discriminator"], torch.tensor(losses).view(shape), rtol=1e-5, atol=1e-6
    )


def test_without_any_skill_the_loss_is_zero_with_a_graph():
    loss = DIAYNLoss(make_discriminator())
    out = loss(make_batch(5, option=torch.full((5,), -1)))
    assert out["loss_discriminator"].item() == 0 and out["skill_accuracy"].item() == 0
    out["loss_discriminator"].backward()
    for parameter in loss.parameters():
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))


def test_steps_without_a_skill_have_no_say():
    discriminator, batch = make_discriminator(), make_batch(12)
    active = batch["option"] >= 0
    loss = DIAYNLoss(discriminator)
    loss(batch)["loss_discriminator"].backward()
    gradient = [p.grad.clone() for p in loss.parameters()]
    loss.zero_grad()
    loss(batch[active])["loss_discriminator"].backward()
    for with_others, alone in zip(gradient, loss.parameters(), strict=True):
        torch.testing.assert_close(with_others, alone.grad)


def test_a_single_step_without_batch_dimension():
    batch = make_batch(option=torch.tensor(2))
    discriminator = make_discriminator()
    losses, _ = reference(discriminator, batch, "next")
    assert DIAYNLoss(discriminator)(batch)["loss_discriminator"].item() == pytest.approx(
        losses[0], rel=1e-5
    )


def test_the_reward_follows_the_discriminator_as_it_learns():
    """On states that tell the skill, training makes the active skill's reward approach log N."""
    discriminator = make_discriminator()
    loss, reward = DIAYNLoss(discriminator), DIAYNReward(discriminator)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.1)
    skill = torch.randint(3, (64,))
    batch = TensorDict(
        {"option": skill, "next": {"observation": nn.functional.one_hot(skill, 3).float()}}, [64]
    )
    before = reward(batch.clone())["option_reward"].gather(-1, skill[:, None]).mean()
    for _ in range(200):
        loss(batch)["loss_discriminator"].backward()
        optimizer.step()
        optimizer.zero_grad()
    after = reward(batch.clone())["option_reward"].gather(-1, skill[:, None])
    assert before < 0.8 < 0.95 * math.log(SKILLS) < after.min()
    assert loss(batch)["skill_accuracy"] == 1


def test_keys_dispatch_and_tensor_arguments():
    discriminator, batch = make_discriminator(), make_batch(6)
    loss = DIAYNLoss(discriminator, successor="successor")
    assert loss.in_keys == ["option", ("successor", "observation")]
    expected = loss(batch)["loss_discriminator"]
    value, _ = loss(option=batch["option"], successor_observation=batch["successor", "observation"])
    torch.testing.assert_close(value, expected)
    loss.set_keys(option="skill")
    renamed = batch.rename_key_("option", "skill")
    torch.testing.assert_close(loss(renamed)["loss_discriminator"], expected)


def test_bad_input():
    with pytest.raises(ValueError, match=r"reduction must be one of .*, got 'average'"):
        DIAYNLoss(make_discriminator(), reduction="average")
    two = TensorDictModule(
        lambda x: (x, x), in_keys=["observation"], out_keys=["skill_logits", "other"]
    )
    with pytest.raises(ValueError, match="the discriminator must have one out_key, got"):
        DIAYNLoss(two)
    loss = DIAYNLoss(make_discriminator(), successor="successor")
    with pytest.raises(KeyError, match=r"DIAYNLoss reads 'option'.*step_keys"):
        loss(make_batch(3).exclude("option"))
    with pytest.raises(KeyError, match="successor"):
        loss(make_batch(3).exclude("successor"))
