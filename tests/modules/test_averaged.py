from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Categorical
from torchrl.objectives import DQNLoss, SoftUpdate

from torchrl_dceo._fast.actors import GreedyActor
from torchrl_dceo.modules import Centred, averaged
from torchrl_dceo.modules.networks import grid_net

SHAPE = (3, 7, 7)


def test_it_acts_as_the_target_network_does_after_every_update():
    torch.manual_seed(0)
    actor = GreedyActor(Centred(grid_net(SHAPE, 4), SHAPE), in_keys=["pixels"], spec=Categorical(4))
    loss = DQNLoss(actor)
    slow = averaged(actor, loss.target_value_network_params)
    updater = SoftUpdate(loss, tau=0.25)
    pixels = torch.randint(255, (5, *SHAPE), dtype=torch.uint8)
    expected = {key: value.clone() for key, value in actor.state_dict().items()}
    for _ in range(3):
        for parameter in loss.parameters():
            if parameter.requires_grad:
                parameter.data += torch.randn_like(parameter)
        updater.step()
        for key, value in actor.state_dict().items():
            expected[key] = 0.75 * expected[key] + 0.25 * value
    for key, value in slow.state_dict().items():
        torch.testing.assert_close(value, expected[key])
    batch = TensorDict({"pixels": pixels}, [5])
    with torch.no_grad(), loss.target_value_network_params.to_module(actor):
        by_target = actor(batch.clone())["action_value"]
    torch.testing.assert_close(slow(batch.clone())["action_value"], by_target)
    assert not any(parameter.requires_grad for parameter in slow.parameters())


def test_buffers_are_shared_too():
    net = Centred(nn.Flatten(-3), (1, 1, 2))
    slow = averaged(net, TensorDict({"centre": torch.zeros(1, 1, 2), "scale": torch.ones(())}))
    assert slow(torch.tensor([[[3, 4]]])).tolist() == [3, 4]


def test_names_that_do_not_fit_are_refused():
    with pytest.raises(KeyError, match="Linear has no parameter or buffer 'centre'"):
        averaged(nn.Linear(1, 1), TensorDict({"centre": torch.zeros(1)}))
