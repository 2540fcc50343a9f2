"""Optimizer and target steps past the bookkeeping: the same numbers to the last bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torchrl.data import Categorical
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from torchrl_dceo._fast import fast_path
from torchrl_dceo._fast.steps import DirectAdam, DirectSoftUpdate


def make_loss() -> DQNLoss:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    return DQNLoss(QValueActor(net, in_keys=["observation"], spec=Categorical(3)), delay_value=True)


def moved_targets(kind: type[SoftUpdate], fast: bool, steps: int = 5) -> list[torch.Tensor]:
    loss = make_loss()
    updater = kind(loss, tau=0.3)
    generator = torch.Generator().manual_seed(1)
    with fast_path(fast):
        for _ in range(steps):
            for parameter in loss.value_network_params.values(True, True):
                parameter.data.add_(torch.randn(parameter.shape, generator=generator))
            updater.step()
    return list(loss.target_value_network_params.values(True, True))


@pytest.mark.parametrize("fast", [True, False])
def test_soft_targets_are_torchrls(fast):
    for own, torchrls in zip(
        moved_targets(DirectSoftUpdate, fast), moved_targets(SoftUpdate, True), strict=True
    ):
        assert torch.equal(own, torchrls)


def test_soft_targets_follow_when_initialized_again():
    loss = make_loss()
    updater = DirectSoftUpdate(loss, tau=0.5)
    updater.step()
    updater.initialized = False
    updater.init_()
    weight = loss.value_network_params.data.add_(2.0)
    before = loss.target_value_network_params.data.clone()
    updater.step()
    after = loss.target_value_network_params.data
    for key, value in weight.items(True, True):
        torch.testing.assert_close(after[key], before[key].lerp(value, 0.5))


def trained(kind: type[torch.optim.Adam], fast: bool, lr: float = 0.01, **settings) -> list:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5,), (2,), (4, 4))]
    groups = [
        {"params": parameters[:2], "eps": 1e-5},
        {"params": parameters[2:], "eps": 1e-8, "lr": 0.1},
    ]
    optimizer = kind(groups, lr=lr, fused=True, **settings)
    with fast_path(fast):
        for step in range(6):
            for i, parameter in enumerate(parameters):
                # One learns only from the third step on, as in a phase of its own, and one pauses.
                learns = (i != 1 or step > 2) and (i != 3 or step != 4)
                parameter.grad = torch.randn_like(parameter) if learns else None
            optimizer.step()
    state = optimizer.state_dict()["state"]
    moments = [value for _, entry in sorted(state.items()) for _, value in sorted(entry.items())]
    return [*parameters, *moments]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("settings", [{}, {"betas": (0.5, 0.9)}, {"weight_decay": 0.1}])
def test_adam_is_torchs_with_its_state(fast, settings):
    own, torchs = trained(DirectAdam, fast, **settings), trained(torch.optim.Adam, True, **settings)
    assert len(own) == len(torchs) == 4 + 12
    for ours, theirs in zip(own, torchs, strict=True):
        assert torch.equal(ours, theirs)


def test_adam_does_not_step_twice_where_moments_are_missing():
    # The first group could go the short way, the second cannot: the step is taken once for both.
    assert torch.equal(trained(DirectAdam, True)[4], trained(torch.optim.Adam, True)[4])


def test_adam_calls_its_hooks_once():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = DirectAdam([parameter], fused=True)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    for _ in range(3):
        parameter.grad = torch.ones(2)
        optimizer.step()
    assert len(seen) == 3


def test_adam_takes_a_step_size_that_changes():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = DirectAdam([parameter], lr=1.0, fused=True)
    for lr in (1.0, 0.25, 0.0):
        optimizer.param_groups[0]["lr"] = lr
        before = parameter.detach().clone()
        parameter.grad = torch.ones(1)
        optimizer.step()
        torch.testing.assert_close(
            before - parameter.detach(), torch.tensor([lr]), atol=1e-6, rtol=0
        )


def test_counts_of_steps_stay_right_when_moments_are_loaded_and_when_a_parameter_pauses():
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = DirectAdam(parameters, fused=True)
    for step in range(4):
        for i, parameter in enumerate(parameters):
            parameter.grad = torch.ones(2) if (i, step) != (1, 2) else None
        optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    assert [int(state["state"][i]["step"]) for i in range(2)] == [4, 3]
    twin = copy.deepcopy(optimizer)
    optimizer.load_state_dict(state)
    for each in (optimizer, twin):
        for parameter in each.param_groups[0]["params"]:
            parameter.grad = torch.ones(2)
        each.step()
        counts = [int(each.state[p]["step"]) for p in each.param_groups[0]["params"]]
        assert counts == [5, 4]
    # The one does not count for the other, nor for what was saved.
    assert [int(state["state"][i]["step"]) for i in range(2)] == [4, 3]
