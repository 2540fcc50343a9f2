from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Categorical, OneHot
from torchrl.modules import DistributionalQValueActor

from torchrl_dceo._fast.actors import DistributionalGreedyActor, expected_value
from torchrl_dceo.modules import DuelingDistribution, OptionDistributionalQValueActor
from torchrl_dceo.modules.distributional import make_support
from torchrl_dceo.modules.networks import MultiHeadNet, StackedNet, mlp_net, nature_net


def test_dueling_by_hand():
    """Two atoms, two actions: value (1, 0), advantages (3, 1) at the first atom and (0, 2) at the second."""
    dueling = DuelingDistribution(2, 2)
    log_probabilities = dueling(torch.tensor([1.0, 3.0, 1.0, 0.0, 0.0, 2.0]))
    # Logits: first atom 1 + (3, 1) - 2 = (2, 0); second 0 + (0, 2) - 1 = (-1, 1).
    expected = torch.tensor([[2.0, 0.0], [-1.0, 1.0]]).log_softmax(0)
    torch.testing.assert_close(log_probabilities, expected)


def test_dueling_ignores_a_shift_of_all_advantages_of_an_atom():
    dueling = DuelingDistribution(5, 3)
    outputs = torch.randn(7, 5, 4)
    shifted = outputs.clone()
    shifted[..., 1:] += torch.randn(5, 1)
    torch.testing.assert_close(dueling(outputs.flatten(-2)), dueling(shifted.flatten(-2)))


def test_expected_value_for_any_shape():
    support = make_support(7, 3.0)
    log_probabilities = torch.randn(2, 4, 7, 5).log_softmax(-2)
    expected = (log_probabilities.exp() * support[:, None]).sum(-2)
    torch.testing.assert_close(expected_value(log_probabilities, support), expected)


def test_the_greedy_actor_writes_what_torchrls_does():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 51 * 5), DuelingDistribution(51, 4))
    arguments = {"support": make_support(), "in_keys": ["observation"], "spec": Categorical(4)}
    td = TensorDict({"observation": 5 * torch.randn(50, 6)}, [50])
    ours = DistributionalGreedyActor(net, **arguments)(td.clone())
    theirs = DistributionalQValueActor(net, **arguments)(td.clone())
    assert set(ours.keys()) == set(theirs.keys())
    assert torch.equal(ours["action"], theirs["action"])
    assert len(ours["action"].unique()) == 4
    torch.testing.assert_close(ours["action_value"], theirs["action_value"])


def test_the_greedy_actor_wants_categorical_actions():
    with pytest.raises(TypeError, match="writes categorical actions, got a spec of type OneHot"):
        DistributionalGreedyActor(
            nn.Identity(), support=make_support(), in_keys=["observation"], spec=OneHot(4)
        )


@pytest.mark.parametrize("net", [MultiHeadNet, StackedNet])
def test_option_values_are_the_expectations_of_the_distributions(net):
    dueling, support = DuelingDistribution(11, 4), make_support(11, 2.0)
    heads = net(lambda out: mlp_net(6, out, num_cells=(8,)), 3, dueling.num_inputs)
    actor = OptionDistributionalQValueActor(
        nn.Sequential(heads, dueling),
        num_options=3,
        support=support,
        in_keys=["observation"],
        spec=Categorical(4),
    )
    td = actor(TensorDict({"observation": torch.randn(2, 5, 6)}, [2, 5]))
    dist = td["option_action_dist"]
    assert dist.shape == (2, 5, 3, 11, 4)
    torch.testing.assert_close(dist.exp().sum(-2), torch.ones(2, 5, 3, 4))
    expected = (dist.exp() * support[:, None]).sum(-2)
    torch.testing.assert_close(td["option_action_value"], expected)


def test_an_option_network_of_the_wrong_shape_is_named():
    actor = OptionDistributionalQValueActor(
        nn.Sequential(nn.Linear(6, 55), DuelingDistribution(11, 4)),
        num_options=3,
        support=make_support(11, 2.0),
        in_keys=["observation"],
        spec=Categorical(4),
    )
    with pytest.raises(
        RuntimeError, match=r"must end in \(options, atoms, actions\) = \(3, 11, 4\)"
    ):
        actor(TensorDict({"observation": torch.randn(2, 6)}, [2]))


@pytest.mark.parametrize(("atoms", "v_min", "v_max"), [(1, -1.0, 1.0), (5, 1.0, 1.0)])
def test_a_support_without_extent_is_refused(atoms, v_min, v_max):
    with pytest.raises(ValueError, match=r"at least 2 atoms|v_min must be smaller"):
        make_support(atoms, v_max, v_min)


def test_rainbows_network_on_atari_frames():
    dueling = DuelingDistribution(51, 18)
    net = nn.Sequential(nature_net((4, 84, 84), dueling.num_inputs), dueling)
    assert net(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 51, 18)
    # The convolutions, 3136 x 512 units, and one value and 18 advantages for each of 51 atoms.
    assert sum(p.numel() for p in net.parameters()) == 77_984 + 3137 * 512 + 513 * 51 * 19
