from __future__ import annotations

import contextlib

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import Categorical, OneHot
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, HardUpdate, SoftUpdate

from torchrl_dceo.modules import EigenReward, OptionQValueActor
from torchrl_dceo.modules.networks import MultiHeadNet, StackedNet, mlp_net
from torchrl_dceo.objectives import OptionDQNLoss

OBS, ACTIONS, BATCH = 6, 4, 16
GAMMA = 0.5  # its powers are exact also in float32, in which TorchRL's estimators keep it


def network_fn(out: int) -> nn.Module:
    return mlp_net(OBS, out, num_cells=(12,)).double()


def make_batch(
    num_options: int, *, steps: bool = True, weights: bool = False, one_hot: bool = False
):
    action = torch.randint(ACTIONS, (BATCH,))
    batch = TensorDict(
        {
            "observation": torch.randn(BATCH, OBS, dtype=torch.float64),
            "action": nn.functional.one_hot(action, ACTIONS) if one_hot else action,
            "option_reward": torch.randn(BATCH, num_options, dtype=torch.float64),
            "next": {
                "observation": torch.randn(BATCH, OBS, dtype=torch.float64),
                "reward": torch.randn(BATCH, 1, dtype=torch.float64),
                "done": torch.rand(BATCH, 1) < 0.5,
            },
        },
        [BATCH],
    )
    # Terminated is a strict subset of done: the rest are truncations, which bootstrap.
    batch["next", "terminated"] = batch["next", "done"] & (torch.rand(BATCH, 1) < 0.5)
    if steps:
        batch["steps_to_next_obs"] = torch.randint(1, 6, (BATCH, 1))
    if weights:
        batch["priority_weight"] = torch.rand(BATCH, dtype=torch.float64)
    return batch


def stacked_loss(num_options: int, *, one_hot: bool = False, **kwargs) -> OptionDQNLoss:
    spec = OneHot(ACTIONS) if one_hot else Categorical(ACTIONS)
    net = StackedNet(network_fn, num_options, ACTIONS)
    actor = OptionQValueActor(net, num_options=num_options, in_keys=["observation"], spec=spec)
    loss = OptionDQNLoss(actor, **kwargs)
    loss.make_value_estimator(gamma=GAMMA)
    return loss


def perturb_targets(loss, key: str) -> None:
    """Targets that equal the online network would hide a mix-up of the two."""
    getattr(loss, key).apply_(lambda p: p.data.add_(0.3 * torch.randn_like(p)))


def separate_losses(loss: OptionDQNLoss, one_hot: bool = False, **kwargs) -> list[DQNLoss]:
    """N plain DQNLoss modules with the weights and targets of the stacked networks."""
    spec = OneHot(ACTIONS) if one_hot else Categorical(ACTIONS)
    online = [p.detach() for p in loss.option_network.module.module.stacked]
    target = list(loss.target_option_network_params.values(True, True))
    singles = []
    for option in range(loss.num_options):
        net = network_fn(ACTIONS)
        single = DQNLoss(QValueActor(net, in_keys=["observation"], spec=spec), **kwargs)
        with torch.no_grad():
            for p, stacked in zip(net.parameters(), online, strict=True):
                p.copy_(stacked[option])
            single_target = single.target_value_network_params.values(True, True)
            for p, stacked in zip(single_target, target, strict=True):
                p.copy_(stacked[option])
        single.make_value_estimator(gamma=GAMMA)
        singles.append(single)
    return singles


def test_single_steps_are_learned_from_beside_n_steps():
    """The loss of the single step: its state, its flags, one discount; by an argument, whatever the key's name."""
    batch = make_batch(3, steps=True)
    single = batch.clone()
    single["next"] = make_batch(3)["next"]
    batch["successor"] = single["next"].exclude("reward")
    del single["steps_to_next_obs"]
    loss = stacked_loss(3, single_step=True, successor="successor")
    perturb_targets(loss, "target_option_network_params")
    on_next = loss(single.clone().set("successor", single["next"]))["loss_option"]
    torch.testing.assert_close(loss(batch)["loss_option"], on_next, rtol=0, atol=0)
    loss.set_keys(successor="next")
    torch.testing.assert_close(loss(single)["loss_option"], on_next, rtol=0, atol=0)
    assert not torch.isclose(loss(batch)["loss_option"], on_next)
    loss.set_keys(successor="successor")
    assert ("successor", "terminated") in loss.in_keys and ("next", "done") not in loss.in_keys
    assert "steps_to_next_obs" not in loss.in_keys
    loss.single_step = False
    assert "steps_to_next_obs" in loss.in_keys
    several = loss(batch)["loss_option"]
    batch["steps_to_next_obs"] = torch.ones(BATCH, 1, dtype=torch.int64)
    assert not torch.isclose(several, on_next)
    torch.testing.assert_close(loss(batch)["loss_option"], on_next, rtol=0, atol=0)


