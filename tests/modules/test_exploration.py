from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from clock_env import ACTIONS, explorers_env
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from tensordict.nn import TensorDictSequential as Seq
from torch import nn
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import Bounded, Categorical, Composite, OneHot
from torchrl.envs.utils import ExplorationType, check_env_specs, set_exploration_type
from torchrl.modules import QValueActor

from torchrl_dceo.modules import EigenReward, OptionExplorationModule, OptionQValueActor
from torchrl_dceo.modules.exploration import value_termination

OPTIONS = 3


def module(**kwargs) -> OptionExplorationModule:
    kwargs = {"num_options": OPTIONS, **kwargs}
    return OptionExplorationModule(Categorical(ACTIONS), **kwargs)


def make_input(*shape: int, option: int = -1, is_init: bool = False, num_options: int = OPTIONS):
    """Main learner: action 0. Option o: action o + 1."""
    values = torch.zeros(*shape, num_options, ACTIONS)
    values[..., torch.arange(num_options), (torch.arange(num_options) + 1) % ACTIONS] = 1.0
    return TensorDict(
        {
            "action": torch.zeros(shape, dtype=torch.int64),
            "option": torch.full(shape, option),
            "option_action_value": values,
            "is_init": torch.full((*shape, 1), is_init),
        },
        shape,
    )


def advance(td: TensorDict, explore) -> TensorDict:
    """One step of behaviour without an environment: the state continues, the main learner says 0 again."""
    td = explore(td)
    out = td.clone()
    td.update({"option": td["next", "option"], "action": torch.zeros_like(td["action"])})
    td["is_init"] = torch.zeros_like(td["is_init"])
    return out


def test_shares_of_exploration_options_and_random_actions():
    """ε, μ and the uniform choices, over 200,000 fresh decisions."""
    explore = module(eps_init=0.3, eps_end=0.3, option_prob=0.8)
    n = 200_000
    td = explore(make_input(n, is_init=True))
    starts = td["option_start"]
    share = starts.float().mean().item()
    assert abs(share - 0.24) < 4 * (0.24 * 0.76 / n) ** 0.5
    torch.testing.assert_close(starts, td["option"] >= 0)
    torch.testing.assert_close(td["next", "option"], td["option"])
    counts = torch.bincount(td["option"][starts], minlength=OPTIONS).float()
    expected = starts.sum() / OPTIONS
    assert (
        (counts - expected).square() / expected
    ).sum() < 13.8  # chi-square, 2 degrees, p = 0.001
    torch.testing.assert_close(td["action"][starts], td["option"][starts] + 1)
    # Of the others, the share ε(1-μ)/(1-εμ) takes a uniformly random action, the rest the greedy one, which is 0.
    other = td["action"][~starts]
    random_share = 0.3 * 0.2 / (1 - 0.24)
    for action in range(1, ACTIONS):
        frequency = (other == action).float().mean().item()
        p = random_share / ACTIONS
        assert abs(frequency - p) < 4 * (p * (1 - p) / other.numel()) ** 0.5


@pytest.mark.parametrize("duration", [1, 4, 10])
def test_option_lengths_are_geometric_with_mean_d(duration):
    """Measured over more than 2e5 steps of options, without episode ends."""
    explore = module(eps_init=1.0, eps_end=1.0, option_prob=1.0, option_duration=duration)
    envs, steps = 200, 1200
    td = make_input(envs, is_init=True)
    starts = torch.stack([advance(td, explore)["option_start"] for _ in range(steps)], -1)
    lengths = torch.cat([s.nonzero().flatten().diff() for s in starts])
    assert lengths.sum() > 2e5
    assert abs(lengths.float().mean().item() - duration) <= 0.02 * duration
    survival = torch.tensor([(lengths > k).float().mean() for k in range(1, 6)])
    expected = (1 - 1 / duration) ** torch.arange(1, 6)
    torch.testing.assert_close(survival, expected, rtol=0, atol=0.015)


