from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Bounded, Categorical, Composite, OneHot

from torchrl_dceo.modules import OptionQValueActor
from torchrl_dceo.modules.networks import MultiHeadNet, StackedNet, mlp_net


@pytest.mark.parametrize("cls", [MultiHeadNet, StackedNet])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_writes_the_values_of_every_option(cls, shape):
    net = cls(lambda out: mlp_net(6, out, (8,)), 3, 4)
    actor = OptionQValueActor(net, num_options=3, in_keys=[("agent", "obs")], spec=Categorical(4))
    x = torch.randn(*shape, 6)
    td = actor(TensorDict({("agent", "obs"): x}, shape))
    torch.testing.assert_close(td["option_action_value"], net(x))
    assert set(td.keys()) == {"agent", "option_action_value"}


@pytest.mark.parametrize(
    ("spec", "space"),
    [
        (Categorical(4), "categorical"),
        (Categorical(4, shape=(7,)), "categorical"),
        (OneHot(4), "one_hot"),
        (Composite(action=OneHot(4)), "one_hot"),
    ],
)
def test_reads_the_action_space_from_the_spec(spec, space):
    actor = OptionQValueActor(nn.Identity(), num_options=2, in_keys=["x"], spec=spec)
    assert actor.num_actions == 4 and actor.action_space == space


def test_a_network_of_the_wrong_shape_is_named():
    actor = OptionQValueActor(nn.Linear(6, 12), num_options=3, in_keys=["x"], spec=Categorical(4))
    with pytest.raises(
        RuntimeError, match=r"\(options, actions\) = \(3, 4\), got an output of shape \(5, 12\)"
    ):
        actor(TensorDict({"x": torch.randn(5, 6)}, [5]))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="num_options must be at least 1, got 0"):
        OptionQValueActor(nn.Identity(), num_options=0, in_keys=["x"], spec=Categorical(4))
    with pytest.raises(TypeError, match="discrete action spec"):
        OptionQValueActor(nn.Identity(), num_options=1, in_keys=["x"], spec=Bounded(-1, 1, (2,)))
