from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from torchrl_dceo.modules import DIAYNReward

SKILLS = 4


def make_discriminator(out_keys=("skill_logits",)) -> TensorDictModule:
    net = nn.Linear(3, SKILLS * len(out_keys)).double()
    split = (lambda x: net(x).chunk(len(out_keys), -1)) if len(out_keys) > 1 else net
    return TensorDictModule(split, in_keys=["observation"], out_keys=list(out_keys))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_reward_is_log_q_minus_log_p_at_the_next_state_for_every_skill(shape):
    discriminator = make_discriminator()
    batch = TensorDict(
        {
            "observation": torch.randn(*shape, 3).double(),
            "successor": {"observation": torch.randn(*shape, 3).double()},
            "next": {"observation": torch.randn(*shape, 3).double()},
        },
        shape,
    )
    reward = DIAYNReward(discriminator)(batch)["option_reward"]
    assert reward.shape == (*shape, SKILLS) and not reward.requires_grad
    for row, state in zip(
        reward.reshape(-1, SKILLS), batch["next", "observation"].reshape(-1, 3), strict=True
    ):
        exponentials = [math.exp(x) for x in discriminator.module(state).tolist()]
        for z in range(SKILLS):
            q = exponentials[z] / sum(exponentials)
            assert row[z].item() == pytest.approx(math.log(q) - math.log(1 / SKILLS))
    assert set(batch["next"].keys()) == {"observation"}, "logits were left in the batch"


def test_a_discriminator_that_knows_nothing_rewards_nothing():
    discriminator = make_discriminator()
    nn.init.zeros_(discriminator.module.weight)
    nn.init.zeros_(discriminator.module.bias)
    batch = TensorDict({"next": {"observation": torch.randn(5, 3).double()}}, [5])
    reward = DIAYNReward(discriminator)(batch)["option_reward"]
    torch.testing.assert_close(reward, torch.zeros(5, SKILLS).double())


def test_certainty_rewards_log_n_and_stays_finite():
    discriminator = make_discriminator()
    nn.init.zeros_(discriminator.module.weight)
    discriminator.module.bias.data = torch.tensor([1000.0, 0, 0, 0]).double()
    batch = TensorDict({"next": {"observation": torch.randn(1, 3).double()}}, [1])
    reward = DIAYNReward(discriminator)(batch)["option_reward"]
    assert reward[0, 0].item() == pytest.approx(math.log(SKILLS))
    assert reward.isfinite().all() and (reward[0, 1:] < -900).all()


def test_keys():
    reward = DIAYNReward(make_discriminator(), reward_key="skill_reward")
    assert reward.in_keys == [("next", "observation")]
    assert reward.out_keys == ["skill_reward"]
    with pytest.raises(ValueError, match="the discriminator must have one out_key, got"):
        DIAYNReward(make_discriminator(("a", "b")))


def test_dispatch_and_set_keys():
    net = torch.nn.Linear(2, 3)
    reward = DIAYNReward(TensorDictModule(net, ["observation"], ["skill_logits"]))
    states = torch.randn(5, 2)
    value = reward(next_observation=states)
    reward.set_keys(successor="after", option_reward="r")
    out = reward(TensorDict({"after": {"observation": states}}, [5]))
    assert torch.equal(out["r"], value) and reward.in_keys == [("after", "observation")]
