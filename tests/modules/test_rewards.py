from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from torchrl_dceo.modules import EigenReward

WIDTH, BATCH, STEPS = 5, 7, 3


def make_encoder(width: int = WIDTH) -> TensorDictModule:
    return TensorDictModule(
        nn.Linear(2, width).double(), in_keys=["observation"], out_keys=["representation"]
    )


def make_batch(*shape: int) -> TensorDict:
    shape = shape or (BATCH,)
    window = torch.randn(*shape, STEPS, 2).double()
    return TensorDict(
        {
            "observation": torch.randn(*shape, 2).double(),
            "next": {"observation": window[..., -1, :].clone()},
            "window": {"observation": window},
        },
        shape,
    )


@pytest.mark.parametrize("skip_first", [True, False])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3)])
def test_telescoped_is_the_difference_of_eigenfunctions(skip_first, shape):
    encoder, batch = make_encoder(), make_batch(*shape) if shape else make_batch()[0]
    reward = EigenReward(encoder, 3, skip_first=skip_first)(batch)["option_reward"]
    f = encoder.module
    first = int(skip_first)
    expected = (f(batch["next", "observation"]) - f(batch["observation"]))[..., first : first + 3]
    torch.testing.assert_close(reward, expected.detach())
    assert not reward.requires_grad


def test_discounted_is_the_n_step_return_of_the_one_step_reward():
    encoder, batch = make_encoder(), make_batch()
    gamma = 0.9
    reward = EigenReward(encoder, 4, mode="discounted", gamma=gamma)(batch)["option_reward"]
    for b in range(BATCH):
        path = [batch["observation"][b], *batch["window", "observation"][b]]
        f = [encoder.module(s)[1:] for s in path]
        expected = sum(gamma**k * (f[k + 1] - f[k]) for k in range(STEPS))
        torch.testing.assert_close(reward[b], expected.detach())


def test_discounted_with_gamma_one_telescopes():
    encoder, batch = make_encoder(), make_batch()
    discounted = EigenReward(encoder, 4, mode="discounted", gamma=1.0)(batch.clone())[
        "option_reward"
    ]
    torch.testing.assert_close(discounted, EigenReward(encoder, 4)(batch)["option_reward"])


def test_a_shorter_transition_repeats_its_last_state_and_gains_nothing_after_it():
    encoder, batch = make_encoder(), make_batch()
    batch["window", "observation"][:, 1:] = batch["window", "observation"][:, :1]
    reward = EigenReward(encoder, 4, mode="discounted", gamma=0.9)(batch)["option_reward"]
    f = encoder.module
    one_step = f(batch["window", "observation"][:, 0]) - f(batch["observation"])
    torch.testing.assert_close(reward, one_step[:, 1:].detach())


@pytest.mark.parametrize("with_steps", [True, False])
def test_potential_is_the_telescoped_target_with_f_added_to_every_value(with_steps):
    """U = Q + f obeys the potential equation wherever Q obeys the telescoped one, also where an episode ends."""
    gamma, encoder, batch = 0.9, make_encoder(), make_batch()
    steps = torch.randint(1, 6, (BATCH, 1)) if with_steps else torch.ones(BATCH, 1)
    if with_steps:
        batch["steps_to_next_obs"] = steps
    terminated = torch.arange(BATCH).unsqueeze(-1) % 2 == 0
    batch["next", "terminated"] = terminated
    telescoped, potential = (
        EigenReward(encoder, 4, mode=mode, gamma=gamma)(batch.clone())["option_reward"]
        for mode in ("telescoped", "potential")
    )
    f, f_next = (encoder.module(b["observation"])[:, 1:].detach() for b in (batch, batch["next"]))
    next_value = torch.randn(BATCH, 4).double()  # of any Q
    for b in range(BATCH):
        kept = 0.0 if terminated[b] else gamma ** float(steps[b])
        q = telescoped[b] + kept * next_value[b]
        u = potential[b] + kept * (next_value[b] + f_next[b])
        torch.testing.assert_close(u, q + f[b])


def test_potential_without_a_terminated_entry_takes_done():
    encoder, batch = make_encoder(), make_batch()
    batch["next", "done"] = torch.ones(BATCH, 1, dtype=torch.bool)
    reward = EigenReward(encoder, 4, mode="potential", gamma=0.9)(batch)["option_reward"]
    torch.testing.assert_close(reward, encoder.module(batch["next", "observation"])[:, 1:].detach())


