"""What is particular to ``counts``, ``rnd``, ``ez_greedy`` and ``diayn``."""

from __future__ import annotations

import pytest
import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import StateCounts, find_transform, make_env
from torchrl_dceo.training import TrainConfig, Trainer


def build_env(**settings):
    settings = {"visits": "counts", **settings}
    return make_env("NineRooms", room_size=3, batch_size=16, max_steps=20, seed=0, **settings)


def collected(agent, env, frames: int = 640, **train) -> Trainer:
    train = {"learning_starts": 10**6, "update_period": 32, "progress": False, **train}
    trainer = Trainer(
        agent,
        env,
        TrainConfig(total_frames=frames, **train),
        discovery_env=build_env(coverage=True),
    )
    trainer.run()
    return trainer


# counts


def test_counts_adds_the_bonus_of_the_environments_counts_of_now():
    env = build_env()
    agent = make_agent("counts", env, bonus_scale=0.1)
    trainer = collected(agent, env)
    table = find_transform(env, StateCounts).counts
    assert table.sum() > 600
    for _ in range(2):
        batch = trainer.replay.sample()
        n = table[batch["next", "state_id"]].clamp(min=1).float()
        expected = batch["next", "reward"][:, 0] + 0.1 / n.sqrt()
        torch.testing.assert_close(
            agent.objectives["bonus"](batch)["next", "reward"][:, 0], expected
        )
        table += 1000  # states become familiar after the transitions were stored


@pytest.mark.parametrize("name", ["counts", "rnd"])
def test_the_mean_bonus_is_reported(name):
    env = build_env()
    agent = make_agent(name, env, bonus_scale=0.1)
    batch = collected(agent, env).replay.sample()
    before = batch["next", "reward"].clone()
    outputs = agent.update(batch, agent.phases[0])
    added = (batch["next", "reward"] - before).mean() / 0.1
    assert 0 < float(outputs["bonus"]) == pytest.approx(float(added), rel=1e-4)


def test_counts_needs_counts():
    with pytest.raises(ValueError, match="visits='counts'"):
        make_agent("counts", build_env(visits=None))


def test_counts_with_coverage_too():
    agent = make_agent("counts", build_env(visits="coverage"))
    assert list(agent.objectives) == ["centring", "bonus", "main"]


def test_main_learner_learns_from_the_bonus():
    """Without any reward from the environment, values rise with β."""
    values = {}
    for scale in (0.0, 1.0):
        torch.manual_seed(0)
        env = build_env()
        agent = make_agent("counts", env, bonus_scale=scale, lr=1e-3)
        trainer = collected(agent, env, learning_starts=100, update_period=16)
        batch = trainer.replay.sample()
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            values[scale] = agent.policy[0](batch)["chosen_action_value"].mean()
    assert values[1.0] > values[0.0] + 0.05


# rnd


def test_rnd_statistics_count_each_update_once_and_are_saved():
    env = build_env()
    agent = make_agent("rnd", env, batch_size=8)
    trainer = collected(agent, env, learning_starts=320)
    updates = trainer.counters.updates
    bonus = agent.objectives["bonus"]
    assert updates == 10
    assert bonus.normalizer.count == bonus.errors.count == 8 * updates
    assert bonus.normalizer.mean.shape == (3, 13, 13)
    torch.manual_seed(1)
    fresh = make_agent("rnd", build_env(), batch_size=8)
    fresh.load_state_dict(agent.state_dict())
    batch = trainer.replay.sample()
    assert torch.equal(
        fresh.objectives["bonus"](batch.clone())["bonus"], bonus(batch.clone())["bonus"]
    )


def test_rnd_trains_the_predictor_and_never_the_random_network():
    env = build_env()
    agent = make_agent("rnd", env)
    predictor, target = (
        getattr(agent.objectives["bonus"], name).state_dict() for name in ("predictor", "target")
    )
    before = {k: v.clone() for k, v in predictor.items()}, {k: v.clone() for k, v in target.items()}
    collected(agent, env, learning_starts=100)
    weights = [key for key in target if "layers" in key]
    assert weights and all(torch.equal(target[key], before[1][key]) for key in weights)
    assert not any(torch.equal(predictor[key], before[0][key]) for key in weights)


