from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Categorical
from torchrl.modules import DistributionalQValueActor
from torchrl.objectives import DistributionalDQNLoss, HardUpdate, SoftUpdate

from torchrl_dceo._fast.actors import DistributionalGreedyActor
from torchrl_dceo._fast.losses import CategoricalDQNLoss
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.modules import DuelingDistribution, OptionDistributionalQValueActor
from torchrl_dceo.modules.distributional import make_support
from torchrl_dceo.modules.networks import MultiHeadNet, StackedNet, mlp_net
from torchrl_dceo.objectives import OptionDistributionalDQNLoss

OBS, ACTIONS, ATOMS, OPTIONS, BATCH, GAMMA = 6, 4, 11, 3, 16, 0.5
DUELING = DuelingDistribution(ATOMS, ACTIONS)


def network_fn(out: int) -> nn.Module:
    return mlp_net(OBS, out, num_cells=(12,))


def make_batch(*, steps: bool = True, weights: bool = False, size: int = BATCH) -> TensorDict:
    batch = TensorDict(
        {
            "observation": torch.randn(size, OBS),
            "action": torch.randint(ACTIONS, (size,)),
            "option_reward": torch.randn(size, OPTIONS),
            "next": {
                "observation": torch.randn(size, OBS),
                "reward": torch.randn(size, 1),
                "done": torch.rand(size, 1) < 0.5,
            },
        },
        [size],
    )
    # Terminated is a strict subset of done: the rest are truncations, which bootstrap.
    batch["next", "terminated"] = batch["next", "done"] & (torch.rand(size, 1) < 0.5)
    if steps:
        batch["steps_to_next_obs"] = torch.randint(1, 6, (size, 1))
    if weights:
        batch["priority_weight"] = torch.rand(size)
    return batch


def support() -> torch.Tensor:
    return make_support(ATOMS, 2.0)


def option_loss(net: type = StackedNet, **kwargs) -> OptionDistributionalDQNLoss:
    heads = net(network_fn, OPTIONS, DUELING.num_inputs)
    actor = OptionDistributionalQValueActor(
        nn.Sequential(heads, DUELING),
        num_options=OPTIONS,
        support=support(),
        in_keys=["observation"],
        spec=Categorical(ACTIONS),
    )
    loss = OptionDistributionalDQNLoss(actor, **kwargs)
    loss.make_value_estimator(gamma=GAMMA)
    return loss


def main_loss(actor: type = DistributionalGreedyActor, loss: type = CategoricalDQNLoss, **kwargs):
    net = nn.Sequential(network_fn(DUELING.num_inputs), DUELING)
    made = actor(net, support=support(), in_keys=["observation"], spec=Categorical(ACTIONS))
    return loss(made, gamma=GAMMA, **kwargs)


def perturb(parameters) -> None:
    """Targets that equal the online network would hide a mix-up of the two."""
    for name, value in parameters.items(True, True):
        if "support" not in name and value.is_floating_point():
            value.data.add_(0.5 * torch.randn_like(value))


def parameters_of(loss) -> list[torch.Tensor]:
    return [p for p in loss.parameters() if p.requires_grad]