@pytest.mark.parametrize("num_options", [1, 3, 64])
@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("one_hot", [True, False])
def test_equals_n_separate_double_dqn_losses(num_options, steps, weights, one_hot):
    loss = stacked_loss(num_options, one_hot=one_hot)
    perturb_targets(loss, "target_option_network_params")
    singles = separate_losses(loss, one_hot, double_dqn=True, loss_function="smooth_l1")
    batch = make_batch(num_options, steps=steps, weights=weights, one_hot=one_hot)

    value = loss(batch)["loss_option"]
    value.backward()

    total = 0.0
    for option, single in enumerate(singles):
        own = batch.clone()
        own["next", "reward"] = batch["option_reward"][:, option : option + 1]
        reference = single(own)["loss"]
        reference.backward()
        total = total + reference
        own_parameters = single.value_network_params.values(True, True)
        for stacked, parameter in zip(
            loss.option_network.module.module.stacked, own_parameters, strict=True
        ):
            torch.testing.assert_close(stacked.grad[option], parameter.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(value, total, rtol=0, atol=1e-10)


@pytest.mark.parametrize("function", ["l1", "l2", "smooth_l1"])
@pytest.mark.parametrize("double", [True, False])
def test_equals_a_plain_reference(function, double):
    loss = stacked_loss(3, double_dqn=double, loss_function=function)
    perturb_targets(loss, "target_option_network_params")
    batch = make_batch(3)
    out = loss(batch.clone())

    with torch.no_grad():
        values = loss.option_network(batch.select("observation"))["option_action_value"]
        online = loss.option_network(batch["next"].select("observation"))["option_action_value"]
        with loss.target_option_network_params.to_module(loss.option_network):
            target = loss.option_network(batch["next"].select("observation"))["option_action_value"]
    expected = 0.0
    for b in range(BATCH):
        for o in range(3):
            best = (online if double else target)[b, o].argmax()
            keep = 0.0 if batch["next", "terminated"][b] else 1.0
            discount = GAMMA ** batch["steps_to_next_obs"][b].item()
            y = batch["option_reward"][b, o] + discount * keep * target[b, o, best]
            d = (values[b, o, batch["action"][b]] - y).abs()
            each = {"l1": d, "l2": d**2, "smooth_l1": 0.5 * d**2 if d < 1 else d - 0.5}[function]
            expected += each / BATCH
    torch.testing.assert_close(out["loss_option"], expected, rtol=0, atol=1e-12)


def test_no_gradient_reaches_the_encoder():
    encoder = TensorDictModule(
        nn.Linear(OBS, 4).double(), in_keys=["observation"], out_keys=["representation"]
    )
    loss = stacked_loss(3)
    batch = make_batch(3).exclude("option_reward")
    loss(EigenReward(encoder, 3)(batch))["loss_option"].backward()
    assert all(p.grad is None for p in encoder.parameters())
    assert all(p.grad.abs().sum() > 0 for p in loss.option_network.module.module.stacked)


def test_a_reward_with_gradient_is_detached():
    loss = stacked_loss(3)
    batch = make_batch(3)
    batch["option_reward"].requires_grad_()
    loss(batch)["loss_option"].backward()
    assert batch["option_reward"].grad is None


def test_options_per_update_trains_a_random_subset():
    loss = stacked_loss(8, options_per_update=3)
    batch = make_batch(8)
    seen = torch.zeros(8)
    subsets = set()
    for _ in range(200):
        loss.zero_grad()
        loss(batch)["loss_option"].backward()
        trained = loss.option_network.module.module.stacked[0].grad.flatten(1).abs().sum(1) > 0
        assert trained.sum() == 3
        seen += trained
        subsets.add(tuple(trained.nonzero().flatten().tolist()))
    # Each option is trained 75 times in expectation, standard deviation 6.8.
    assert (seen - 75).abs().max() < 4.5 * 6.8
    assert len(subsets) > 30


def test_reductions_agree():
    batch = make_batch(3)
    results = {}
    for reduction in ("none", "mean", "sum"):
        torch.manual_seed(1)
        results[reduction] = stacked_loss(3, reduction=reduction)(batch.clone())["loss_option"]
    assert results["none"].shape == (BATCH,)
    torch.testing.assert_close(results["none"].mean(), results["mean"])
    torch.testing.assert_close(results["none"].sum(), results["sum"])


def test_diagnostics_and_priority():
    loss = stacked_loss(3)
    batch = make_batch(3)
    out = loss(batch)
    assert out["option_td_error"].shape == out["option_value"].shape == (3,)
    assert not out["option_td_error"].requires_grad
    values = loss.option_network(batch.select("observation"))["option_action_value"]
    taken = values[torch.arange(BATCH), :, batch["action"]]
    torch.testing.assert_close(out["option_value"], taken.mean(0).detach())
    assert batch["option_priority"].shape == (BATCH, 1)
    assert (batch["option_priority"] > 0).all()


@pytest.mark.parametrize("updater_cls", [SoftUpdate, HardUpdate])
def test_target_networks_follow_by_torchrl_updaters(updater_cls):
    loss = stacked_loss(3)
    kwargs = {"tau": 0.5} if updater_cls is SoftUpdate else {"value_network_update_interval": 1}
    updater = updater_cls(loss, **kwargs)
    weight = loss.option_network.module.module.stacked[0]
    before = loss.target_option_network_params.flatten_keys("/")
    key = next(k for k in before.keys() if before[k].shape == weight.shape)
    old = before[key].clone()
    with torch.no_grad():
        weight.add_(1.0)
    for _ in range(
        1 if updater_cls is SoftUpdate else 2
    ):  # HardUpdate moves at the end of its interval
        updater.step()
    share = 0.5 if updater_cls is SoftUpdate else 1.0
    torch.testing.assert_close(
        loss.target_option_network_params.flatten_keys("/")[key], old + share
    )


def test_set_keys_and_nested_keys():
    actor = OptionQValueActor(
        MultiHeadNet(network_fn, 3, ACTIONS),
        num_options=3,
        in_keys=[("agent", "obs")],
        spec=Categorical(ACTIONS),
        action_value_key=("agent", "q"),
    )
    loss = OptionDQNLoss(actor)
    loss.set_keys(
        option_action_value=("agent", "q"), option_reward=("agent", "r"), action=("agent", "act")
    )
    loss.make_value_estimator(gamma=GAMMA)
    batch = make_batch(3)
    plain = batch.clone()
    batch["agent"] = {
        "obs": batch["observation"],
        "r": batch["option_reward"],
        "act": batch["action"],
    }
    batch["next", "agent"] = {"obs": batch["next", "observation"]}
    out = loss(batch.exclude("observation", "option_reward", "action"))["loss_option"]
    flat = OptionQValueActor(
        actor.module.module, num_options=3, in_keys=["observation"], spec=Categorical(ACTIONS)
    )
    reference = OptionDQNLoss(flat)
    reference.make_value_estimator(gamma=GAMMA)
    torch.testing.assert_close(out, reference(plain)["loss_option"])


def test_keys_set_after_the_estimator_reach_it():
    loss = stacked_loss(3)
    batch = make_batch(3)
    expected = loss(batch.clone())["loss_option"]
    loss.set_keys(terminated="ended", steps_to_next_obs="m")
    batch["next", "ended"] = batch["next"].pop("terminated")
    batch["m"] = batch.pop("steps_to_next_obs")
    torch.testing.assert_close(loss(batch)["loss_option"], expected)


def test_dispatch_with_plain_tensors():
    loss = stacked_loss(3)
    batch = make_batch(3, steps=False)
    expected = loss(batch.clone())["loss_option"]
    value, *_ = loss(
        observation=batch["observation"],
        action=batch["action"],
        option_reward=batch["option_reward"],
        next_observation=batch["next", "observation"],
        next_done=batch["next", "done"],
        next_terminated=batch["next", "terminated"],
    )
    torch.testing.assert_close(value, expected)


def test_batch_of_two_dimensions_equals_the_flat_one():
    loss = stacked_loss(3)
    batch = make_batch(3)
    shaped = batch.clone().reshape(4, 4)
    torch.testing.assert_close(loss(shaped)["loss_option"], loss(batch)["loss_option"])


def test_state_dict_round_trip():
    first, second = stacked_loss(3), stacked_loss(3)
    perturb_targets(first, "target_option_network_params")
    second.load_state_dict(first.state_dict())
    batch = make_batch(3)
    torch.testing.assert_close(first(batch)["loss_option"], second(batch)["loss_option"])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"double_dqn": True, "delay_value": False}, "delay_value=True"),
        ({"loss_function": "huber"}, "'huber'"),
        ({"options_per_update": 4}, "between 1 and the 3 options, got 4"),
        ({"reduction": "max"}, "'max'"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        stacked_loss(3, **kwargs)


def test_a_missing_or_misshapen_reward_is_named():
    loss = stacked_loss(3)
    with pytest.raises(KeyError, match="EigenReward"):
        loss(make_batch(3).exclude("option_reward"))
    with pytest.raises(ValueError, match="rewards for 5 options but the actor has 3"):
        loss(make_batch(5))


def plain_module(num_options: int = 3, out_key: str = "option_action_value") -> TensorDictModule:
    net = nn.Sequential(
        nn.Linear(OBS, num_options * ACTIONS).double(), nn.Unflatten(-1, (num_options, ACTIONS))
    )
    return TensorDictModule(net, in_keys=["observation"], out_keys=[out_key])


@pytest.mark.parametrize("space", ["categorical", Categorical(ACTIONS), "one_hot", OneHot(ACTIONS)])
def test_any_module_serves(space):
    """Number of options and action space as arguments, the same numbers as with an actor that knows them."""
    one_hot = space == "one_hot" or isinstance(space, OneHot)
    module, batch = plain_module(), make_batch(3, one_hot=one_hot)
    loss = OptionDQNLoss(module, num_options=3, action_space=space)
    loss.make_value_estimator(gamma=GAMMA)
    spec = OneHot(ACTIONS) if one_hot else Categorical(ACTIONS)
    actor = OptionQValueActor(module.module, num_options=3, in_keys=["observation"], spec=spec)
    reference = OptionDQNLoss(actor)
    reference.make_value_estimator(gamma=GAMMA)
    assert torch.equal(loss(batch.clone())["loss_option"], reference(batch)["loss_option"])


def test_the_actor_is_found_inside_a_sequence():
    net = StackedNet(network_fn, 3, ACTIONS)
    actor = OptionQValueActor(
        net, num_options=3, in_keys=["observation"], spec=Categorical(ACTIONS)
    )
    loss = OptionDQNLoss(TensorDictSequential(actor))
    assert (loss.num_options, loss.action_space) == (3, "categorical")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"action_space": "categorical"}, "num_options is not known from a TensorDictModule"),
        ({"num_options": 3}, "action_space is not known from a TensorDictModule: pass"),
        ({"num_options": 3, "action_space": "binary"}, "'one_hot' or a spec, got 'binary'"),
    ],
)
def test_what_a_module_does_not_declare_is_asked_for(kwargs, message):
    with pytest.raises(ValueError, match=message):
        OptionDQNLoss(plain_module(), **kwargs)