@pytest.mark.parametrize("mode", ["telescoped", "potential"])
def test_a_single_step_is_an_argument_not_a_name(mode):
    encoder, batch = make_encoder(), make_batch()
    batch["steps_to_next_obs"] = torch.full((BATCH, 1), 3)
    batch["next", "terminated"] = torch.ones(BATCH, 1, dtype=torch.bool)
    single = make_batch()
    single["observation"] = batch["observation"]
    single["next", "terminated"] = torch.arange(BATCH).unsqueeze(-1) % 2 == 0
    batch["successor"] = single["next"].clone()
    rewards = [
        EigenReward(encoder, 3, mode=mode, gamma=0.9, single_step=True, successor=where)(data)
        for where, data in (("successor", batch), ("next", single))
    ]
    one_step = rewards[1]["option_reward"]
    torch.testing.assert_close(rewards[0]["option_reward"], one_step, rtol=0, atol=0)
    # Under another name the n steps still count, and with the argument they do not under the usual one.
    batch["steps_to_next_obs"] = single["steps_to_next_obs"] = torch.full((BATCH, 1), 3)
    for where, data in (("successor", batch), ("next", single)):
        several = EigenReward(encoder, 3, mode=mode, gamma=0.9, successor=where)(data)
        assert torch.equal(several["option_reward"], one_step) == (mode == "telescoped")
    again = EigenReward(encoder, 3, mode=mode, gamma=0.9, single_step=True)(single)
    assert torch.equal(again["option_reward"], one_step)


def test_a_stored_representation_is_taken_for_either_state():
    encoder, batch = make_encoder(), make_batch()
    stored = torch.randn(2, BATCH, WIDTH).double()
    batch["representation"], batch["next", "representation"] = stored
    reused = EigenReward(encoder, 3, reuse_representation=True)(batch.clone())["option_reward"]
    torch.testing.assert_close(reused, (stored[1] - stored[0])[:, 1:4])
    fresh = EigenReward(encoder, 3)(batch)["option_reward"]
    assert not torch.isclose(fresh, reused).any()


def test_potential_without_flags_ends_nowhere():
    encoder, batch = make_encoder(), make_batch()
    reward = EigenReward(encoder, 4, mode="potential", gamma=0.75)(batch)["option_reward"]
    expected = 0.25 * encoder.module(batch["next", "observation"])[:, 1:].detach()
    torch.testing.assert_close(reward, expected)


def test_a_missing_successor_is_named():
    with pytest.raises(KeyError, match="'successor', which the batch does not contain"):
        EigenReward(make_encoder(), 3, successor="successor")(make_batch())


def test_signs():
    encoder, batch = make_encoder(), make_batch()
    plus, minus, both = (
        EigenReward(encoder, 2, signs=signs)(batch.clone())["option_reward"]
        for signs in ("+", "-", "both")
    )
    torch.testing.assert_close(minus, -plus)
    torch.testing.assert_close(both, torch.cat([plus, -plus], -1))
    assert EigenReward(encoder, 2, signs="both").num_rewards == 4
    assert EigenReward(encoder, 2).num_rewards == 2


def test_uses_the_encoders_current_weights():
    encoder, batch = make_encoder(), make_batch()
    module = EigenReward(encoder, 3)
    before = module(batch)["option_reward"].clone()
    with torch.no_grad():
        encoder.module.weight.mul_(2)
    torch.testing.assert_close(module(batch)["option_reward"], 2 * before)


def test_reuses_a_stored_representation_only_when_asked():
    encoder, batch = make_encoder(), make_batch()
    fresh = EigenReward(encoder, 3)(batch.clone())["option_reward"]
    stored = encoder.module(batch["observation"]).detach()
    batch["representation"] = stored + 10
    torch.testing.assert_close(EigenReward(encoder, 3)(batch.clone())["option_reward"], fresh)
    reused = EigenReward(encoder, 3, reuse_representation=True)(batch.clone())["option_reward"]
    torch.testing.assert_close(reused, fresh - 10)
    without = batch.exclude("representation")
    again = EigenReward(encoder, 3, reuse_representation=True)(without)["option_reward"]
    torch.testing.assert_close(again, fresh)


def test_leaves_the_batch_as_it_was():
    encoder, batch = make_encoder(), make_batch()
    keys = set(batch.keys(True))
    EigenReward(encoder, 3)(batch)
    assert set(batch.keys(True)) - keys == {"option_reward"}


def test_runs_as_a_replay_transform():
    encoder = make_encoder()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
    buffer.append_transform(EigenReward(encoder, 3))
    buffer.extend(make_batch(20))
    first = buffer.sample()
    assert first["option_reward"].shape == (4, 3)
    assert "option_reward" not in buffer.storage.get(slice(0, 2)).keys()