@pytest.mark.parametrize(("option_prob", "duration"), [(1.0, 10), (0.5, 4)])
@pytest.mark.parametrize("eps", [0.1, 0.6])
def test_a_share_of_epsilon_of_all_steps_explores(option_prob, duration, eps):
    explore = module(
        eps_init=eps, eps_end=eps, option_prob=option_prob, option_duration=duration, eps_per="step"
    )
    td = make_input(2000, is_init=True)
    for _ in range(100):  # it starts with no option anywhere: until the share has settled
        advance(td, explore)
    options = torch.stack([advance(td, explore)["option"] >= 0 for _ in range(300)], -1)
    # Options are the share μD / (μD + 1 - μ) of the steps that explore.
    expected = eps * option_prob * duration / (option_prob * duration + 1 - option_prob)
    by_environment = options.float().mean(-1)
    deviation = by_environment.std().item() / len(by_environment) ** 0.5
    assert abs(by_environment.mean().item() - expected) < 5 * deviation < 0.02


def test_decisions_fall_linearly_to_the_share_of_steps():
    explore = module(eps_end=0.1, option_prob=1.0, annealing_num_steps=100, eps_per="step")
    explore.step(50)
    last = 0.1 / (0.1 + 0.9 * 10)  # options of ten steps
    assert float(explore.eps) == pytest.approx((1 + last) / 2)
    explore.step(50)
    assert float(explore.eps) == pytest.approx(last)


def test_at_epsilon_one_every_step_explores():
    explore = module(eps_init=1.0, eps_end=1.0, option_prob=1.0, eps_per="step")
    td = make_input(100, is_init=True)
    assert all((advance(td, explore)["option"] >= 0).all() for _ in range(50))


def test_an_active_option_acts_until_it_ends_and_ends_with_its_episode():
    explore = module(eps_init=0.0, eps_end=0.0, option_duration=float("inf"))
    td = explore(make_input(5, option=2))
    assert (td["action"] == 3).all() and (td["option"] == 2).all() and not td["option_start"].any()
    td = explore(make_input(5, option=2, is_init=True))
    assert (td["action"] == 0).all() and (td["option"] == -1).all()


def test_across_episodes_an_option_outlives_its_own():
    explore = module(eps_init=0.0, eps_end=0.0, option_duration=float("inf"), across_episodes=True)
    td = explore(make_input(5, option=2, is_init=True).exclude("is_init"))
    assert (td["action"] == 3).all() and (td["option"] == 2).all() and not td["option_start"].any()


def test_option_eps_makes_some_actions_random():
    explore = module(option_duration=float("inf"), option_eps=0.2)
    action = explore(make_input(100_000, option=0))["action"]
    # The option's own action, 1, is also drawn by chance.
    assert abs((action == 1).float().mean().item() - (0.8 + 0.2 / ACTIONS)) < 0.006
    assert abs((action == 3).float().mean().item() - 0.2 / ACTIONS) < 0.003


def test_option_eps_falls_along_with_epsilon():
    settings = {"eps_init": 1.0, "eps_end": 0.5, "annealing_num_steps": 100, "annealing_start": 10}
    explore = module(option_duration=float("inf"), option_eps=0.2, option_eps_init=1.0, **settings)
    for frames, eps in ((0, 1.0), (10, 1.0), (50, 0.6), (50, 0.2), (50, 0.2)):
        explore.step(frames)
        n = 100_000
        share = (explore(make_input(n, option=0))["action"] == 1).float().mean().item()
        p = 1 - eps + eps / ACTIONS
        assert abs(share - p) < 4 * (p * (1 - p) / n) ** 0.5, frames
    explore = module(option_duration=float("inf"), option_eps_init=1.0, **settings)
    assert not (explore(make_input(1000, option=0))["action"] == 1).all()
    explore.step(110)
    assert (explore(make_input(1000, option=0))["action"] == 1).all()


def test_annealed_option_eps_is_saved_and_a_constant_one_is_not():
    first, second = (module(option_eps_init=1.0, annealing_num_steps=10) for _ in range(2))
    first.step(4)
    # A collector's reference to the buffer, by which workers get it.
    held = second.state_dict(keep_vars=True)["annealed_option_eps"]
    second.load_state_dict(first.state_dict())
    assert held.item() == pytest.approx(0.6)
    second.step(1)
    assert held.item() == pytest.approx(0.5)
    assert "annealed_option_eps" not in module(option_eps=0.2).state_dict()


