"""Settings of ``dceo`` and its kin that the other tests of agents leave at their defaults."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tensordict import TensorDict

from torchrl_dceo._fast import fast_path
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer

# Of collected steps [4, 5] without an option.
NO_OPTIONS = {
    "option": torch.full((4, 5), -1),
    "option_start": torch.zeros(4, 5, dtype=torch.bool),
}


def trained(name: str, **settings) -> Trainer:
    torch.manual_seed(0)
    env = make_env("NineRooms", room_size=3, batch_size=4, max_steps=20, seed=0)
    agent = make_agent(name, env, batch_size=16, num_options=2, **settings)
    config = TrainConfig(
        total_frames=400,
        learning_starts=200,
        update_period=32,
        log_period=400,
        progress=False,
        replay_capacity=400,
    )
    coverage = make_env("NineRooms", room_size=3, batch_size=4, max_steps=20, seed=1, coverage=True)
    trainer = Trainer(agent, env, config, discovery_env=coverage)
    trainer.run()
    return trainer


@pytest.mark.parametrize("objective", ["generalized", "graph_drawing", "allo", "omm"])
@pytest.mark.parametrize(
    ("pair_steps", "read", "other"), [(1, "successor", "later"), (7, "later", "successor")]
)
def test_the_laplacian_learns_from_pairs_so_many_steps_apart(objective, pair_steps, read, other):
    trainer = trained("dceo", objective=objective, pair_steps=pair_steps)
    batch, loss = trainer.replay.sample(), trainer.agent.objectives["laplacian"]
    assert loss.in_keys == ["pixels", (read, "pixels")]
    one_step = torch.equal(batch[read, "pixels"], batch["successor", "pixels"])
    assert one_step == (pair_steps == 1)
    smoothness = float(loss(batch.clone())["smoothness"])
    if other in batch.keys():
        batch[other, "pixels"] = torch.zeros_like(batch["pixels"])
    assert float(loss(batch.clone())["smoothness"]) == pytest.approx(smoothness) and smoothness > 0
    batch[read, "pixels"] = batch["pixels"]
    assert float(loss(batch)["smoothness"]) == 0


@pytest.mark.parametrize("settings", [{"n_steps": 3}, {"prioritized": True}])
def test_options_climb_from_one_step_to_the_next_whatever_the_pairs(settings):
    trainer = trained("dceo", pair_steps=7, **settings)
    batch = trainer.replay.sample()
    reward = trainer.agent.objectives["reward"]
    expected = reward(batch.select("pixels", "successor"))["option_reward"]
    batch["later", "pixels"] = torch.zeros_like(batch["pixels"])
    trainer.agent.objectives["laplacian"](batch)
    torch.testing.assert_close(reward(batch)["option_reward"], expected)


def test_pairs_apart_in_two_phases():
    trainer = trained("dceo_two_phase", pair_steps=7, discovery_frames=300)
    assert ("later", "pixels") in trainer.agent.objectives["laplacian"].in_keys


def test_pairs_must_be_apart():
    with pytest.raises(ValueError, match="pair_steps must be at least 1, got 0"):
        trained("dceo", pair_steps=0)


def test_epsilon_falls_after_discovery():
    env = make_env("NineRooms", room_size=3, seed=0)
    agent = make_agent(
        "dceo_two_phase",
        env,
        discovery_frames=300,
        eps_frames=100,
        eps_end=0.2,
        eps_after_reward=False,
        eps_per="decision",
    )
    explorer = agent.explorer
    explorer.step(300)
    assert float(explorer.eps) == 1
    explorer.step(50)
    assert float(explorer.eps) == pytest.approx(0.6)


@pytest.mark.parametrize("name", ["dceo", "ez_greedy"])
def test_epsilon_falls_from_the_first_reward_on(name):
    env = make_env("NineRooms", room_size=3, batch_size=4, max_steps=20, seed=0)
    agent = make_agent(name, env, eps_frames=100, eps_patience=None)
    pixels, reward = env.rollout(5)["pixels"], torch.zeros(4, 5, 1)
    for step in range(10):
        reward[2, 3] = 1.0 * (step == 6)
        collected = {"pixels": pixels, **NO_OPTIONS, "next": {"reward": reward}}
        agent.collected(TensorDict(collected, [4, 5]))
        assert (float(agent.explorer.eps) == 1) == (step < 7)
    assert agent.explorer.began == 140
    at_once = make_agent(name, env, eps_frames=100, eps_after_reward=False)
    free = {"pixels": pixels, **NO_OPTIONS, "next": {"reward": torch.zeros(4, 5, 1)}}
    at_once.collected(TensorDict(free, [4, 5]))
    assert float(at_once.explorer.eps) < 1


@pytest.mark.parametrize("name", ["dceo", "ez_greedy"])
def test_epsilon_starts_anew_where_rewards_stop(name):
    env = make_env("NineRooms", room_size=3, batch_size=4, max_steps=20, seed=0)
    agent = make_agent(name, env, eps_frames=100, eps_patience=0.5)
    pixels = env.rollout(5)["pixels"]
    eps = []
    for step in range(12):
        rewarded = step in (0, 1)
        reward = torch.full((4, 5, 1), float(rewarded))
        collected = {"pixels": pixels, **NO_OPTIONS, "next": {"reward": reward}}
        agent.collected(TensorDict(collected, [4, 5]))
        eps.append(float(agent.explorer.eps))
    # It falls to its end, and after greedy steps for half of the 100 frames of the decay it waits for a reward again.
    given_up = next(step for step, (a, b) in enumerate(pairwise(eps), 1) if a < b)
    assert eps[0] == 1 and all(a >= b for a, b in pairwise(eps[:given_up]))
    assert eps[given_up - 1] < 0.1 and eps[given_up:] == [1] * (12 - given_up)
    assert (
        given_up >= 7
    )  # 20 frames each: the decay ends at step 5, and 50 greedy steps take three more
    for settings in ({"eps_patience": None}, {"eps_after_reward": False}):
        assert make_agent(name, env, **settings).explorer.reward_patience is None


@pytest.mark.parametrize(
    ("reward", "terminated", "falls"),
    [(1.0, True, True), (-1.0, False, True), (-1.0, True, False), (0.0, True, False)],
)
def test_a_penalty_that_ends_the_episode_is_nothing_to_exploit(reward, terminated, falls):
    env = make_env("NineRooms", room_size=3, batch_size=4, max_steps=20, seed=0)
    agent = make_agent("dceo", env, eps_frames=100)
    ending = torch.zeros(4, 5, 1, dtype=torch.bool)
    ending[1, 4] = terminated
    rewards = torch.zeros(4, 5, 1)
    rewards[1, 4] = reward
    following = {"reward": rewards, "terminated": ending}
    collected = {"pixels": env.rollout(5)["pixels"], **NO_OPTIONS, "next": following}
    agent.collected(TensorDict(collected, [4, 5]))
    assert (agent.explorer.began == 20) == falls


def is_even(batch, replay):
    """Whether every distinct observation was drawn alike, by the spread of its counts."""
    _, counts = batch["pixels"].flatten(1).unique(dim=0, return_counts=True)
    return bool(counts.double().std() < 2 * (len(batch) / replay.num_distinct) ** 0.5)


@pytest.mark.parametrize("settings", [{"replay_measure": "visits"}, {"prioritized": True}])
def test_the_laplacian_learns_from_distinct_observations_if_told(settings):
    trainer = trained("dceo", laplacian_measure="distinct", **settings)
    replay, agent = trainer.replay, trainer.agent
    batch = replay.sample(4000)
    # Where an agent stands long, it is drawn often for the learner and no more often than elsewhere for the Laplacian.
    assert not is_even(batch, replay) and is_even(batch["uniform"], replay)
    seen = []
    agent.objectives["laplacian"].register_forward_hook(lambda _, inputs, out: seen.append(inputs))
    batch = replay.sample()
    with fast_path(
        False
    ):  # past autograd no forward is called; tests/_fast compares what it computes with this
        agent.update(batch, agent.phases[0])
    assert torch.equal(seen[0][0]["pixels"], batch["uniform", "pixels"])
    assert "representation" in batch["uniform"].keys()


def test_everything_learns_from_distinct_observations_by_default():
    trainer = trained("dceo")
    batch = trainer.replay.sample(4000)
    assert "uniform" not in batch.keys() and is_even(batch, trainer.replay)
    assert trainer.replay._sampler.newest == 10 and trainer.replay._sampler.by_action
    plain = trained("dceo", replay_newest=None, replay_by_action=False).replay._sampler
    assert plain.newest is None and not plain.by_action


def test_the_laplacian_learns_from_visits_if_told():
    trainer = trained("dceo", laplacian_measure="visits")
    batch = trainer.replay.sample(4000)
    assert is_even(batch, trainer.replay) and not is_even(batch["uniform"], trainer.replay)


def test_visits_are_the_papers():
    trainer = trained("dceo", replay_measure="visits")
    batch = trainer.replay.sample(4000)
    assert "uniform" not in batch.keys()
    with pytest.raises(RuntimeError, match="does not track distinct observations"):
        trainer.replay.sample_distinct()


@pytest.mark.parametrize("measure", ["visits", "distinct"])
@pytest.mark.parametrize("pair_steps", [1, 7])
def test_rewards_follow_the_eigenfunctions_that_ritz_finds(measure, pair_steps):
    trainer = trained(
        "dceo",
        ritz_period=2,
        pair_steps=pair_steps,
        laplacian_measure=measure,
        replay_measure="visits",
        objective="graph_drawing",
    )
    agent = trainer.agent
    assert list(agent.objectives)[1:4] == ["laplacian", "ritz", "reward"]
    ritz = agent.objectives["ritz"].ritz
    assert ritz.solved > 0 and ritz.weight > 0
    batch = trainer.replay.sample()
    reward = agent.objectives["reward"]
    expected = reward(batch.select("pixels", "successor", "next"))["option_reward"].clone()
    # The encoder of the rewards is the network and the rotation after it.
    network = agent.objectives["laplacian"].encoder_network.module
    functions = ritz(network(batch["pixels"]))
    torch.testing.assert_close(reward.encoder(batch.select("pixels"))["representation"], functions)
    assert (functions - network(batch["pixels"])).abs().max() > 1e-3
    # What passes through the objectives has the same rewards, taken from what they leave in the batch.
    agent.objectives["ritz"].period = 10**6
    own = batch["uniform"] if measure == "distinct" else batch
    agent.objectives["laplacian"](own)
    agent.objectives["ritz"](own)
    torch.testing.assert_close(reward(batch)["option_reward"], expected)


def test_ritz_is_saved_with_the_agent():
    agent = trained("dceo", ritz_period=2).agent
    other = trained("dceo", ritz_period=5).agent
    other.load_state_dict(agent.state_dict())
    a, b = (one.objectives["ritz"].ritz for one in (agent, other))
    assert torch.equal(a.rotation, b.rotation) and torch.equal(a.moments, b.moments)


@pytest.mark.parametrize("settings", [{}, {"objective": "graph_drawing"}, {"objective": "allo"}])
def test_the_automatic_barrier_follows_the_agents_own_batches_and_is_saved(settings):
    agent = trained("dceo", barrier="auto", **settings).agent
    loss = agent.objectives["laplacian"]
    automatic = loss.automatic_barrier
    assert automatic.weight > 0 and automatic.moments.shape == (3, 3)
    assert float(loss.barrier) == pytest.approx(float(automatic.value))
    # A fresh agent, which has seen no batch, takes it over.
    torch.manual_seed(1)
    env = make_env("NineRooms", room_size=3, batch_size=4, seed=0)
    other = make_agent("dceo", env, batch_size=16, num_options=2, barrier="auto", **settings)
    other.load_state_dict(agent.state_dict())
    taken = other.objectives["laplacian"].automatic_barrier
    assert torch.equal(taken.moments, automatic.moments) and taken.value == automatic.value


@pytest.mark.parametrize(("name", "usual"), [("dceo", 0.1), ("dco", 0.1), ("rainbow_dceo", 0.5)])
def test_a_number_is_the_agents_barrier_unless_it_is_automatic(name, usual):
    env = make_env("NineRooms", room_size=3, seed=0)
    given = {} if name == "dco" else {"num_options": 2}
    for barrier, expected in ((None, usual), (0.3, 0.3)):
        chosen = given if barrier is None else {**given, "barrier": barrier}
        loss = make_agent(name, env, **chosen).objectives["laplacian"]
        assert loss.barrier == expected and loss.automatic_barrier is None
    automatic = make_agent(name, env, **given, barrier="auto").objectives["laplacian"]
    assert automatic.automatic_barrier is not None
    with pytest.raises(ValueError, match="barrier is 'automatic' \\(did you mean 'auto'\\?\\)"):
        make_agent(name, env, **given, barrier="automatic")
