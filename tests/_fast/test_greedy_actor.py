"""The short way through a QValueActor gives what the long one gives."""

import copy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import set_skip_existing
from torch import nn
from torchrl.data import Categorical, OneHot
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss

from torchrl_dceo._fast.actors import GreedyActor

KEYS = ["action", "action_value", "chosen_action_value"]


@pytest.fixture
def detours(monkeypatch):
    """Counts the calls that go the way of the QValueActor."""
    calls, forward = [], QValueActor.forward

    def counted(self, *args, **kwargs):
        calls.append(1)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(QValueActor, "forward", counted)
    return calls


def pair(spec, **kwargs):
    """A GreedyActor and a QValueActor on the same network."""
    torch.manual_seed(0)
    net = nn.Linear(5, 4)
    return [
        cls(net, in_keys=["observation"], spec=spec, **kwargs) for cls in (GreedyActor, QValueActor)
    ]


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_the_same_entries(batch, detours):
    greedy, plain = pair(Categorical(4))
    td = TensorDict({"observation": torch.randn(*batch, 5)}, batch)
    actual = greedy(td.copy())
    assert not detours
    expected = plain(td.copy())
    assert set(actual.keys()) == {"observation", *KEYS} == set(expected.keys())
    for key in KEYS:
        assert actual[key].dtype == expected[key].dtype
        assert torch.equal(actual[key], expected[key])
    for ours, theirs in zip(greedy(td["observation"]), plain(td["observation"]), strict=True):
        assert torch.equal(ours, theirs)


def test_other_names():
    names = {"action_value_key": ("q", "all"), "chosen_action_value_key": "best"}
    greedy, plain = pair(Categorical(4), **names)
    td = TensorDict({"observation": torch.randn(3, 5)}, [3])
    actual, expected = greedy(td.copy()), plain(td.copy())
    for key in ("action", ("q", "all"), "best"):
        assert torch.equal(actual[key], expected[key])


def test_everything_else_goes_the_long_way(detours):
    td = TensorDict({"observation": torch.randn(3, 5), "mask": torch.eye(4)[:3].bool()}, [3])
    greedy, plain = pair(OneHot(4))
    assert torch.equal(greedy(td.copy())["action"], plain(td.copy())["action"])
    greedy, plain = pair(Categorical(4), action_mask_key="mask")
    assert greedy(td.copy())["action"].tolist() == [0, 1, 2]
    assert len(detours) == 3
    greedy, _ = pair(Categorical(4))
    with set_skip_existing(True):
        there = td.copy().update({key: torch.zeros(3) for key in KEYS})
        assert greedy(there)["action"].tolist() == [0, 0, 0]
    greedy.module[1].register_forward_hook(
        lambda module, inputs, output: output.set("action", torch.ones(3))
    )
    assert greedy(td.copy())["action"].tolist() == [1, 1, 1]
    assert len(detours) == 5


def test_the_same_loss_and_gradients():
    def results(actor):
        loss = DQNLoss(copy.deepcopy(actor), double_dqn=True)
        loss.make_value_estimator(gamma=0.9)
        torch.manual_seed(1)
        flags = torch.rand(6, 1) < 0.3
        following = {"observation": torch.randn(6, 5), "reward": torch.rand(6, 1)}
        following |= {"done": flags, "terminated": flags.clone()}
        batch = {"observation": torch.randn(6, 5), "action": torch.randint(4, (6,))}
        value = loss(TensorDict({**batch, "next": following}, [6]))["loss"]
        value.backward()
        return [value, *(p.grad for p in loss.parameters() if p.requires_grad)]

    for ours, theirs in zip(*map(results, pair(Categorical(4))), strict=True):
        assert torch.equal(ours, theirs)