def test_option_prob_zero_is_epsilon_greedy_and_one_never_acts_at_random():
    td = module(eps_init=1.0, eps_end=1.0, option_prob=0.0)(make_input(50_000))
    assert (td["option"] == -1).all()
    assert (torch.bincount(td["action"], minlength=ACTIONS) / 50_000 - 0.25).abs().max() < 0.01
    td = module(eps_init=1.0, eps_end=1.0, option_prob=1.0)(make_input(1000))
    assert (td["option"] >= 0).all() and (td["action"] == td["option"] + 1).all()


def test_a_single_option():
    explore = module(num_options=1, eps_init=1.0, eps_end=1.0, option_prob=1.0)
    assert (explore(make_input(100, num_options=1))["option"] == 0).all()


@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_every_batch_shape(shape):
    explore = module(option_prob=1.0)
    td = explore(make_input(*shape))
    assert td["option"].shape == td["action"].shape == td["option_start"].shape == shape
    assert td["option"].dtype == torch.int64
    assert (td["action"] == td["option"] + 1).all()


def test_environments_of_a_batch_draw_independently():
    explore = module(eps_init=0.5, eps_end=0.5, option_prob=0.5)
    td = make_input(2, is_init=True)
    first, second = torch.stack(
        [explore(td.clone())["option_start"] for _ in range(4000)]
    ).T.float()
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1].item()) < 0.07


@pytest.mark.parametrize(
    "kind", [ExplorationType.DETERMINISTIC, ExplorationType.MODE, ExplorationType.MEAN]
)
def test_deterministic_exploration_is_the_greedy_main_learner(kind):
    with set_exploration_type(kind):
        td = module()(make_input(100, option=1))
    assert (td["action"] == 0).all() and (td["option"] == -1).all()
    assert (td["next", "option"] == -1).all() and not td["option_start"].any()


def test_one_hot_actions():
    explore = OptionExplorationModule(OneHot(ACTIONS), num_options=OPTIONS, option_prob=1.0)
    td = make_input(9)
    td["action"] = nn.functional.one_hot(td["action"], ACTIONS)
    td = explore(td)
    assert td["action"].shape == (9, ACTIONS)
    assert (td["action"].sum(-1) == 1).all()
    assert (td["action"].to(torch.int64).argmax(-1) == td["option"] + 1).all()


def test_pluggable_selection_and_termination():
    always_last = lambda td, num_options: torch.full(td.shape, num_options - 1)  # noqa: E731
    by_option = lambda td, option: (option == 2).float()  # noqa: E731
    explore = module(option_prob=1.0, eps_end=1.0, selection=always_last, termination=by_option)
    assert (explore(make_input(50))["option"] == 2).all()
    assert not explore(make_input(50, option=1))["option_start"].any()
    assert explore(make_input(50, option=2))["option_start"].all()


def test_value_termination_ends_where_no_value_is_positive():
    explore = module(termination=value_termination, eps_init=0.0, eps_end=0.0)
    td = make_input(2, option=1)
    td["option_action_value"][1] = -1.0
    assert explore(td)["option"].tolist() == [1, -1]


def test_epsilon_falls_linearly_from_a_given_step_on():
    explore = module(eps_init=1.0, eps_end=0.1, annealing_num_steps=90, annealing_start=10)
    trace = []
    for _ in range(12):
        trace.append(round(explore.eps.item(), 4))
        explore.step(10)
    assert trace == [1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1]