def test_a_number_of_options_that_contradicts_the_actor_is_named():
    with pytest.raises(ValueError, match="num_options=4, but the actor has 3"):
        OptionDQNLoss(stacked_loss(3).option_network, num_options=4)


def test_what_is_wrong_with_a_batch_is_named():
    loss, coded = stacked_loss(3), stacked_loss(3, one_hot=True)
    with pytest.raises(KeyError, match="'action', which is not in the batch: store the action"):
        loss(make_batch(3).exclude("action"))
    with pytest.raises(ValueError, match=r"got \(16, 4\): pass action_space='one_hot'"):
        loss(make_batch(3, one_hot=True))
    with pytest.raises(ValueError, match=r"got \(16,\): pass action_space='categorical'"):
        coded(make_batch(3))
    batch = make_batch(3)
    batch["option_reward"] = batch["option_reward"].unsqueeze(1)
    with pytest.raises(
        ValueError, match=r"each of the \(16,\) transitions, got the shape \(16, 1, 3\)"
    ):
        loss(batch)
    other = OptionDQNLoss(plain_module(out_key="q"), num_options=3, action_space="categorical")
    other.make_value_estimator(gamma=GAMMA)
    with pytest.raises(KeyError, match=r"it writes \['q'\], choose one of them with set_keys"):
        other(make_batch(3))


