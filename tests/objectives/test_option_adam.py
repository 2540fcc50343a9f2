"""A few options an update: the others are not computed, and do not move by a bit, moments included."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torchrl.data import Categorical

from torchrl_dceo._fast.steps import OptionAdam
from torchrl_dceo.modules import (
    DuelingDistribution,
    OptionDistributionalQValueActor,
    OptionQValueActor,
)
from torchrl_dceo.modules.distributional import make_support
from torchrl_dceo.modules.networks import MultiHeadNet, StackedNet, grid_net, mlp_net
from torchrl_dceo.objectives import OptionDistributionalDQNLoss, OptionDQNLoss
from torchrl_dceo.objectives.option_dqn import TrainedRows

OBS, ACTIONS, OPTIONS, BATCH, ATOMS = 6, 4, 5, 16, 7


def network_fn(out: int) -> nn.Module:
    return mlp_net(OBS, out, num_cells=(12,)).double()


def make_loss(kind: type, *, distributional: bool = False, **kwargs) -> OptionDQNLoss:
    common = {"num_options": OPTIONS, "in_keys": ["observation"], "spec": Categorical(ACTIONS)}
    loss: OptionDQNLoss
    if distributional:
        dueling = DuelingDistribution(ATOMS, ACTIONS)
        net = nn.Sequential(kind(network_fn, OPTIONS, dueling.num_inputs), dueling)
        support = make_support(ATOMS, 2.0).double()
        actor = OptionDistributionalQValueActor(net, support=support, **common)
        loss = OptionDistributionalDQNLoss(actor, **kwargs)
    else:
        actor = OptionQValueActor(kind(network_fn, OPTIONS, ACTIONS), **common)
        loss = OptionDQNLoss(actor, **kwargs)
    loss.make_value_estimator(gamma=0.5)
    loss.target_option_network_params.apply_(lambda p: p.data.add_(0.3 * torch.randn_like(p)))
    return loss


def make_batch() -> TensorDict:
    flags = torch.rand(2, BATCH, 1) < 0.3
    return TensorDict(
        {
            "observation": torch.randn(BATCH, OBS, dtype=torch.float64),
            "action": torch.randint(ACTIONS, (BATCH,)),
            "option_reward": torch.randn(BATCH, OPTIONS, dtype=torch.float64),
            "steps_to_next_obs": torch.randint(1, 4, (BATCH, 1)),
            "next": {
                "observation": torch.randn(BATCH, OBS, dtype=torch.float64),
                "done": flags[0] | flags[1],
                "terminated": flags[0],
            },
        },
        [BATCH],
    )


def trainable(loss: nn.Module) -> list[nn.Parameter]:
    return [p for p in loss.parameters() if p.requires_grad]


def update(loss: OptionDQNLoss, optimizer: OptionAdam) -> list[TrainedRows]:
    loss(make_batch())["loss_option"].backward()
    trained = loss.trained_rows()
    optimizer.step(trained=trained)
    optimizer.zero_grad()
    return trained


KINDS = [(StackedNet, False), (MultiHeadNet, False), (StackedNet, True), (MultiHeadNet, True)]


@pytest.mark.parametrize(("kind", "distributional"), KINDS)
@pytest.mark.parametrize("count", [1, 3])
def test_options_left_out_do_not_move(kind, distributional, count):
    loss = make_loss(kind, distributional=distributional, options_per_update=count)
    optimizer = OptionAdam(trainable(loss), lr=1e-2, fused=True)
    still = 0
    for _ in range(20):
        tensors = [[p, *optimizer.state.get(p, {}).values()] for p in trainable(loss)]
        before = copy.deepcopy(tensors)
        trained = update(loss, optimizer)
        divided = {id(rows.parameter): rows for rows in trained}
        # The heads of a shared trunk are its last layer; independent networks have nothing else.
        assert len(divided) == (2 if kind is MultiHeadNet else len(tensors))
        for now, old in zip(tensors, before, strict=True):
            rows = divided.get(id(now[0]))
            if rows is None:
                assert not torch.equal(now[0], old[0])  # the trunk
                continue
            assert len(set(rows.options)) == count
            for new, was in zip(now, old, strict=True):  # weights, steps and both moments
                size = new.shape[0] // OPTIONS
                for option in range(OPTIONS):
                    part = slice(option * size, (option + 1) * size)
                    moved = not torch.equal(new[part], was[part])
                    assert moved == (option in rows.options)
                    still += not moved
    assert still > 0


def test_each_option_learns_as_with_an_adam_of_its_own():
    loss = make_loss(StackedNet, options_per_update=2)
    optimizer = OptionAdam(trainable(loss), lr=1e-2)
    weights = [p.detach().clone() for p in trainable(loss)]
    singles = [[nn.Parameter(p[o].clone()) for p in weights] for o in range(OPTIONS)]
    adams = [torch.optim.Adam(single, lr=1e-2) for single in singles]
    for _ in range(30):
        loss(make_batch())["loss_option"].backward()
        trained = loss.trained_rows()
        for option in trained[0].options:
            for own, rows in zip(singles[option], trained, strict=True):
                own.grad = rows.parameter.grad[option].clone()
            adams[option].step()
        optimizer.step(trained=trained)
        optimizer.zero_grad()
    for index, stacked in enumerate(trainable(loss)):
        expected = torch.stack([single[index].detach() for single in singles])
        torch.testing.assert_close(stacked.detach(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "distributional"), KINDS)
def test_loss_and_gradients_are_those_of_the_chosen_options(kind, distributional):
    loss = make_loss(kind, distributional=distributional, options_per_update=2)
    batch = make_batch()
    out = loss(batch.clone())
    out["loss_option"].backward()
    options = list(loss.trained_rows()[0].options)
    gradients = [p.grad.clone() for p in trainable(loss)]
    loss.zero_grad()
    # All options, of which the others' rewards make no difference to the terms compared.
    loss.options_per_update, loss.reduction = None, "none"
    single_losses = []
    for option in options:
        masked = batch.clone()
        errors = loss._errors(masked, masked["option_reward"], None)
        single_losses.append(errors.loss[:, option].mean())
        torch.testing.assert_close(
            out["option_value"][options.index(option)], errors.value[:, option].mean()
        )
    total = sum(single_losses)
    total.backward()
    torch.testing.assert_close(out["loss_option"], total)
    for parameter, expected in zip(trainable(loss), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, expected)


class ProductCounter(TorchDispatchMode):
    """Counts the FLOPs of matrix products (torch's own counter hooks modules, and tensordict's break under it)."""

    flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        self.flops += 0 if count is None else count(*args, **(kwargs or {}), out_val=out)
        return out


@pytest.mark.parametrize("count", [1, 3])
def test_k_options_cost_k(count):
    """By the FLOPs of independent networks, forward and backward."""

    def flops(**kwargs) -> int:
        net = StackedNet(lambda out: mlp_net(OBS, out, num_cells=(12,)).double(), OPTIONS, ACTIONS)
        actor = OptionQValueActor(
            net, num_options=OPTIONS, in_keys=["observation"], spec=Categorical(ACTIONS)
        )
        loss = OptionDQNLoss(actor, **kwargs)
        loss.make_value_estimator(gamma=0.5)
        with ProductCounter() as counter:
            loss(make_batch())["loss_option"].backward()
        return counter.flops

    assert 0 < flops(options_per_update=count) <= flops() * count / OPTIONS * 1.001


def test_networks_that_declare_no_division_train_the_chosen_options():
    """A module of one's own: all values are computed, and the loss is that of the chosen options."""
    net = nn.Sequential(
        nn.Linear(OBS, OPTIONS * ACTIONS).double(), nn.Unflatten(-1, (OPTIONS, ACTIONS))
    )
    module = TensorDictModule(net, in_keys=["observation"], out_keys=["option_action_value"])
    loss = OptionDQNLoss(
        module, num_options=OPTIONS, action_space="categorical", options_per_update=2
    )
    loss.make_value_estimator(gamma=0.5)
    out = loss(make_batch())
    out["loss_option"].backward()
    moved = trainable(loss)[0].grad.view(OPTIONS, -1).abs().sum(-1) > 0
    assert int(moved.sum()) == 2 and out["option_value"].shape == (2,)
    assert loss.trained_rows() == []


