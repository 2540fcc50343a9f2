from __future__ import annotations

import torch
from tensordict import TensorDict
from torchrl.data import Categorical

from torchrl_dceo.modules.exploration import value_termination
from torchrl_dceo.tabular import OptionTable, TabularOptionExploration

MANY = 20_000


def situation(values, option=-1, is_init=False):
    """Many environments in the same situation."""
    return TensorDict(
        {
            "action": torch.full((MANY,), 3),
            "option_action_value": values.expand(MANY, *values.shape),
            "option": torch.full((MANY,), option),
            "is_init": torch.full((MANY, 1), is_init),
        },
        [MANY],
    )


def near(share, expected):
    """Within four standard deviations of a binomial share."""
    return abs(float(share) - expected) < 4 * (expected * (1 - expected) / MANY) ** 0.5


def make(**settings):
    return TabularOptionExploration(
        Categorical(4), num_options=3, termination=value_termination, **settings
    )


def test_options_start_where_they_can_act_and_each_as_often():
    torch.manual_seed(0)
    values = torch.zeros(3, 4)
    values[0, 1] = values[2, 2] = 0.5  # the second option has nowhere to go
    td = make(option_prob=0.4)(situation(values))
    assert near((td["option"] == 0).float().mean(), 0.2)
    assert near((td["option"] == 2).float().mean(), 0.2)
    assert not (td["option"] == 1).any()
    assert (td["action"][td["option"] == 0] == 1).all()
    assert (td["action"][td["option"] == 2] == 2).all()
    assert torch.equal(td["option_start"], td["option"] >= 0)
    free = td["action"][td["option"] < 0]
    assert all(near((free == a).float().mean(), 0.25) for a in range(4))


def test_exploring_without_options_is_uniformly_random():
    torch.manual_seed(0)
    td = make(option_prob=1.0)(situation(torch.zeros(3, 4)))
    assert (td["option"] == -1).all() and not td["option_start"].any()
    assert all(near((td["action"] == a).float().mean(), 0.25) for a in range(4))


def test_an_option_goes_on_until_no_action_has_a_value():
    values = torch.tensor([[0.1, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0, -2.0], [0.0] * 4])
    going = make(eps_init=0.0, eps_end=0.0)(situation(values, option=0))
    assert (going["option"] == 0).all() and (going["action"] == 0).all()
    assert not going["option_start"].any()
    over = make(eps_init=0.0, eps_end=0.0)(situation(values, option=1))
    assert (over["option"] == -1).all() and (over["action"] == 3).all()  # the main learner's
    new_episode = make(eps_init=0.0, eps_end=0.0)(situation(values, option=0, is_init=True))
    assert (new_episode["option"] == -1).all()


def test_each_seed_has_options_of_its_own():
    options = OptionTable(2, num_options=2, num_states=3, num_actions=2)
    values = torch.arange(12.0).double().view(1, 2, 3, 2)
    options.replace(torch.tensor([1]), values)
    td = options(TensorDict({"state_id": torch.tensor([2, 2])}, [2]))
    assert td["option_action_value"].tolist() == [[[0, 0], [0, 0]], [[4, 5], [10, 11]]]
