"""Steps past the collector: the same transitions, the same random draws, the same step to come."""

from __future__ import annotations

import pytest
import torch
from same_state import same
from tensordict import assert_close
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, TransformedEnv

from torchrl_dceo._fast import fast_path
from torchrl_dceo._fast.rollout import DirectRollout, reason_against
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import ActionNoise, find_transform, make_env
from torchrl_dceo.envs.transforms import StateCounts
from torchrl_dceo.training import TrainConfig, Trainer, collection
from torchrl_dceo.training.collection.workers import with_transforms

BATCHES = 60


def make_collector(
    agent_name: str, env_name: str, num_envs: int | None, per_batch: int, **settings
):
    torch.manual_seed(0)
    env = make_env(env_name, seed=1, batch_size=() if num_envs is None else num_envs, **settings)
    agent = make_agent(agent_name, env)
    env = with_transforms(env, agent.transforms)
    collector = Collector(
        env,
        agent.policy,
        frames_per_batch=per_batch * (num_envs or 1),
        total_frames=-1,
        device="cpu",
        use_buffers=False,
        return_same_td=True,
        no_cuda_sync=True,
        track_traj_ids=False,
    )
    return agent, env, collector


CASES = [
    ("ddqn", "NineRooms", None, 4, {"max_steps": 7}),
    ("dceo", "NineRooms", None, 4, {"max_steps": 7}),
    ("dceo", "NineRooms", 8, 1, {"max_steps": 9, "visits": "counts"}),
    ("dceo", "NineRooms", 3, 2, {"max_steps": 5, "visits": "coverage", "step_counter": True}),
    ("ez_greedy", "NineRooms", 2, 3, {"max_steps": 6}),
    ("dceo", "RubiksCube222", 4, 2, {"max_steps": 6, "max_depth": 3}),
    ("ddqn", "NineRoomsGoalSwitch", 2, 2, {"max_steps": 8, "switch_steps": 30}),
]


@pytest.mark.parametrize(("agent_name", "env_name", "num_envs", "per_batch", "settings"), CASES)
def test_transitions_are_those_of_the_collector(
    agent_name, env_name, num_envs, per_batch, settings
):
    agent, env, collector = make_collector(agent_name, env_name, num_envs, per_batch, **settings)
    expected, ends = [], 0
    for _, data in zip(range(BATCHES), collector, strict=False):
        expected.append(data.clone())
        ends += int(data["next", "done"].sum())
        agent.explorer.step(300)
    carrier, state = collector._carrier.clone(), torch.get_rng_state()
    counts = find_transform(env, StateCounts)
    visited = None if counts is None else counts.counts.clone()
    collector.shutdown(close_env=False)
    assert ends > 10, "episodes must end for the test to mean anything"

    agent, env, collector = make_collector(agent_name, env_name, num_envs, per_batch, **settings)
    rollout = DirectRollout(collector)
    for data in expected:
        direct = rollout()
        assert set(direct.keys(True, True)) == set(data.keys(True, True))
        assert direct.shape == data.shape
        for key in data.keys(True, True):
            assert torch.equal(direct[key], data[key]), key
            assert direct[key].dtype == data[key].dtype, key
        agent.explorer.step(300)
    assert_close(collector._carrier, carrier, rtol=0, atol=0)
    assert set(collector._carrier.keys(True, True)) == set(carrier.keys(True, True))
    assert torch.equal(torch.get_rng_state(), state)
    if visited is not None:
        assert torch.equal(find_transform(env, StateCounts).counts, visited)
    collector.shutdown(close_env=False)


def run(agent_name, num_envs, frames, run_dir=None):
    """A run of a small agent, continued if the directory holds one; returns all that it leaves."""
    torch.manual_seed(0)
    env = make_env(
        "NineRooms", room_size=3, seed=1, max_steps=9, batch_size=num_envs or (), visits="counts"
    )
    agent = make_agent(agent_name, env)
    config = TrainConfig(
        frames,
        update_period=4,
        learning_starts=40,
        log_period=80,
        checkpoint_period=80,
        replay_capacity=2000,
        progress=False,
    )
    trainer = Trainer(agent, env, config, run_dir=run_dir)
    if trainer.holds_a_run:
        trainer.resume()
    trainer.run()
    assert trainer.counters.updates == (frames - 40) // 4
    return {
        "replay": trainer.replay.state_dict(),
        "agent": dict(agent.state_dict()),
        "learning": agent.learning_state(),
        "random": torch.get_rng_state(),
        "counts": find_transform(env, StateCounts).counts,
    }