@pytest.mark.parametrize("start", [0, 30])
def test_epsilon_waits_for_the_first_reward(start):
    """It falls from the first reward on, from annealing_start at the earliest, and a second reward changes nothing."""
    explore = module(
        eps_end=0.0, annealing_num_steps=100, annealing_start=start, wait_for_reward=True
    )
    trace = []
    for step in range(8):
        explore.step(10, rewarded=step in (2, 5))
        trace.append(round(explore.eps.item(), 4))
    assert trace == [1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
    late = module(eps_end=0.0, annealing_num_steps=100, annealing_start=60, wait_for_reward=True)
    late.step(10, rewarded=True)
    assert not late.waits_for_reward
    late.step(60)
    assert late.eps.item() == pytest.approx(0.9)


def test_epsilon_starts_anew_where_rewards_stop():
    explore = module(eps_end=0.0, annealing_num_steps=100, wait_for_reward=True, reward_patience=30)
    # A decision to explore takes so many steps, a greedy one takes one.
    length = explore.option_prob * explore.option_duration + 1 - explore.option_prob
    trace, eps, unrewarded, began = [], 1.0, 0.0, None
    for step in range(60):
        # Only greedy steps count; a reward starts the count again.
        rewarded = step in (1, 2, 40)
        unrewarded = 0.0 if rewarded else unrewarded + 10 * (1 - eps) / (eps * length + 1 - eps)
        if rewarded and began is None:
            began = step
        if unrewarded > 30:
            unrewarded, began = 0.0, None
        eps = 1.0 if began is None else max(0.0, 1 - (step - began) / 10)
        explore.step(10, rewarded=rewarded)
        assert explore.waits_for_reward
        assert explore.eps.item() == pytest.approx(eps, abs=1e-6)
        trace.append(round(eps, 1))
    # Both decays come to their end, and 30 greedy steps later ε is as at first: without options' lengths at a half.
    assert trace[:12] == [1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]
    (first, second) = (i for i, (a, b) in enumerate(pairwise(trace)) if a < b)
    assert (
        trace[first] == trace[second] == 0
        and first < 16
        and trace[first + 1 : 41] == [1] * (40 - first)
    )
    # At ε = 0 all frames count: 30 of them.
    settled = module(eps_end=0.0, annealing_num_steps=1, wait_for_reward=True, reward_patience=30)
    settled.step(10, rewarded=True)
    settled.step(10, rewarded=True)
    settled.step(30)
    assert settled.eps.item() == 0
    settled.step(1)
    assert settled.eps.item() == 1
    never = module(eps_end=0.0, annealing_num_steps=100, wait_for_reward=True)
    never.step(10, rewarded=True)
    never.step(1000)
    assert never.eps.item() == 0


def test_patience_is_saved():
    settings = {"annealing_num_steps": 100, "wait_for_reward": True, "reward_patience": 30}
    first, second = module(**settings), module(**settings)
    first.step(10, rewarded=True)
    first.step(20)
    second.load_state_dict(first.state_dict())
    trace = []
    for _ in range(40):
        first.step(5)
        second.step(5)
        assert first.eps == second.eps
        trace.append(float(first.eps))
    assert trace[0] < 1 and trace[-1] == 1 > min(trace)


def test_patience_needs_a_reward_to_wait_for():
    with pytest.raises(ValueError, match="reward_patience=5 has no effect without wait_for_reward"):
        module(reward_patience=5)
    with pytest.raises(ValueError, match="reward_patience must be at least 1 frame, got 0"):
        module(wait_for_reward=True, reward_patience=0)


def test_waiting_for_the_first_reward_is_saved():
    first, second = (module(annealing_num_steps=10, wait_for_reward=True) for _ in range(2))
    first.step(4, rewarded=True)
    second.load_state_dict(first.state_dict())
    first.step(2)
    second.step(2)
    assert first.eps == second.eps and float(first.eps) == pytest.approx(0.82)


def test_epsilon_is_saved():
    first, second = module(annealing_num_steps=10), module(annealing_num_steps=10)
    first.step(4)
    second.load_state_dict(first.state_dict())
    first.step(1)
    second.step(1)
    assert first.eps == second.eps != 1.0


def test_goes_on_identically_after_saving_and_loading_mid_option(tmp_path):
    explore = module(option_prob=0.7, option_duration=4, eps_init=0.6, eps_end=0.6)
    td = make_input(20, is_init=True)
    for _ in range(5):
        advance(td, explore)
    assert (td["option"] >= 0).any()
    td.memmap(tmp_path / "carrier")
    rng, weights = torch.get_rng_state(), explore.state_dict()
    first = torch.stack([advance(td, explore)["action"] for _ in range(50)])
    torch.set_rng_state(rng)
    restored = module(option_prob=0.7, option_duration=4, eps_init=0.6, eps_end=0.6)
    restored.load_state_dict(weights)
    td = TensorDict.load_memmap(tmp_path / "carrier").clone()
    second = torch.stack([advance(td, restored)["action"] for _ in range(50)])
    torch.testing.assert_close(first, second, rtol=0, atol=0)


# --- in the collector -------------------------------------------------------------------------------------------------


def make_policy(**kwargs):
    torch.manual_seed(3)
    spec = Categorical(ACTIONS)
    main = QValueActor(nn.Linear(2, ACTIONS), in_keys=["observation"], spec=spec)
    net = nn.Sequential(nn.Linear(2, OPTIONS * ACTIONS), nn.Unflatten(-1, (OPTIONS, ACTIONS)))
    options = OptionQValueActor(net, num_options=OPTIONS, in_keys=["observation"], spec=spec)
    explore = module(**kwargs)
    return Seq(main, options, explore), explore


@pytest.mark.parametrize("batch_size", [(), (3,), (2, 2)])
def test_option_travels_through_the_collector(batch_size):
    """The option that acts continues to the next step, and never across the end of an episode."""
    policy, explore = make_policy(eps_init=0.8, eps_end=0.8, option_prob=0.8, option_duration=5)
    env = explorers_env(explore, batch_size)
    check_env_specs(env)
    frames = 500 * max(env.numel(), 1)
    collector = Collector(env, policy, frames_per_batch=frames, total_frames=frames)
    data = next(iter(collector))
    collector.shutdown()
    option, is_init = data["option"], data["is_init"].squeeze(-1)
    assert option.shape == data.shape == (*batch_size, 500)
    torch.testing.assert_close(data["next", "option"], option)
    goes_on = (option[..., 1:] >= 0) & ~data["option_start"][..., 1:]
    assert goes_on.float().mean() > 0.2
    torch.testing.assert_close(option[..., 1:][goes_on], option[..., :-1][goes_on])
    # Whatever acts on the first step of an episode has started there.
    first = is_init & (option >= 0)
    assert first.any() and data["option_start"][first].all()
    # And while an option acts, its own greedy action is taken.
    acting = option >= 0
    values = data["option_action_value"][acting]
    greedy = values[torch.arange(len(values)), option[acting]].argmax(-1)
    torch.testing.assert_close(data["action"][acting], greedy)


@pytest.mark.parametrize("batch_size", [(), (3,), (2, 2)])
def test_an_option_travels_on_through_the_ends_of_episodes(batch_size):
    """Without an end of its own an option lasts for ever; with one its lengths are geometric, whatever the episodes."""
    sure = {"eps_init": 1.0, "eps_end": 1.0, "option_prob": 1.0, "across_episodes": True}
    for duration in (float("inf"), 20):
        torch.manual_seed(0)
        policy, explore = make_policy(**sure, option_duration=duration)
        env = explorers_env(explore, batch_size)
        check_env_specs(env)
        assert (env.reset()["option"] == -1).all()
        frames = 400 * max(env.numel(), 1)
        data = next(iter(Collector(env, policy, frames_per_batch=frames, total_frames=frames)))
        assert data["is_init"].float().mean() > 0.1  # episodes of seven steps
        starts = data["option_start"]
        if duration == 20:
            share, error = 1 / 20, (0.05 * 0.95 / frames) ** 0.5
            assert abs(starts.float().mean() - share) < 4 * error
        else:
            assert starts[..., 0].all() and not starts[..., 1:].any()
            assert (data["option"] == data["option"][..., :1]).all()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_collectors_actions_change_after_an_update(workers):
    """Also the weights of worker processes follow, those of the main learner and those of the options, and ε."""
    policy, explore = make_policy(
        eps_init=1.0, eps_end=0.0, annealing_num_steps=10, option_prob=1.0
    )
    kwargs = {"frames_per_batch": 100, "total_frames": 400}
    if workers == 1:
        collector = Collector(explorers_env(explore), policy, **kwargs)
    else:
        makers = [lambda: explorers_env(explore)] * workers
        collector = MultiSyncCollector(makers, policy, cat_results=0, **kwargs)
    main, options = policy[0], policy[1]

    def force(linear: nn.Linear, action: int):
        with torch.no_grad():
            linear.weight.zero_()
            linear.bias.zero_()
            linear.bias.view(-1, ACTIONS)[:, action] = 1.0

    actions = []
    for i, data in enumerate(collector):
        actions.append(data["action"].reshape(-1))
        if i == 0:  # every step is an option's: only the options' weights matter
            force(options.module.module[0], 2)
        elif i == 1:
            force(options.module.module[0], 1)
        elif i == 2:  # ε falls to 0: the main learner acts as soon as the running option ends
            explore.step(10)
            force(main.module[0].module, 3)
        collector.update_policy_weights_()
    collector.shutdown()
    assert (actions[1] == 2).all()
    assert (actions[2] == 1).all()
    assert (actions[3] == 3).float().mean() > 0.8


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"option_prob": 1.5}, r"option_prob must lie in \[0, 1\], got 1.5"),
        ({"eps_init": -0.1, "eps_end": -0.1}, r"eps_init must lie in \[0, 1\], got -0.1"),
        ({"eps_init": 0.1, "eps_end": 0.5}, "eps_end must not exceed eps_init"),
        ({"option_duration": 0.5}, "option_duration must be at least 1 step, got 0.5"),
        ({"option_eps": 2}, r"option_eps must lie in \[0, 1\], got 2"),
        ({"option_eps_init": 2}, r"option_eps_init must lie in \[0, 1\], got 2"),
        (
            {"option_eps_init": 0.1, "option_eps": 0.2},
            "option_eps must not exceed option_eps_init, got 0.2 > 0.1",
        ),
        ({"num_options": 0}, "num_options must be at least 1, got 0"),
        ({"annealing_num_steps": 0}, "annealing_num_steps must be at least 1, got 0"),
        ({"annealing_start": -1}, "annealing_start must not be negative, got -1"),
        ({"eps_per": "frame"}, r"eps_per must be one of \('decision', 'step'\), got 'frame'"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        module(**kwargs)


def test_a_continuous_action_spec_is_refused():
    with pytest.raises(TypeError, match="got Bounded"):
        OptionExplorationModule(Bounded(-1, 1, (2,)), num_options=3)


@pytest.mark.parametrize(
    ("key", "fix"), [("option", "make_tensordict_primer"), ("is_init", "InitTracker")]
)
def test_a_missing_transform_is_named(key, fix):
    with pytest.raises(KeyError, match=fix):
        module()(make_input(2).exclude(key))


def test_a_misshapen_termination_is_named():
    explore = module(termination=lambda td, option: torch.ones(*option.shape, 1))
    with pytest.raises(ValueError, match="one probability per environment"):
        explore(make_input(4))


def test_modules_accept_a_batched_or_composite_spec():
    spec = Composite(action=Categorical(ACTIONS, shape=(5,)), shape=(5,))
    assert OptionExplorationModule(spec, num_options=2).num_actions == ACTIONS


def masked_input(n: int, **kwargs) -> TensorDict:
    """Environments in which every second one allows action 1 alone beside the first."""
    td = make_input(n, **kwargs)
    mask = torch.ones(n, ACTIONS, dtype=torch.bool)
    mask[::2] = False
    mask[::2, :2] = True
    return td.set("action_mask", mask)


@pytest.mark.parametrize("option_prob", [0.0, 1.0])
def test_masked_actions_are_never_taken(option_prob):
    """Random actions uniformly among those allowed; options greedily among those allowed."""
    n = 40_000
    explore = module(option_prob=option_prob, option_eps=0.5, action_mask_key="action_mask")
    assert "action_mask" in explore.in_keys
    td = explore(masked_input(n, is_init=True))
    assert td["action_mask"].gather(-1, td["action"].unsqueeze(-1)).all()
    if option_prob == 0.0:
        for start, allowed in ((0, 2), (1, ACTIONS)):
            counts = torch.bincount(td["action"][start::2], minlength=ACTIONS)[:allowed]
            expected, deviation = n / 2 / allowed, (n / 2 / allowed * (1 - 1 / allowed)) ** 0.5
            assert (counts - expected).abs().max() < 4.5 * deviation
    else:
        greedy = module(option_prob=1.0, action_mask_key="action_mask")(masked_input(n))
        # Option o's best action is o + 1; where it is not allowed, the first of those that are (all worth 0).
        best = greedy["option"] + 1
        allowed = greedy["action_mask"].gather(-1, best.unsqueeze(-1)).squeeze(-1)
        assert torch.equal(greedy["action"], torch.where(allowed, best, 0))


def test_a_missing_or_misshapen_mask_is_named():
    explore = module(action_mask_key="action_mask")
    with pytest.raises(KeyError, match=r"'action_mask', .* append TorchRL's ActionMask\(\)"):
        explore(make_input(3, is_init=True))
    td = make_input(3, is_init=True).set("action_mask", torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"boolean and of shape \(3, 4\), got torch.float32"):
        explore(td)


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        (torch.zeros(3, 1, dtype=torch.int64), r"shape \(3,\), got torch.int64 of shape \(3, 1\)"),
        (torch.zeros(3), r"one int64 option per environment, .* got torch.float32"),
        (torch.tensor([0, 3, 1]), "options from 0 to 2, got 0 to 3"),
        (torch.tensor([0, -1, 1]), "options from 0 to 2, got -1 to 1"),
    ],
)
def test_what_a_selection_returns_is_checked(selected, message):
    explore = module(option_prob=1.0, selection=lambda td, count: selected)
    with pytest.raises(ValueError, match=message):
        explore(make_input(3, is_init=True))