def test_the_full_number_of_options_is_back_after_an_update():
    loss = make_loss(MultiHeadNet, options_per_update=1)
    loss(make_batch())
    values = loss.option_network(make_batch().select("observation"))["option_action_value"]
    assert values.shape == (BATCH, OPTIONS, ACTIONS)
    broken = make_batch().exclude("observation")
    with pytest.raises(Exception, match="observation"):
        loss(broken)
    loss.option_network(make_batch().select("observation"))


def test_images_take_the_short_way_too():
    """The last layer of a convolutional network, with the rows of two heads in its place."""
    net = MultiHeadNet(lambda out: grid_net((3, 13, 13), out), OPTIONS, ACTIONS)
    actor = OptionQValueActor(
        net, num_options=OPTIONS, in_keys=["pixels"], spec=Categorical(ACTIONS)
    )
    loss = OptionDQNLoss(actor, options_per_update=2)
    loss.make_value_estimator(gamma=0.5)
    batch = make_batch().exclude("observation", ("next", "observation"))
    batch["option_reward"] = batch["option_reward"].float()
    for td in (batch, batch["next"]):
        td["pixels"] = torch.randint(256, (BATCH, 3, 13, 13), dtype=torch.uint8)
    loss(batch)["loss_option"].backward()
    heads = trainable(loss)[-2].grad.view(OPTIONS, -1).abs().sum(-1) > 0
    assert int(heads.sum()) == 2


def test_saved_and_loaded_it_continues_to_the_bit():
    torch.manual_seed(3)
    loss = make_loss(MultiHeadNet, options_per_update=2)
    optimizer = OptionAdam(trainable(loss), lr=1e-2, fused=True)
    for _ in range(5):
        update(loss, optimizer)
    other = make_loss(MultiHeadNet, options_per_update=2)
    other.load_state_dict(loss.state_dict())
    resumed = OptionAdam(trainable(other), lr=1e-2, fused=True)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, its in ((loss, optimizer), (other, resumed)):
        torch.manual_seed(4)
        for _ in range(5):
            update(each, its)
    for a, b in zip(trainable(loss), trainable(other), strict=True):
        assert torch.equal(a, b)


def test_moments_of_all_options_are_taken_over():
    """From a run that trained every option at each update to one that trains a few."""
    loss = make_loss(StackedNet)
    optimizer = OptionAdam(trainable(loss), lr=1e-2)
    update(loss, optimizer)
    loss.options_per_update = 1
    trained = update(loss, optimizer)
    steps = optimizer.state[trained[0].parameter]["step"]
    expected = [2.0 if option in trained[0].options else 1.0 for option in range(OPTIONS)]
    assert steps.tolist() == expected


def test_amsgrad_is_refused():
    with pytest.raises(ValueError, match="OptionAdam has no amsgrad"):
        OptionAdam([nn.Parameter(torch.zeros(2))], amsgrad=True)