@pytest.mark.parametrize("agent_name", ["ddqn", "dceo"])
@pytest.mark.parametrize("num_envs", [None, 8])
def test_a_run_is_that_of_the_collector_to_the_bit(agent_name, num_envs, monkeypatch):
    """From environment to replay with updates between: transitions, weights, moments and all that follows from them."""
    direct = run(agent_name, num_envs, 240)
    monkeypatch.setattr(collection, "reason_against", lambda env: "the test says so")
    assert same(direct, run(agent_name, num_envs, 240))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(("agent_name", "num_envs"), [("ddqn", None), ("dceo", 8)])
def test_a_resumed_run_is_the_whole_one_to_the_bit(agent_name, num_envs, fast, tmp_path):
    with fast_path(fast):
        whole = run(agent_name, num_envs, 240)
        part = run(agent_name, num_envs, 160, tmp_path)
        assert not same(part, whole)
        assert same(run(agent_name, num_envs, 240, tmp_path), whole)


def test_weights_are_those_of_the_last_update():
    """What is prepared for one batch of steps is not kept for the next."""
    agent, _, collector = make_collector("ddqn", "NineRooms", None, 3)
    rollout = DirectRollout(collector)
    rollout()
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    data = rollout()
    expected = agent.policy[0](data.select("pixels"))["action_value"]
    assert torch.allclose(data["action_value"], expected, atol=1e-5)
    collector.shutdown(close_env=False)


@pytest.mark.parametrize("watched", ["policy", "actor", "network"])
def test_a_hook_sees_every_step(watched):
    agent, _, collector = make_collector("ddqn", "NineRooms", None, 3)
    actor = agent.policy[0]
    module = {"policy": agent.policy, "actor": actor, "network": actor.module[0].module.network}
    calls = []
    module[watched].register_forward_hook(lambda *args: calls.append(1))
    DirectRollout(collector)()
    assert len(calls) == 3
    collector.shutdown(close_env=False)


def test_collector_takes_over_in_the_middle():
    agent, _, collector = make_collector("dceo", "NineRooms", 2, 2, max_steps=6)
    batches = iter(collector)
    expected = [next(batches).clone() for _ in range(20)]
    collector.shutdown(close_env=False)
    agent, _, collector = make_collector("dceo", "NineRooms", 2, 2, max_steps=6)
    rollout, batches = DirectRollout(collector), iter(collector)
    for i, data in enumerate(expected):
        taken = rollout() if i % 3 else next(batches)
        assert torch.equal(taken["pixels"], data["pixels"])
        assert torch.equal(taken["action"], data["action"])
    collector.shutdown(close_env=False)
    del agent


def test_batches_are_not_written_into_by_later_steps():
    _, _, collector = make_collector("dceo", "NineRooms", 8, 1, max_steps=5)
    rollout = DirectRollout(collector)
    batches = [rollout() for _ in range(3)]
    copies = [batch.clone() for batch in batches]
    for _ in range(20):
        rollout()
    for batch, copy in zip(batches, copies, strict=True):
        assert (batch == copy).all()
    collector.shutdown(close_env=False)


def test_other_environments_keep_the_collector():
    assert reason_against(GymEnv("CartPole-v1")) == "it is no TransformedEnv"
    gym = TransformedEnv(GymEnv("CartPole-v1"))
    assert "does not return complete steps" in reason_against(gym)
    noisy = make_env("NineRooms").append_transform(ActionNoise(0.5))
    assert "changes the input" in reason_against(noisy)
    assert reason_against(make_env("NineRooms", visits="counts")) is None