def test_nested_keys():
    encoder = TensorDictModule(
        nn.Linear(2, WIDTH), in_keys=[("agent", "obs")], out_keys=[("agent", "f")]
    )
    batch = TensorDict(
        {"agent": {"obs": torch.randn(4, 2)}, "next": {"agent": {"obs": torch.randn(4, 2)}}}, [4]
    )
    reward = EigenReward(encoder, 3, reward_key=("agent", "r"))
    assert reward(batch)["agent", "r"].shape == (4, 3)
    assert reward.in_keys == [("agent", "obs"), ("next", "agent", "obs")]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_options": 0}, "num_options must be at least 1, got 0"),
        ({"signs": "?"}, "signs must be one of"),
        ({"mode": "summed"}, "mode must be one of"),
        ({"mode": "discounted"}, r"needs gamma in \[0, 1\], got None"),
        ({"mode": "discounted", "gamma": 1.5}, r"got 1.5"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        EigenReward(make_encoder(), **{"num_options": 3, **kwargs})


def test_too_narrow_an_encoder_is_named():
    with pytest.raises(
        ValueError,
        match="5 options with skip_first=True need an encoder of at least 6 dimensions, got 5",
    ):
        EigenReward(make_encoder(), 5)(make_batch())
    EigenReward(make_encoder(), 5, skip_first=False)(make_batch())


def test_a_missing_window_is_named():
    module = EigenReward(make_encoder(), 3, mode="discounted", gamma=0.9)
    with pytest.raises(KeyError, match="window=True"):
        module(make_batch().exclude("window"))


def test_an_encoder_with_two_outputs_is_refused():
    encoder = TensorDictModule(lambda x: (x, x), in_keys=["x"], out_keys=["a", "b"])
    with pytest.raises(ValueError, match="one out_key"):
        EigenReward(encoder, 1)


def test_every_key_that_is_read_is_named():
    encoder, batch = make_encoder(), make_batch()
    batch["steps_to_next_obs"] = torch.arange(BATCH).unsqueeze(-1) % 3 + 1
    batch["next", "terminated"] = torch.arange(BATCH).unsqueeze(-1) % 2 == 0
    batch["next", "done"] = torch.ones(BATCH, 1, dtype=torch.bool)
    reward = EigenReward(encoder, 3, mode="potential", gamma=0.9)
    expected = reward(batch.clone())["option_reward"]
    assert torch.equal(reward(batch.select(*reward.in_keys))["option_reward"], expected)
    assert {"steps_to_next_obs", ("next", "terminated"), ("next", "done")} < set(reward.in_keys)
    for key in ("steps_to_next_obs", ("next", "terminated")):
        assert not torch.equal(reward(batch.exclude(key))["option_reward"], expected)
    assert "steps_to_next_obs" not in EigenReward(encoder, 3, single_step=True).in_keys


def test_set_keys_renames_all_that_is_read_and_written():
    encoder, batch = make_encoder(), make_batch()
    batch["steps_to_next_obs"] = torch.full((BATCH, 1), 2)
    batch["next", "terminated"] = torch.arange(BATCH).unsqueeze(-1) % 2 == 0
    reward = EigenReward(encoder, 3, mode="potential", gamma=0.9)
    expected = reward(batch.clone())["option_reward"]
    reward.set_keys(
        successor="after", terminated="ended", steps_to_next_obs="m", option_reward=("a", "r")
    )
    batch["after"] = batch.pop("next")
    batch["after", "ended"] = batch["after"].pop("terminated")
    batch["m"] = batch.pop("steps_to_next_obs")
    assert torch.equal(reward(batch)["a", "r"], expected)
    assert ("after", "ended") in reward.in_keys and reward.out_keys == [("a", "r")]
    reward.set_keys(successor=None)
    assert reward.tensor_keys.successor == "next"
    with pytest.raises(ValueError, match="'sucessor' is no key of EigenReward: it has successor"):
        reward.set_keys(sucessor="next")


def test_dispatch_with_plain_tensors():
    encoder, batch = make_encoder(), make_batch()
    batch["next", "terminated"] = torch.arange(BATCH).unsqueeze(-1) % 2 == 0
    reward = EigenReward(encoder, 3, mode="potential", gamma=0.9)
    value = reward(
        observation=batch["observation"],
        next_observation=batch["next", "observation"],
        next_terminated=batch["next", "terminated"],
    )
    assert torch.equal(value, reward(batch)["option_reward"])


def test_discounted_single_steps_are_refused():
    with pytest.raises(
        ValueError, match='"discounted" differs from "telescoped" only over several'
    ):
        EigenReward(make_encoder(), 3, mode="discounted", gamma=0.9, single_step=True)