def test_an_action_may_have_a_dimension_of_its_own():
    loss, batch = stacked_loss(3), make_batch(3)
    expected = loss(batch.clone())["loss_option"]
    batch["action"] = batch["action"].unsqueeze(-1)
    assert torch.equal(loss(batch)["loss_option"], expected)


def test_every_key_that_is_read_is_named():
    """The loss of a batch with the in_keys alone is that of the whole batch, and without any of them it is not."""
    loss, batch = stacked_loss(3), make_batch(3, weights=True)
    expected = loss(batch.clone())["loss_option"]
    assert torch.equal(loss(batch.select(*loss.in_keys))["loss_option"], expected)
    for key in loss.in_keys:
        if key == ("next", "done"):
            continue  # only read where "terminated" is missing
        with contextlib.suppress(KeyError, AttributeError, RuntimeError):
            assert not torch.equal(loss(batch.exclude(key))["loss_option"], expected), key


def test_dispatch_takes_steps_and_weights():
    loss, batch = stacked_loss(3), make_batch(3, weights=True)
    expected = loss(batch.clone())["loss_option"]
    names = {"_".join(k) if isinstance(k, tuple) else k: batch[k] for k in loss.in_keys}
    value, *_ = loss(**names)
    torch.testing.assert_close(value, expected)
