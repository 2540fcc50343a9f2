"""A policy sequence writes what a TensorDictSequential writes."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential, set_skip_existing
from torch import nn
from torchrl.data import Categorical
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import EGreedyModule

from torchrl_dceo._fast.actors import DirectEGreedy, GreedyActor, PolicySequence
from torchrl_dceo.modules import OptionExplorationModule, OptionQValueActor
from torchrl_dceo.modules.networks import MultiHeadNet, mlp_net


@pytest.fixture
def detours(monkeypatch):
    """Counts the calls that go the usual way."""
    calls, forward = [], TensorDictSequential.forward

    def counted(self, *args, **kwargs):
        calls.append(1)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(TensorDictSequential, "forward", counted)
    return calls


def modules():
    torch.manual_seed(0)
    spec = Categorical(4)
    main = GreedyActor(mlp_net(6, 4), in_keys=["observation"], spec=spec)
    net = MultiHeadNet(lambda out: mlp_net(6, out), num_heads=3, head_shape=4)
    options = OptionQValueActor(net, num_options=3, in_keys=["observation"], spec=spec)
    return main, options, OptionExplorationModule(spec, num_options=3, eps_init=0.7, eps_end=0.1)


def step(batch):
    torch.manual_seed(1)
    entries = {"observation": torch.randn(*batch, 6), "option": torch.randint(-1, 3, batch)}
    return TensorDict({**entries, "is_init": torch.rand(*batch, 1) < 0.3}, batch)


@pytest.mark.parametrize("batch", [(), (50,), (5, 4)])
def test_the_same_entries_from_the_same_draws(batch, detours):
    parts = modules()
    torch.manual_seed(2)
    actual = PolicySequence(*parts)(step(batch))
    assert not detours
    torch.manual_seed(2)
    expected = TensorDictSequential(*parts)(step(batch))
    keys = set(expected.keys(True, True))
    assert ("next", "option") in keys and set(actual.keys(True, True)) == keys
    assert all(torch.equal(actual[key], expected[key]) for key in keys)


def test_modules_with_hooks_or_several_outputs_are_called_as_modules(detours):
    two = TensorDictModule(lambda x: (x + 1, x + 2), in_keys=["x"], out_keys=["a", "b"])
    hooked = TensorDictModule(nn.Identity(), in_keys=["b"], out_keys=["c"])
    hooked.register_forward_hook(lambda module, inputs, output: output.set("seen", output["c"]))
    td = PolicySequence(two, hooked)(TensorDict({"x": torch.zeros(1)}))
    assert [td[key].item() for key in ("a", "b", "c", "seen")] == [1, 2, 2, 2]
    assert not detours


def test_everything_else_goes_the_usual_way(detours):
    double = TensorDictModule(lambda x: 2 * x, in_keys=["x"], out_keys=["y"])
    minus = TensorDictModule(lambda y: -y, in_keys=["y"], out_keys=["z"])
    sequence, td = PolicySequence(double, minus), TensorDict({"x": torch.ones(1)})
    out = sequence(td, tensordict_out=TensorDict())
    assert set(td.keys()) == {"x"} and set(out.keys()) == {"y", "z"}
    with set_skip_existing(True):
        there = TensorDict({"x": torch.ones(1), "y": torch.ones(1), "z": torch.ones(1)})
        assert sequence(there)["z"].item() == 1
    assert len(detours) == 2
    assert sequence(x=torch.ones(1)) == (torch.tensor([2.0]), torch.tensor([-2.0]))
    assert set(sequence.select_out_keys("z")(td.copy()).keys()) == {"x", "z"}
    assert len(detours) == 3


@pytest.mark.parametrize("batch", [(), (40,), (5, 4)])
def test_epsilon_greedy_draws_and_anneals_as_torchrl_does(batch):
    settings = {"eps_init": 0.9, "eps_end": 0.13, "annealing_num_steps": 233}
    ours, torchrls = (kind(Categorical(4), **settings) for kind in (DirectEGreedy, EGreedyModule))
    td = TensorDict({"action": torch.zeros(batch, dtype=torch.int64)}, batch, device="cpu")
    explored = 0
    for turn in range(120):
        for explorer in (ours, torchrls):
            explorer.step(turn % 5)
        assert torch.equal(ours.eps, torchrls.eps)
        torch.manual_seed(turn)
        expected = torchrls(td.clone())["action"]
        torch.manual_seed(turn)
        actual = td.clone()
        ours.prepared(actual)(actual._tensordict)
        assert torch.equal(actual["action"], expected) and actual["action"].dtype == expected.dtype
        explored += int((expected != 0).sum())
    assert explored and torch.equal(ours.eps, torch.tensor(0.13))


def test_masked_and_deterministic_actions_go_the_usual_way():
    td = TensorDict({"action": torch.zeros((), dtype=torch.int64)}, device="cpu")
    explorer = DirectEGreedy(Categorical(4))
    assert explorer.prepared(td) is not None
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert explorer.prepared(td) is None
    assert DirectEGreedy(Categorical(4), action_mask_key="mask").prepared(td) is None
