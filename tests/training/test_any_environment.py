"""Environments as others build them: returns without a RewardSum, one transform or none, more of them than
learning_starts; and what a phase, an evaluation and a discount must do."""

from __future__ import annotations

import pytest
import torch
from clock_env import Clock
from faulty_env import Faulty, faulty
from tensordict import TensorDict
from torchrl.envs import InitTracker, TransformedEnv
from training_runs import rows

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer, train
from torchrl_dceo.training.collection.workers import with_transforms
from torchrl_dceo.training.evaluation import evaluate
from torchrl_dceo.training.logging.metrics import RunMetrics

SMALL = {"num_options": 2, "dimensions": 3, "batch_size": 8, "network": "mlp"}
FIELDS = {
    "total_frames": 400,
    "update_period": 8,
    "learning_starts": 40,
    "replay_capacity": 2000,
    "log_period": 40,
    "progress": False,
}


def make_trainer(env, run_dir=None, name="ddqn", **config) -> Trainer:
    torch.manual_seed(0)
    small = SMALL if name.startswith("dceo") else {"batch_size": 8, "network": "mlp"}
    agent = make_agent(name, env, **small)
    return Trainer(agent, env, TrainConfig(**{**FIELDS, **config}), run_dir=run_dir)


# Returns


def slow_returns(reward, done):
    """Episode by episode, step by step: the reference."""
    found, so_far = [], [0.0] * len(reward)
    for step in range(reward.shape[1]):
        for env in range(len(reward)):
            so_far[env] += float(reward[env, step])
            if done[env, step]:
                found.append(so_far[env])
                so_far[env] = 0.0
    return found


@pytest.mark.parametrize("lengths", [[40], [1] * 40, [3, 7, 20, 10]])
def test_returns_are_summed_across_batches_and_rows(lengths):
    reward, done = torch.randn(5, 40), torch.rand(5, 40) < 0.15
    metrics, means, counts, start = RunMetrics(), [], [], 0
    for length in lengths:
        part = slice(start, start + length)
        start += length
        steps = {"reward": reward[:, part, None], "done": done[:, part, None]}
        metrics.collected(TensorDict({"next": TensorDict(steps, [5, length])}, [5, length]))
        if start % 4 == 0 or start == 40:  # a row now and then
            row = metrics.row()
            means.append(row["train_return"])
            counts.append(row["episodes"])
    total = sum(mean * count for mean, count in zip(means, counts, strict=True) if count)
    expected = slow_returns(reward, done)
    assert sum(counts) == len(expected) > 10
    assert total == pytest.approx(sum(expected), abs=1e-4)


def test_batches_of_single_workers_and_replaced_ones():
    """Each stream has a sum of its own, and an episode that was given up leaves nothing in the next one."""
    metrics = RunMetrics()

    def collected(streams, reward, done, begins):
        shape = [len(streams), 2]
        values = {"reward": torch.tensor(reward), "done": torch.tensor(done)}
        values = {key: value.view(*shape, 1) for key, value in values.items()}
        data = TensorDict({"next": values, "is_init": torch.tensor(begins).view(*shape, 1)}, shape)
        metrics.collected(data, streams)

    collected([2, 3], [[1.0, 1.0], [5.0, 5.0]], [[False] * 2] * 2, [[True, False]] * 2)
    collected([0, 1], [[2.0, 2.0], [3.0, 3.0]], [[False, True], [False] * 2], [[True, False]] * 2)
    assert metrics.row()["train_return"] == 4.0
    # The workers of streams 2 and 3 are replaced: what they had is forgotten.
    collected([2, 3], [[7.0, 7.0], [9.0, 9.0]], [[False, True], [True, False]], [[True, False]] * 2)
    collected([0, 1], [[1.0, 1.0], [4.0, 4.0]], [[False] * 2, [False, True]], [[False] * 2] * 2)
    assert metrics.row()["train_return"] == pytest.approx((14.0 + 9.0 + 14.0) / 3)


def test_the_log_has_true_returns_without_a_reward_sum(tmp_path):
    """An episode of seven steps that pay 1 has return 7, as the RewardSum says; those cut at the start have less."""
    with_sum, without = (tmp_path / name for name in ("a", "b"))
    make_trainer(faulty(), with_sum).run()
    make_trainer(faulty(returns=False), without).run()
    columns = [[row["train_return"] for row in rows(folder)] for folder in (with_sum, without)]
    assert columns[0] == columns[1] and "7.0" in columns[0]


