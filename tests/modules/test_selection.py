from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Categorical

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import GridWorldEnv, make_env
from torchrl_dceo.modules import DirectedSelection, EigenReward, OptionExplorationModule
from torchrl_dceo.modules.selection import uniform_selection


def make_selection(d: int = 2, signs="both", **settings) -> DirectedSelection:
    """Of options that follow the observation's own entries."""
    encoder = TensorDictModule(nn.Identity(), in_keys=["observation"], out_keys=["representation"])
    reward = EigenReward(encoder, d, skip_first=False, signs=signs)
    return DirectedSelection(reward, **settings)


def states(*values: list[float]) -> TensorDict:
    return TensorDict({"observation": torch.tensor(values)}, [len(values)])


def options(n: int) -> TensorDict:
    return TensorDict({"option": torch.full((n,), -1)}, [n])


def test_probabilities_are_those_of_the_running_mean():
    """Against a plain loop over the collected states, with a mean that forgets."""
    select = make_selection(d=3, strength=2.0, horizon=50)
    observed = torch.randn(40, 8, 3, generator=torch.Generator().manual_seed(0)) + 0.5
    mean, weight = torch.zeros(3), 0.0
    for batch in observed:
        select.observe(TensorDict({"observation": batch}, [8]))
        kept = (1 - 1 / 50) ** 8
        mean = kept * mean + (1 - kept) * batch.mean(0)
        weight = kept * weight + 1 - kept
    m = mean / weight
    weights = torch.exp(-2.0 * torch.cat([m, -m]))
    torch.testing.assert_close(select.probabilities, weights / weights.sum())


def test_draws_have_these_probabilities():
    select = make_selection(strength=1.0)
    select.observe(states([0.8, -0.3]))
    torch.manual_seed(0)
    n = 100_000
    share = select(options(n), 4).bincount(minlength=4) / n
    p = select.probabilities
    assert ((share - p).abs() < 4 * (p * (1 - p) / n).sqrt()).all()
    assert p.max() > 2 * p.min()  # a uniform draw would fail


def test_without_strength_or_states_the_choice_is_uniform():
    torch.testing.assert_close(make_selection().probabilities, torch.full((4,), 0.25))
    select = make_selection(strength=0.0)
    select.observe(states([5.0, -3.0]))
    torch.testing.assert_close(select.probabilities, torch.full((4,), 0.25))


@pytest.mark.parametrize("signs", ["+", "-", "both"])
def test_options_towards_the_other_end_of_a_corridor_are_preferred(signs):
    """f along a corridor whose left end was visited: the option to the right end, whatever sign it follows."""
    select = make_selection(d=1, signs=signs)
    along = torch.linspace(-1.5, 1.5, 11).unsqueeze(-1)
    select.observe(TensorDict({"observation": along[:3].repeat(100, 1)}, [300]))
    if signs == "both":
        assert select.probabilities[0] > 0.99
    else:  # the only option there is
        assert select.probabilities.tolist() == [1.0]
    # Later the right end, for several horizons.
    for _ in range(100):
        select.observe(TensorDict({"observation": along[-3:].repeat(100, 1)}, [300]))
    if signs == "both":
        assert select.probabilities[1] > 0.99


def test_batches_of_any_shape_count_frame_by_frame():
    one, other = make_selection(), make_selection()
    batch = torch.randn(4, 6, 2)
    one.observe(TensorDict({"observation": batch}, [4, 6]))
    other.observe(TensorDict({"observation": batch.view(24, 2)}, [24]))
    single = make_selection()
    single.observe(TensorDict({"observation": batch[0, 0]}, []))  # one step without a batch
    torch.testing.assert_close(single.mean / single.weight, torch.cat([batch[0, 0], -batch[0, 0]]))
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.weight, other.weight)


def test_probabilities_are_saved_with_the_policy():
    select = make_selection()
    explore = OptionExplorationModule(Categorical(4), num_options=4, selection=select)
    select.observe(states([1.0, 0.0]))
    fresh = OptionExplorationModule(Categorical(4), num_options=4, selection=make_selection())
    fresh.load_state_dict(explore.state_dict())
    torch.testing.assert_close(fresh.selection.probabilities, select.probabilities)
    assert not any("encoder" in name for name in explore.state_dict())


def test_an_observed_batch_leaves_generators_and_batch_alone():
    select, batch = make_selection(), states([1.0, 2.0], [0.0, 1.0])
    before, keys = torch.get_rng_state(), set(batch.keys())
    select.observe(batch)
    assert torch.equal(before, torch.get_rng_state()) and set(batch.keys()) == keys


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": -1.0}, "strength must not be negative, got -1.0"),
        ({"strength": float("nan")}, "strength must not be negative, got nan"),
        ({"horizon": 0}, "horizon must be at least 1 frame, got 0"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        make_selection(**settings)


def test_another_number_of_options_is_an_error():
    with pytest.raises(ValueError, match="must be the 4 of the reward, got 3"):
        make_selection()(options(2), 3)


def test_dceo_observes_what_it_collects():
    env = GridWorldEnv("S...G", seed=0)
    torch.manual_seed(0)
    agent = make_agent("dceo", env, num_options=2, termination=None)
    select = agent.explorer.selection
    assert isinstance(select, DirectedSelection)
    batch = env.rollout(8)
    agent.collected(batch)
    expected = copy.deepcopy(select)
    expected.mean.zero_(), expected.weight.zero_()
    expected.observe(batch)
    torch.testing.assert_close(select.probabilities, expected.probabilities)
    assert select.weight > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"direction": 0.0},
        {"replay_measure": "visits"},
        {"laplacian_measure": "visits"},
        {"selection": uniform_selection},
    ],
)
def test_dceo_chooses_uniformly_if_asked_or_if_f_cannot_tell(settings):
    agent = make_agent("dceo", make_env("NineRooms", room_size=3), **settings)
    assert agent.explorer.selection is uniform_selection
    observing = [getattr(observe, "__self__", None) for observe in agent.observers]
    assert not any(isinstance(one, DirectedSelection) for one in observing)
