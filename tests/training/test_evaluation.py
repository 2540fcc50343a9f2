"""Evaluations: greedy, or with a random action now and then; training does not notice either."""

from __future__ import annotations

import pytest
import torch
from same_state import same
from torchrl.envs import GymEnv
from training_runs import difference, final_state, rows

from torchrl_dceo._fast import fast_path
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import (
    StateCounts,
    find_transform,
    get_env_state,
    make_env,
    prepare_env,
    saves_state,
)
from torchrl_dceo.training import TrainConfig, train
from torchrl_dceo.training.collection.workers import with_transforms
from torchrl_dceo.training.evaluation import evaluate

# Half of the random walks of 20 steps meet the goal.
OPEN = "\n".join(["#######", "#S....#", "#.....#", "#....G#", "#######"])


def recorded(env, key="action"):
    """What reaches the environment at each step, gathered while it runs."""
    base = env.base_env
    seen, step = [], base._step

    def record(tensordict):
        seen.append(tensordict[key].clone())
        return step(tensordict)

    base._step = record
    return seen


def always(action):
    return lambda td: td.set("action", torch.full(td.batch_size, action))


@pytest.mark.parametrize("eps", [0.05, 0.3, 1.0])
def test_the_share_of_random_actions(eps):
    env = make_env(OPEN, batch_size=64, slip=0.0, coverage=True, max_steps=500, seed=0)
    seen = recorded(env)
    evaluate(always(2), env, eps=eps, generator=torch.Generator().manual_seed(0))
    actions = torch.stack(seen)
    assert actions.shape == (500, 64)
    shares = torch.bincount(actions.flatten(), minlength=4).double() / actions.numel()
    expected = torch.full((4,), eps / 4).double()
    expected[2] += 1 - eps
    deviation = (expected * (1 - expected) / actions.numel()).sqrt()
    assert ((shares - expected).abs() < 5 * deviation).all()
    # Each environment by itself: the number of random ones in a step is binomial, not all or none.
    per_step = (actions != 2).double().mean(1)
    spread = (0.75 * eps * (1 - 0.75 * eps) / 64) ** 0.5
    assert per_step.std() == pytest.approx(spread, rel=0.2)


def test_without_random_actions_nothing_is_drawn():
    env = make_env(OPEN, batch_size=4, slip=0.0, seed=0)
    seen, generator = recorded(env), torch.Generator().manual_seed(3)
    before = torch.get_rng_state(), generator.get_state()
    assert evaluate(always(3), env, generator=generator) == 0.0
    assert (torch.stack(seen) == 3).all()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(generator.get_state(), before[1])


def test_nine_goals_of_ten_are_at_least_nine_tenths():
    """In float32 the mean is 0.8999999761581421, and a run with solved_return=0.9 would not end."""
    env = make_env("S.G", batch_size=10, slip=0.0, max_steps=5, seed=0)

    def policy(td):  # the first environment walks against the wall
        right = torch.ones(10, dtype=torch.int64)
        right[0] = 3
        return td.set("action", right)

    assert evaluate(policy, env) == 0.9