def separate_losses(loss: OptionDistributionalDQNLoss, **kwargs) -> list[DistributionalDQNLoss]:
    """N of TorchRL's own losses with the weights and targets of the stacked networks."""
    stacked = [p.detach() for p in parameters_of(loss)]
    targets = [
        value
        for name, value in loss.target_option_network_params.items(True, True)
        if "support" not in name
    ]
    singles = []
    for option in range(OPTIONS):
        single = main_loss(DistributionalQValueActor, DistributionalDQNLoss, **kwargs)
        own = [
            value
            for name, value in single.target_value_network_params.items(True, True)
            if "support" not in name
        ]
        with torch.no_grad():
            for p, value in zip(parameters_of(single), stacked, strict=True):
                p.copy_(value[option])
            for p, value in zip(own, targets, strict=True):
                p.data.copy_(value[option])
        singles.append(single)
    return singles


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_equals_n_losses_of_torchrl(steps, weights, reduction):
    """Loss and gradient, double, with n-step discounts, termination and importance weights."""
    torch.manual_seed(0)
    loss = option_loss(reduction=reduction)
    perturb(loss.target_option_network_params)
    batch = make_batch(steps=steps, weights=weights)
    total = loss(batch.clone())["loss_option"]
    total.sum().backward()
    gradients = [p.grad for p in parameters_of(loss)]
    expected: torch.Tensor | float = 0.0
    for option, single in enumerate(separate_losses(loss, reduction=reduction)):
        own = batch.clone()
        own["next", "reward"] = batch["option_reward"][:, option : option + 1]
        value = single(own)["loss"]
        value.sum().backward()
        expected = expected + value.detach()
        for p, gradient in zip(parameters_of(single), gradients, strict=True):
            torch.testing.assert_close(gradient[option], p.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(total.detach(), expected, atol=1e-5, rtol=1e-4)


def test_the_main_loss_equals_torchrls():
    torch.manual_seed(1)
    ours, theirs = main_loss(), main_loss(DistributionalQValueActor, DistributionalDQNLoss)
    perturb(ours.target_value_network_params)
    theirs.load_state_dict(ours.state_dict())
    batch = make_batch(weights=True)
    mine, other = batch.clone(), batch.clone()
    value, expected = ours(mine)["loss"], theirs(other)["loss"]
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(mine["td_error"], other["td_error"])
    value.backward()
    expected.backward()
    for one, two in zip(parameters_of(ours), parameters_of(theirs), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def reference(loss, reward, batch, row, online, target, double):
    """One transition's cross-entropy by plain loops; ``online`` and ``target`` are log-probabilities ``[B, K, A]``."""
    z = support()
    q = [sum(z[k] * p for k, p in enumerate(column)) for column in online["next"][row].exp().t()]
    q_target = [
        sum(z[k] * p for k, p in enumerate(column)) for column in target["next"][row].exp().t()
    ]
    best = max(range(ACTIONS), key=(q if double else q_target).__getitem__)
    m = [0.0] * ATOMS
    discount = GAMMA ** int(batch["steps_to_next_obs"][row])
    if batch["next", "terminated"][row]:
        discount = 0.0
    for k in range(ATOMS):
        moved = min(max(float(reward + discount * z[k]), -2.0), 2.0)
        for i in range(ATOMS):
            share = max(0.0, 1 - abs(moved - float(z[i])) / float(z[1] - z[0]))
            m[i] += share * float(target["next"][row, k, best].exp())
    taken = online["now"][row, :, batch["action"][row]]
    return -sum(m[i] * float(taken[i]) for i in range(ATOMS))


@pytest.mark.parametrize("double", [True, False])
def test_double_and_single_against_plain_loops(double):
    torch.manual_seed(2)
    loss = option_loss(MultiHeadNet, double_dqn=double, reduction="none")
    perturb(loss.target_option_network_params)
    batch = make_batch()
    out = loss(batch.clone())["loss_option"]

    def distributions(parameters):
        with torch.no_grad(), parameters.to_module(loss.option_network):
            both = {
                "now": loss.option_network(batch.select("observation"))["option_action_dist"],
                "next": loss.option_network(batch["next"].select("observation"))[
                    "option_action_dist"
                ],
            }
        return [{k: v[:, o] for k, v in both.items()} for o in range(OPTIONS)]

    online = distributions(loss.option_network_params)
    target = distributions(loss.target_option_network_params)
    chosen = [online[o]["next"].exp().mul(support()[:, None]).sum(1).argmax(-1) for o in range(3)]
    other = [target[o]["next"].exp().mul(support()[:, None]).sum(1).argmax(-1) for o in range(3)]
    assert any(not torch.equal(a, b) for a, b in zip(chosen, other, strict=True))
    for row in range(BATCH):
        expected = sum(
            reference(
                loss, batch["option_reward"][row, o], batch, row, online[o], target[o], double
            )
            for o in range(OPTIONS)
        )
        assert float(out[row].detach()) == pytest.approx(expected, rel=1e-4)


def test_n_steps_with_termination_from_the_replay_buffer():
    """Chain 0 → 1 → 2 → goal with reward 1: the targets' means are γ^m-discounted, and nothing is bootstrapped past
    the goal; an episode cut short is bootstrapped."""
    replay = make_replay_buffer(100, observation_keys=["observation"], n_steps=2, gamma=GAMMA)
    steps = TensorDict({"observation": torch.eye(OBS)[:5], "action": torch.zeros(5).long()}, [5])
    steps["next"] = TensorDict({"observation": torch.eye(OBS)[1:6]}, [5])
    steps["next", "reward"] = torch.tensor([[0.0], [0.0], [1.0], [0.0], [0.0]])
    steps["next", "terminated"] = torch.tensor([[0], [0], [1], [0], [0]]).bool()
    steps["next", "truncated"] = torch.tensor([[0], [0], [0], [0], [1]]).bool()
    steps["next", "done"] = steps["next", "terminated"] | steps["next", "truncated"]
    replay.extend(steps)
    batch = replay.transitions()
    loss = main_loss(reduction="none")

    # A target network that is sure of a return of 0.8 in every state: an atom.
    network = loss.target_value_network_params
    place = int((support() - 0.8).abs().argmin())
    for name, value in network.items(True, True):
        if "support" not in name:
            value.data.zero_()
    bias = network["module", "0", "module", "0", "2", "bias"]
    bias.data.view(ATOMS, ACTIONS + 1)[place, 0] = 50.0
    targets = []
    target_of = loss._target
    loss._target = lambda *args: targets.append(target_of(*args)) or targets[0]
    loss(batch)
    means = (targets[0] @ support()).tolist()
    # 0: two steps on, γ² 0.8. 1: reaches the goal after two: γ 1. 2: the goal. 3, 4: cut after two, one: bootstrapped.
    assert means == pytest.approx([0.2, 0.5, 1.0, 0.2, 0.4], abs=1e-5)
    assert batch["steps_to_next_obs"].flatten().tolist() == [2, 2, 1, 2, 1]


def test_batch_of_as_many_rows_as_atoms():
    """Where TorchRL's loss would take n-step counts of the wrong shape for atoms."""
    torch.manual_seed(3)
    batch = make_batch(size=ATOMS)
    loss = main_loss(reduction="none")
    whole = loss(batch.clone())["loss"]
    rows = torch.cat([loss(batch[i : i + 1].clone())["loss"] for i in range(ATOMS)])
    torch.testing.assert_close(whole, rows)


def test_options_per_update_trains_that_many_heads():
    torch.manual_seed(4)
    loss = option_loss(options_per_update=1)
    loss(make_batch())["loss_option"].backward()
    moved = parameters_of(loss)[-1].grad.abs().sum(-1) > 0
    assert int(moved.sum()) == 1


@pytest.mark.parametrize("updater", [SoftUpdate, HardUpdate])
def test_target_updaters_move_the_targets(updater):
    torch.manual_seed(5)
    for loss, name in ((option_loss(), "option"), (main_loss(), "value")):
        targets = getattr(loss, f"target_{name}_network_params")
        settings = {"tau": 0.5} if updater is SoftUpdate else {"value_network_update_interval": 1}
        moves = updater(loss, **settings)
        with torch.no_grad():
            for p in parameters_of(loss):
                p.add_(1.0)
        before = targets.clone()
        moves.step()
        moves.step()  # TorchRL's hard update counts one step before it moves
        changed = [
            not torch.equal(new, before[key])
            for key, new in targets.items(True, True)
            if "support" not in key
        ]
        assert changed and all(changed)


def test_any_batch_shape():
    torch.manual_seed(6)
    batch = make_batch(weights=True)
    for loss, key in ((option_loss(), "loss_option"), (main_loss(), "loss")):
        flat, folded = loss(batch.clone())[key], loss(batch.clone().view(4, 4))[key]
        torch.testing.assert_close(flat, folded)


def test_priorities_are_the_cross_entropies():
    torch.manual_seed(7)
    batch = make_batch()
    loss = option_loss(reduction="none")
    out = loss(batch)
    torch.testing.assert_close(OPTIONS * batch["option_priority"].squeeze(-1), out["loss_option"])
    main = main_loss(reduction="none")(batch)
    torch.testing.assert_close(batch["td_error"].squeeze(-1), main["loss"].detach())


def test_no_loss_function_for_distributions():
    with pytest.raises(TypeError, match="no loss_function, got 'l2'"):
        option_loss(loss_function="l2")


def test_learns_the_distribution_of_a_coin():
    """A bandit whose return is 0 or 1: not the mean only, but both outcomes."""
    torch.manual_seed(8)
    loss = main_loss()
    optimizer = torch.optim.Adam(parameters_of(loss), lr=1e-2)
    for _ in range(300):
        batch = make_batch(size=64)
        batch["observation"] = torch.ones(64, OBS)
        batch["next", "reward"] = (torch.rand(64, 1) < 0.3).float()
        batch["next", "terminated"] = torch.ones(64, 1, dtype=torch.bool)
        loss(batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad(), loss.value_network_params.to_module(loss.value_network):
        out = loss.value_network(TensorDict({"observation": torch.ones(1, OBS)}, [1]))
    probabilities = out["action_value"].exp()[0].mean(-1)
    zero, one = (int((support() - v).abs().argmin()) for v in (0.0, 1.0))
    # 1 lies halfway between the atoms 0.8 and 1.2, so its mass goes to both.
    assert float(probabilities[zero]) == pytest.approx(0.7, abs=0.08)
    assert float(probabilities[one : one + 2].sum()) == pytest.approx(0.3, abs=0.08)


def test_a_module_of_ones_own_with_its_atoms():
    torch.manual_seed(9)
    heads = nn.Sequential(StackedNet(network_fn, OPTIONS, DUELING.num_inputs), DUELING)
    actor = OptionDistributionalQValueActor(
        heads,
        num_options=OPTIONS,
        support=support(),
        in_keys=["observation"],
        spec=Categorical(ACTIONS),
    )
    module = TensorDictModule(actor.module.module, ["observation"], ["option_action_dist"])
    settings = {"num_options": OPTIONS, "action_space": "categorical"}
    with pytest.raises(ValueError, match="support is not known from a TensorDictModule"):
        OptionDistributionalDQNLoss(module, **settings)
    losses = [
        OptionDistributionalDQNLoss(module, support=support(), **settings),
        OptionDistributionalDQNLoss(actor),
    ]
    batch = make_batch()
    values = []
    for loss in losses:
        loss.make_value_estimator(gamma=0.5)
        values.append(loss(batch.clone())["loss_option"])
    torch.testing.assert_close(*values)


@pytest.mark.parametrize("which", ["main", "option"])
def test_truncation_bootstraps_and_termination_does_not(which):
    """In closed form: atoms 0 and 1, next distribution all on 1; r = 0 and γ = 0.5."""
    atoms = torch.tensor([0.0, 1.0])
    logits = torch.tensor(
        [[-9.0, 9.0], [9.0, -9.0]]
    )  # of the next state (all on 1) and of this one (all on 0)

    def net(observation: torch.Tensor) -> torch.Tensor:
        chosen = logits[observation[..., 0].long()].log_softmax(-1)
        return chosen[..., None].expand(*chosen.shape, 2)  # both actions alike

    class Net(nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            out = net(observation)
            return out if which == "main" else out.unsqueeze(-3)

    settings = {"support": atoms, "in_keys": ["observation"], "spec": Categorical(2)}
    if which == "main":
        actor = DistributionalGreedyActor(Net(), **settings)
        loss = CategoricalDQNLoss(actor, gamma=0.5)
    else:
        loss = OptionDistributionalDQNLoss(
            OptionDistributionalQValueActor(Net(), num_options=1, **settings)
        )
        loss.make_value_estimator(gamma=0.5)
    targets = {}
    for name, done, terminated in (
        ("running", False, False),
        ("truncated", True, False),
        ("terminated", True, True),
    ):
        batch = TensorDict(
            {
                "observation": torch.ones(1, 1),
                "action": torch.zeros(1, dtype=torch.int64),
                "option_reward": torch.zeros(1, 1),
                "next": {
                    "observation": torch.zeros(1, 1),
                    "reward": torch.zeros(1, 1),
                    "done": torch.tensor([[done]]),
                    "terminated": torch.tensor([[terminated]]),
                },
            },
            [1],
        )
        out = loss(batch)
        key = "main_target" if which == "main" else "option_target"
        targets[name] = float(out[key].mean())
    # The mass at 1 moves to 0.5 = half way between the atoms; after termination all of it is at 0.
    assert targets["running"] == pytest.approx(0.5, abs=1e-3)
    assert targets["truncated"] == pytest.approx(0.5, abs=1e-3)
    assert targets["terminated"] == pytest.approx(0.0, abs=1e-6)