@pytest.mark.parametrize("row", [True, False])
def test_a_restored_state_knows_unfinished_episodes(row):
    """Saved in mid-episode, after a row of the log or between two."""
    first, second = RunMetrics(), RunMetrics()

    def collected(metrics, rewards, ends):
        values = {"reward": torch.tensor(rewards), "done": torch.tensor(ends)}
        values = {key: value.view(1, -1, 1) for key, value in values.items()}
        shape = [1, len(rewards)]
        metrics.collected(TensorDict({"next": TensorDict(values, shape)}, shape))

    collected(first, [1.0, 2.0, 4.0], [False, True, False])
    if row:
        assert first.row()["train_return"] == 3.0
    second.load_state(first.state())
    collected(second, [8.0], [True])
    assert second.row()["train_return"] == (12.0 if row else (3.0 + 12.0) / 2)


def test_unfinished_returns_are_in_the_checkpoint(tmp_path):
    """Rows end in mid-episode: the resumed run knows what the episodes had."""
    make_trainer(faulty(returns=False), tmp_path / "whole").run()
    env = faulty(returns=False)
    make_trainer(env, tmp_path / "cut", total_frames=200).run()
    again = make_trainer(faulty(returns=False), tmp_path / "cut")
    assert again.resume() == 200
    again.run()
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


def test_several_rewards_have_no_return():
    metrics = RunMetrics()
    steps = {"reward": torch.ones(2, 3, 4), "done": torch.ones(2, 3, 1, dtype=torch.bool)}
    metrics.collected(TensorDict({"next": TensorDict(steps, [2, 3])}, [2, 3]))
    row = metrics.row()
    assert row["episodes"] == 6 and row["train_return"] != row["train_return"]


# Transforms


@pytest.mark.parametrize("name", ["ddqn", "dceo"])
@pytest.mark.parametrize(
    "wrap", [lambda env: env, lambda env: TransformedEnv(env, InitTracker())], ids=["bare", "one"]
)
def test_an_environment_with_one_transform_or_none(tmp_path, name, wrap):
    env = wrap(Faulty((4,)))
    trainer = make_trainer(env, tmp_path, name)
    seen = []
    take = trainer._take

    def record(data, streams):
        seen.append(data.clone())
        take(data, streams)

    trainer._take = record
    row = trainer.run()
    assert row["frames"] == 400 and row["updates"] == 45 and row["train_return"] > 0
    if name == "dceo":
        data = torch.cat(seen, -1)
        # Options last: the primer that carries them is at work.
        kept = (data["option"][:, 1:] == data["option"][:, :-1]) & (data["option"][:, 1:] >= 0)
        assert float((kept & ~data["option_start"][:, 1:]).float().mean()) > 0.2


def test_a_bare_environment_gets_the_primer():
    """Appending to an environment without transforms makes a new one."""
    agent = make_agent("dceo", make_env("NineRooms", room_size=3, batch_size=4), **SMALL)
    env = with_transforms(Clock((4,)), agent.transforms)
    assert {"option", "is_init"} <= set(env.reset().keys())


def bare(batch_size, seed):
    env = Clock(batch_size)
    env.set_seed(seed)
    return env


def test_a_bare_environment_in_workers():
    env = Clock((4,))
    agent = make_agent("ddqn", env, batch_size=8, network="mlp")
    row = train(
        agent,
        env,
        **{**FIELDS, "log_period": 100},
        collector="multi_sync",
        worker_env=bare,
        worker_steps=10,
    )
    assert row["frames"] == 400


def test_more_environments_than_learning_starts():
    """The first batch is one step of each, none of which can be sampled yet."""
    env = make_env("NineRooms", room_size=3, batch_size=128, seed=0)
    agent = make_agent("ddqn", env)
    row = train(
        agent,
        env,
        total_frames=128 * 4,
        update_period=4,
        learning_starts=100,
        log_period=128,
        checkpoint_period=None,
        progress=False,
    )
    assert row["frames"] == 512 and row["updates"] == (512 - 128) // 4


