"""The short way of DoubleDQNLoss against TorchRL's DQNLoss, to the last bit."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Categorical, OneHot
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from torchrl_dceo._fast.actors import GreedyActor
from torchrl_dceo._fast.losses import DoubleDQNLoss
from torchrl_dceo.modules.networks import grid_net

SHAPE, ACTIONS = (3, 9, 9), 4


def make_batch(
    *size: int, steps: bool = True, weights: bool = False, one_hot: bool = False
) -> TensorDict:
    action = torch.randint(ACTIONS, size)
    done = torch.rand(*size, 1) < 0.5
    batch = TensorDict(
        {
            "pixels": torch.randint(256, (*size, *SHAPE), dtype=torch.uint8),
            "action": nn.functional.one_hot(action, ACTIONS) if one_hot else action,
            "next": {
                "pixels": torch.randint(256, (*size, *SHAPE), dtype=torch.uint8),
                "reward": torch.randn(*size, 1),
                "done": done,
                "terminated": done & (torch.rand(*size, 1) < 0.5),
            },
        },
        size,
    )
    if steps:
        batch["steps_to_next_obs"] = torch.randint(1, 6, (*size, 1))
    if weights:
        batch["priority_weight"] = torch.rand(size)
    return batch


def make_pair(
    actor: type[QValueActor] = GreedyActor, *, one_hot: bool = False, **kwargs
) -> tuple[DoubleDQNLoss, DQNLoss]:
    """Ours and TorchRL's on networks with the same weights, and targets that differ from both."""
    spec = OneHot(ACTIONS) if one_hot else Categorical(ACTIONS)
    losses = []
    for loss_cls, extra in ((DoubleDQNLoss, {}), (DQNLoss, {"double_dqn": True})):
        torch.manual_seed(1)
        network = actor(grid_net(SHAPE, ACTIONS), in_keys=["pixels"], spec=spec)
        loss = loss_cls(network, **kwargs, **extra)
        loss.make_value_estimator(gamma=0.9)
        with torch.no_grad():
            for target in loss.target_value_network_params.values(True, True):
                target.add_(0.1 * torch.randn_like(target))
        losses.append(loss)
    return losses[0], losses[1]


def assert_equal(ours: DQNLoss, theirs: DQNLoss, batch: TensorDict) -> None:
    mine, other = batch.clone(), batch.clone()
    out, expected = ours(mine), theirs(other)
    assert set(out.keys()) == set(expected.keys()) == {"loss"}
    assert torch.equal(out["loss"], expected["loss"])
    assert out["loss"].abs().sum() > 0
    assert torch.equal(mine["td_error"], other["td_error"])
    assert set(mine.keys(True)) == set(other.keys(True))
    out["loss"].sum().backward()
    expected["loss"].sum().backward()
    gradients = [p.grad for p in ours.parameters() if p.requires_grad]
    for gradient, reference in zip(
        gradients, (p.grad for p in theirs.parameters() if p.requires_grad), strict=True
    ):
        assert torch.equal(gradient, reference)
    assert any(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("size", [(8,), (2, 4)])
@pytest.mark.parametrize("steps", [True, False])
def test_equals_torchrl(size: tuple[int, ...], steps: bool) -> None:
    torch.manual_seed(0)
    assert_equal(*make_pair(), make_batch(*size, steps=steps))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss_function", ["smooth_l1", "l2"])
def test_equals_torchrl_with_weights(reduction: str, loss_function: str) -> None:
    torch.manual_seed(0)
    ours, theirs = make_pair(reduction=reduction, loss_function=loss_function)
    assert_equal(ours, theirs, make_batch(8, weights=True))


def test_other_keys_are_read() -> None:
    torch.manual_seed(0)
    ours, theirs = make_pair()
    batch = make_batch(8)
    batch["next", "prize"] = batch["next"].pop("reward")
    for loss in (ours, theirs):
        loss.set_keys(reward="prize")
    assert_equal(ours, theirs, batch)


@pytest.mark.parametrize("case", ["another actor", "one-hot actions", "a hook"])
def test_what_is_not_direct_goes_torchrls_way(case: str) -> None:
    torch.manual_seed(0)
    one_hot = case == "one-hot actions"
    actor = QValueActor if case == "another actor" else GreedyActor
    ours, theirs = make_pair(actor, one_hot=one_hot)
    if case == "a hook":
        # A hook that changes the values must be heard: twice as large, in both losses.
        for loss in (ours, theirs):
            loss.value_network.register_forward_hook(
                lambda _module, _args, out: out.set("action_value", 2 * out["action_value"])
            )
    assert_equal(ours, theirs, make_batch(8, one_hot=one_hot))


def test_targets_move_by_an_updater_and_the_module_keeps_its_own_weights() -> None:
    torch.manual_seed(0)
    ours, _ = make_pair()
    updater = SoftUpdate(ours, tau=0.5)
    before = ours.target_value_network_params.clone()
    weights = {name: value.clone() for name, value in ours.state_dict().items()}
    ours(make_batch(8))
    for name, value in ours.state_dict().items():
        assert torch.equal(value, weights[name]), name
    updater.step()
    after = ours.target_value_network_params
    online = ours.value_network_params
    for key in before.keys(True, True):
        torch.testing.assert_close(after[key], 0.5 * (before[key] + online[key].detach()))


def test_learns_as_torchrl_does() -> None:
    """Twenty steps of Adam on the same batches end at the same weights."""
    losses = make_pair()
    for loss in losses:
        torch.manual_seed(2)
        optimizer = torch.optim.Adam([p for p in loss.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(20):
            loss(make_batch(8))["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    ours, theirs = (loss.value_network_params for loss in losses)
    for key in ours.keys(True, True):
        assert torch.equal(ours[key], theirs[key]), key