def test_dispatch_with_plain_tensors():
    td = make_input(5, is_init=True)
    torch.manual_seed(1)
    expected = module(option_prob=1.0)(td.clone())
    torch.manual_seed(1)
    action, option, following, start = module(option_prob=1.0)(
        action=td["action"],
        option_action_value=td["option_action_value"],
        option=td["option"],
        is_init=td["is_init"],
    )
    assert torch.equal(action, expected["action"]) and torch.equal(option, expected["option"])
    assert torch.equal(following, option) and start.all()


def climb_values(mode: str) -> tuple[TensorDict, EigenReward]:
    """A corridor of five states, f rising along it: exact values of the option that climbs f, with discount 0.9.

    Actions: 0 stays, 1 goes down, 2 goes up. At the top nothing is to be gained.
    """
    f = torch.tensor([-2.0, -1.0, 0.5, 1.0, 1.5])
    moves = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 1, 2, 3], [1, 2, 3, 4, 4]]).T
    encoder = TensorDictModule(lambda s: f[s].unsqueeze(-1), ["state"], ["representation"])
    reward = EigenReward(encoder, 1, skip_first=False, mode=mode, gamma=0.9, single_step=True)
    s, successor = torch.arange(5)[:, None].expand(5, 3), moves
    batch = TensorDict({"state": s, "next": {"state": successor}}, [5, 3])
    step = reward(batch)["option_reward"].squeeze(-1)
    values = torch.zeros(5, 3)
    for _ in range(200):
        values = step + 0.9 * values.amax(-1)[successor]
    return TensorDict(
        {"state": torch.arange(5), "option_action_value": values[:, None]}, [5]
    ), reward