def test_a_generator_of_its_own_leaves_torchs_alone_and_repeats():
    returns, before = [], torch.get_rng_state()
    for seed in (0, 0, 1):
        env = make_env(OPEN, batch_size=16, slip=0.0, seed=0, max_steps=30)
        seen = recorded(env)
        evaluate(always(0), env, eps=0.5, generator=torch.Generator().manual_seed(seed))
        returns.append(torch.stack(seen[:20]))
        torch.set_rng_state(before)  # building an environment may draw
    assert torch.equal(returns[0], returns[1]) and not torch.equal(returns[0], returns[2])
    env = make_env(OPEN, batch_size=16, slip=0.0, seed=0)
    before = torch.get_rng_state()
    evaluate(always(0), env, eps=0.5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_policy_that_is_stuck_gets_out():
    env = make_env("S..G", batch_size=16, slip=0.0, max_steps=200, seed=0)
    left = 3
    assert {float(evaluate(always(a), env)) for a in range(4)} == {0.0, 1.0}
    stuck = [a for a in range(4) if evaluate(always(a), env) == 0.0]
    assert left in stuck and len(stuck) == 3
    generator = torch.Generator().manual_seed(0)
    assert evaluate(always(stuck[0]), env, eps=0.8, generator=generator) > 0.9


def test_no_option_is_active_whatever_is_random():
    env = make_env("NineRooms", room_size=3, batch_size=5, max_steps=40, seed=0)
    agent = make_agent("dceo", env, num_options=2)
    for transform in agent.transforms:
        env = env.append_transform(transform)
    options, following = recorded(env, "option"), recorded(env, ("next", "option"))
    actions = recorded(env)
    evaluate(agent.policy, env, eps=0.5, generator=torch.Generator().manual_seed(0))
    assert len(options) == 40
    assert (torch.stack(options) == -1).all() and (torch.stack(following) == -1).all()
    # And they are not all greedy.
    env.reset()
    assert torch.stack(actions).unique().numel() == 4


CASES = [
    ("ddqn", "NineRooms", {"room_size": 3}),
    ("dceo", "NineRooms", {"room_size": 3, "visits": "counts"}),
    ("ez_greedy", "NineRooms", {"room_size": 3}),
    ("rainbow_dceo", "NineRooms", {"room_size": 3}),
    ("dceo", "EscapeRoom", {"room_size": 3}),
    ("dceo", "RubiksCube222", {"max_depth": 2}),
]


def evaluated(fast, agent_name, env_name, settings, eps=0.3):
    """All that an evaluation leaves: two of them, for what the first leaves to the second."""
    torch.manual_seed(0)
    env = make_env(env_name, batch_size=5, seed=0, max_steps=25, **settings)
    agent = make_agent(agent_name, env)
    env = with_transforms(prepare_env(env), agent.transforms)
    # What the policy has read and written, at every step.
    read = {"pixels", "observation", "option", "remaining", "is_init", "episode_reward"}
    read = sorted(read.intersection(env.observation_spec.keys()))
    seen = {key: recorded(env, key) for key in ["action", *read]}
    generator = torch.Generator().manual_seed(2)
    with fast_path(fast):
        returns = [evaluate(agent.policy, env, eps=eps, generator=generator) for _ in range(2)]
    counts = find_transform(env, StateCounts)
    visited = None if counts is None else counts.counts
    after = env.rollout(3)["action"]
    state = [generator.get_state(), torch.get_rng_state()]
    if saves_state(env):
        state.append(get_env_state(env))
    return {
        "seen": seen,
        "returns": returns,
        "visited": [] if counts is None else visited,
        "after": after,
        "state": state,
    }


@pytest.mark.parametrize(("agent_name", "env_name", "settings"), CASES)
def test_prepared_networks_and_direct_steps_change_nothing(agent_name, env_name, settings):
    fast, plain = (evaluated(way, agent_name, env_name, settings) for way in (True, False))
    actions, observed = (
        fast["seen"]["action"],
        fast["seen"]["pixels" if "pixels" in fast["seen"] else "observation"],
    )
    assert len(actions) > 20 and torch.stack(actions).unique().numel() > 1
    assert torch.stack(observed).unique(dim=0).shape[0] > 5
    assert same(fast, plain)


def test_the_prepared_networks_are_used_and_options_left_out(monkeypatch):
    env = make_env("NineRooms", room_size=3, batch_size=3, seed=0, max_steps=12)
    agent = make_agent("dceo", env)
    env = with_transforms(prepare_env(env), agent.transforms)
    calls = {"forward": 0, "options": 0}
    options, forward = agent.policy[1], type(agent.policy).forward
    prepared = type(options.module).prepared

    def counted(self, *args, **kwargs):
        calls["forward"] += 1
        return forward(self, *args, **kwargs)

    def counted_options(self, pixels):
        calls["options"] += 1
        return prepared(self, pixels)

    monkeypatch.setattr(type(agent.policy), "forward", counted)
    monkeypatch.setattr(type(options.module), "prepared", counted_options)
    with fast_path(True):
        evaluate(agent.policy, env)
    assert calls == {"forward": 0, "options": 0}
    with fast_path(False):
        evaluate(agent.policy, env)
    assert calls == {"forward": 12, "options": 0}


@pytest.mark.parametrize("watched", ["policy", "main", "options", "option network", "explorer"])
def test_a_hook_sees_every_step(watched):
    env = make_env("NineRooms", room_size=3, batch_size=3, seed=0, max_steps=12, coverage=True)
    agent = make_agent("dceo", env)
    env = with_transforms(prepare_env(env), agent.transforms)
    main, options, explorer = agent.policy
    network = next(m for m in options.modules() if isinstance(m, torch.nn.Linear))
    modules = {"policy": agent.policy, "main": main, "options": options, "explorer": explorer}
    calls = []
    {**modules, "option network": network}[watched].register_forward_hook(
        lambda *args: calls.append(1)
    )
    with fast_path(False):
        evaluate(agent.policy, env)
    expected = len(calls)
    assert expected >= 12
    with fast_path(True):
        evaluate(agent.policy, env)
    assert len(calls) == 2 * expected


def test_bad_values():
    env = make_env(OPEN, batch_size=2)
    with pytest.raises(ValueError, match=r"eps must lie in \[0, 1\], got 1.5"):
        evaluate(always(0), env, eps=1.5)
    with pytest.raises(ValueError, match=r"eval_eps must lie in \[0, 1\], got -0.1"):
        TrainConfig(eval_eps=-0.1)
    one_hot = GymEnv("CartPole-v1")
    with pytest.raises(TypeError, match="eps needs one categorical action per environment"):
        evaluate(lambda td: td.set("action", one_hot.action_spec.rand()), one_hot, eps=0.1)


def test_training_is_the_same_whatever_is_evaluated(runs, tmp_path):
    logs = []
    for eps in (0.0, 0.5):
        spec = {"name": OPEN, "env_settings": {"starts": "anywhere"}, "eval_eps": eps}
        runs.run(run_dir=tmp_path / str(eps), agent="dceo", frames=1200, **spec)
        logs.append(rows(tmp_path / str(eps)))
    assert [row.pop("eval_return") for row in logs[0]] != [
        row.pop("eval_return") for row in logs[1]
    ]
    assert logs[0] == logs[1]
    one, two = (final_state(tmp_path / str(eps)) for eps in (0.0, 0.5))
    for part in ("agent", "learning", "replay", "generators", "carrier"):
        assert difference(one[part], two[part]) is None


def test_a_resumed_run_evaluates_as_the_whole_one(runs, tmp_path):
    spec = {
        "agent": "dceo",
        "name": OPEN,
        "env_settings": {"starts": "anywhere"},
        "eval_eps": 0.5,
        "eval_period": 200,
    }
    runs.run(run_dir=tmp_path / "whole", frames=1200, **spec)
    runs.run(run_dir=tmp_path / "halves", frames=600, **spec)
    runs.run(run_dir=tmp_path / "halves", frames=1200, resume=True, **spec)
    assert rows(tmp_path / "whole") == rows(tmp_path / "halves")
    assert len({row["eval_return"] for row in rows(tmp_path / "whole")}) > 2
    whole, halves = (final_state(tmp_path / name) for name in ("whole", "halves"))
    assert difference(whole, halves) is None


def test_a_large_seed_evaluates():
    env = make_env("NineRooms", room_size=3, batch_size=2, seed=0)
    agent = make_agent("ddqn", env, batch_size=4)
    large = {"total_frames": 20, "learning_starts": 10, "log_period": 10, "eval_period": 10}
    row = train(agent, env, **large, eval_episodes=2, seed=2**62, progress=False)
    assert row["eval_return"] >= 0