def test_rnd_reads_vectors_too():
    env = make_env("S.....\n......", observation="xy", batch_size=16, max_steps=20, seed=0)
    agent = make_agent("rnd", env)
    trainer = Trainer(
        agent,
        env,
        TrainConfig(total_frames=640, learning_starts=100, update_period=32, progress=False),
    )
    row = trainer.run()
    assert row["loss_predictor"] > 0


# ez_greedy


def test_ez_greedy_repeats_actions_with_probability_mu():
    shares = {}
    for mu in (0.0, 0.9):
        env = build_env()
        trainer = collected(make_agent("ez_greedy", env, option_prob=mu), env, log_period=640)
        shares[mu] = trainer.last_row["option_share"]
    assert shares[0.0] == 0.0
    assert shares[0.9] > 0.85


# diayn


def test_diayn_stores_the_skill_and_learns_where_it_led():
    trainer = collected(make_agent("diayn", build_env(), num_options=3), build_env())
    batch = trainer.replay.sample()
    skills = set(batch["option"].tolist())
    assert skills <= {-1, 0, 1, 2} and len(skills) > 2
    assert trainer.agent.objectives["discriminator"].in_keys == [
        "option",
        ("successor", "pixels"),
    ]


def test_diayn_discovers_without_reward_then_keeps_its_skills():
    agent = make_agent("diayn", build_env(), discovery_frames=500, eps_after_reward=False)
    discovery, learning = agent.phases
    assert (discovery.frames, discovery.reward_free, learning.reward_free) == (500, True, False)
    assert tuple(discovery.objectives) == ("centring", "discriminator", "reward", "option")
    assert tuple(learning.objectives) == ("centring", "main")
    agent.explorer.step(500)
    assert float(agent.explorer.eps) == 1.0
    agent.explorer.step(1000)
    assert float(agent.explorer.eps) < 1.0


def test_the_predictor_of_rnd_learns_at_the_next_state():
    """Its loss and gradient depend on s', and not at all on s."""
    env = make_env("NineRooms", room_size=3, batch_size=8, seed=0)
    agent = make_agent("rnd", env)
    loss = agent.objectives["predictor"]
    agent.objectives["bonus"].normalizer.update(
        torch.rand(64, *env.observation_spec["pixels"].shape[1:])
    )
    batch = env.rollout(4, break_when_any_done=False).reshape(-1)

    def gradient(changed: str | None) -> torch.Tensor:
        data = batch.clone()
        if changed is not None:
            where = data if changed == "root" else data["next"]
            where["pixels"] = 255 - where["pixels"]
        loss.zero_grad()
        loss(data)["loss_predictor"].backward()
        return torch.cat([p.grad.flatten() for p in loss.parameters() if p.grad is not None])

    before = gradient(None)
    assert before.abs().sum() > 0
    assert torch.equal(gradient("root"), before)
    assert not torch.allclose(gradient("next"), before)


def test_the_bonus_of_rnd_is_that_of_the_next_state():
    """It depends on s', and not at all on s."""
    env = make_env("NineRooms", room_size=3, batch_size=8, seed=0)
    bonus = make_agent("rnd", env).objectives["bonus"]
    bonus.normalizer.update(torch.rand(64, *env.observation_spec["pixels"].shape[1:]))
    bonus.eval()
    batch = env.rollout(4, break_when_any_done=False).reshape(-1)
    root, following = batch.clone(), batch.clone()
    root["pixels"] = 255 - root["pixels"]
    following["next", "pixels"] = 255 - following["next", "pixels"]
    expected = bonus(batch.clone())["bonus"]
    assert torch.equal(bonus(root)["bonus"], expected)
    assert not torch.allclose(bonus(following)["bonus"], expected)