@pytest.mark.parametrize("mode", ["telescoped", "potential"])
def test_value_termination_ends_an_option_at_its_top(mode):
    """Under the potential mode values are Q + f(s), which are positive at the top: f(s) is what to compare with."""
    td, reward = climb_values(mode)
    option = torch.zeros(5, dtype=torch.int64)
    top = torch.tensor([False, False, False, False, True])
    td["option_action_value"] = td["option_action_value"].round(decimals=4)
    assert torch.equal(value_termination(td, option, reward=reward), top)
    plain = value_termination(td, option)
    assert torch.equal(plain, top) == (mode == "telescoped")


def test_value_termination_with_both_signs():
    td, _ = climb_values("potential")
    f = td["option_action_value"].amax(-1)
    encoder = TensorDictModule(lambda s: f[s], ["state"], ["representation"])
    reward = EigenReward(encoder, 1, skip_first=False, mode="potential", gamma=0.9, signs="both")
    values = torch.stack(
        [f.expand(5, 3), -f.expand(5, 3)], 1
    )  # exactly f and -f: nothing to be gained
    td["option_action_value"] = values
    for option in (0, 1):
        assert value_termination(td, torch.full((5,), option), reward=reward).all()
    td["option_action_value"] = values + 0.01
    assert not value_termination(td, torch.ones(5, dtype=torch.int64), reward=reward).any()