def test_an_agent_for_other_observations_is_refused():
    agent = make_agent("ddqn", make_env("NineRooms", room_size=3))
    with pytest.raises(
        ValueError, match=r"does not fit the environment, whose observations are .*pix"
    ):
        train(agent, make_env("NineRooms"), total_frames=100)
    env = make_env("NineRooms", room_size=3)
    state = torch.get_rng_state()
    Trainer(agent, env, TrainConfig(total_frames=10))
    assert torch.equal(torch.get_rng_state(), state)  # the check draws nothing


# Phases, evaluation, discounts


def test_the_replay_is_emptied_between_the_phases():
    envs = [
        make_env("NineRooms", room_size=3, batch_size=4, seed=0, coverage=coverage)
        for coverage in (False, True)
    ]
    agent = make_agent("dceo_two_phase", envs[0], discovery_frames=200, num_options=2, dimensions=3)
    config = TrainConfig(total_frames=240, learning_starts=100, log_period=40, progress=False)
    trainer = Trainer(agent, envs[0], config, discovery_env=envs[1])
    held = []
    real = trainer.replay.extend

    def extend(data, **kwargs):
        held.append((trainer.counters.phase, len(trainer.replay)))
        return real(data, **kwargs)

    trainer.replay.extend = extend
    trainer.run()
    assert max(length for phase, length in held if phase == 0) > 150
    assert next(length for phase, length in held if phase == 1) == 0
    assert len(trainer.replay) <= 40
    assert (
        trainer.counters.updates == (200 - 100) // config.update_period
    )  # none of the few steps after it


@pytest.mark.parametrize("name", ["ddqn", "dceo", "ez_greedy"])
def test_evaluation_is_greedy(name):
    """With ε = 1 a policy that explores would not go right five times in a row in all of 64 environments."""
    torch.manual_seed(0)
    env = make_env("S....G", batch_size=64, slip=0.0, max_steps=5)
    agent = make_agent(name, env, **({"network": "mlp"} if name == "ddqn" else {}))
    with torch.no_grad():
        last = [p for p in agent.policy[0].parameters() if p.dim() == 1][-1]
        for parameter in agent.policy[0].parameters():
            parameter.zero_()
        last.copy_(torch.tensor([0.0, 1.0, 0.0, 0.0]))  # to the right
    assert float(agent.explorer.eps) == 1.0
    trainer = Trainer(agent, env, TrainConfig(total_frames=64, progress=False))
    assert evaluate(agent.policy, trainer.env) == 1.0


@pytest.mark.parametrize("name", ["ddqn", "dceo"])
@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_the_main_loss_discounts_by_the_agents_gamma(name, gamma):
    """All values are 3: the error of a step with reward 1 that leads on is 1 + 3γ^m - 3, in closed form."""
    env = make_env("NineRooms", room_size=3, batch_size=2)
    agent = make_agent(name, env, gamma=gamma)
    main = agent.objectives["main"]
    with torch.no_grad():
        for group in (main.value_network_params, main.target_value_network_params):
            for key, parameter in group.items(True, True):
                parameter.fill_(3.0 if "bias" in key[-1] and parameter.numel() == 4 else 0.0)
    ends = {key: torch.zeros(6, 1, dtype=torch.bool) for key in ("done", "terminated")}
    images = torch.zeros(6, *env.observation_spec["pixels"].shape[1:], dtype=torch.uint8)
    steps = torch.tensor([[1], [2], [3], [1], [2], [5]])
    next_td = TensorDict({"pixels": images, "reward": torch.ones(6, 1), **ends}, [6])
    batch = TensorDict(
        {
            "pixels": images,
            "action": torch.zeros(6, dtype=torch.int64),
            "steps_to_next_obs": steps,
            "next": next_td,
        },
        [6],
    )
    error = 1 + 3 * gamma**steps - 3.0
    expected = torch.nn.functional.smooth_l1_loss(error, torch.zeros_like(error))
    torch.testing.assert_close(main(batch)["loss"], expected)


def test_rainbows_main_loss_discounts_by_the_agents_gamma():
    env = make_env("NineRooms", room_size=3, batch_size=2)
    agent = make_agent("rainbow", env, gamma=0.5)
    assert float(agent.objectives["main"].gamma) == agent.replay.gamma == 0.5
