"""Swapping parameters in and out: as tensordict's ``to_module``, only shorter."""

import pytest
import torch
from tensordict import TensorDict, TensorDictParams
from torch import nn

from torchrl_dceo._fast import parameters as _swap
from torchrl_dceo._fast.parameters import swapped
from torchrl_dceo.modules.networks import MultiHeadNet, grid_net


class Shifted(nn.Module):
    """A module with a buffer, which is not among the plain parameters."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.ones(5))

    def forward(self, inputs):
        return inputs + self.shift


def others(module):
    """Parameters of the module's shapes with other values."""
    torch.manual_seed(1)
    return TensorDict.from_module(module).apply(torch.rand_like).detach()


def networks():
    yield nn.Linear(3, 2), torch.rand(4, 3)
    yield nn.Sequential(nn.Linear(3, 5), nn.ReLU(), Shifted()), torch.rand(4, 3)
    yield MultiHeadNet(lambda out: grid_net((3, 7, 7), out), 2, 3), torch.rand(4, 3, 7, 7)


@pytest.mark.parametrize("case", range(3))
def test_the_same_as_to_module(case):
    torch.manual_seed(0)
    module, inputs = list(networks())[case]
    module.eval()
    own, parameters = module(inputs), others(module)
    before = dict(module.named_parameters())
    with parameters.to_module(module, preserve_module_state=False):
        expected = module(inputs)
    with swapped(module, parameters):
        actual = module(inputs)
    assert torch.equal(actual, expected)
    assert not torch.equal(actual, own)
    after = dict(module.named_parameters())
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)
    assert torch.equal(module(inputs), own)


def test_gradients_reach_the_parameters_put_in():
    module = nn.Linear(3, 2)
    parameters = others(module).apply(nn.Parameter)
    with swapped(module, parameters):
        module(torch.ones(3)).sum().backward()
    assert torch.equal(parameters["weight"].grad, torch.ones(2, 3))
    assert module.weight.grad is None


def test_an_error_inside_leaves_the_module_as_it_was():
    module = nn.Linear(3, 2)
    weight = module.weight
    with pytest.raises(RuntimeError, match="shapes"), swapped(module, others(module)):
        module(torch.ones(4))
    assert module.weight is weight


def test_a_module_with_a_way_of_its_own_to_set_attributes_is_left_to_tensordict():
    class Watched(nn.Linear):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)

    module = nn.Sequential(nn.Linear(2, 2), Watched(2, 2))
    weight, parameters = module[0].weight, others(module)
    undo = []
    assert not _swap._swap(module, parameters, undo)
    _swap._restore(undo)
    assert module[0].weight is weight
    with parameters.to_module(module, preserve_module_state=False):
        expected = module(torch.ones(2))
    with swapped(module, parameters):
        assert torch.equal(module(torch.ones(2)), expected)
    assert module[0].weight is weight


class TestPlans:
    """What goes where is found out once for ``TensorDictParams``, and again when something was exchanged."""

    @staticmethod
    def parameters(module):
        return TensorDictParams(others(module), no_convert=True)

    def test_second_swap_is_the_first_again(self):
        module, inputs = list(networks())[2]
        parameters = self.parameters(module)
        with parameters.to_module(module, preserve_module_state=False):
            expected = module(inputs)
        own = module(inputs)
        for _ in range(3):
            with swapped(module, parameters):
                assert torch.equal(module(inputs), expected)
            assert torch.equal(module(inputs), own)

    def test_values_that_were_replaced_are_seen(self):
        module = nn.Sequential(nn.Linear(2, 2))
        parameters = self.parameters(module)
        with swapped(module, parameters):
            pass
        parameters._param_td["0"]._tensordict["bias"] = torch.full((2,), 7.0)
        with swapped(module, parameters):
            assert module[0].bias.tolist() == [7.0, 7.0]

    def test_layers_that_were_replaced_are_seen(self):
        module = nn.Sequential(nn.Linear(2, 2))
        parameters = self.parameters(module)
        with swapped(module, parameters):
            pass
        first, module[0] = module[0], nn.Linear(2, 2)
        with swapped(module, parameters):
            assert module[0].bias is parameters["0", "bias"]
            assert first.bias is not parameters["0", "bias"]

    def test_own_parameters_are_back_after_an_error(self):
        module = nn.Linear(2, 2)
        parameters, bias = self.parameters(module), module.bias
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), swapped(module, parameters):
                assert module.bias is not bias
                raise ZeroDivisionError
            assert module.bias is bias

    def test_no_more_plans_are_kept_than_needed(self):
        module = nn.Linear(2, 2)
        for _ in range(50):
            with swapped(module, self.parameters(module)):
                pass
        assert len(_swap._plans[module]) <= _swap._MOST_PLANS
