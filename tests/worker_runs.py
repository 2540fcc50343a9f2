"""Runs with workers: an environment that records which worker made each step, and the checks of every kind."""

from __future__ import annotations

from functools import partial

import torch
from clock_env import Clock
from torchrl.envs import Compose, EnvBase, InitTracker, RewardSum, TransformedEnv

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import CollectorConfig, TrainConfig, Trainer
from torchrl_dceo.training.collection import make_collection


class Ticking(Clock):
    """Shows (ticks since it was built, who it is): whatever else happens, a step makes it one tick more."""

    def __init__(self, batch_size=(), period=7):
        super().__init__(batch_size, period)
        self.ticks = torch.zeros(self.batch_size)
        self.who = torch.zeros(self.batch_size)

    def _observe(self):
        return torch.stack([self.ticks, self.who], -1)

    def _step(self, tensordict):
        self.ticks = self.ticks + 1
        return super()._step(tensordict)

    def _set_seed(self, seed):
        number = torch.arange(self.batch_size.numel()).view(self.batch_size)
        self.who = (seed % 10_000) * 100.0 + number

    def get_env_state(self):
        return {"ticks": self.ticks.clone(), "who": self.who.clone()}

    def set_env_state(self, state):
        self.ticks, self.who = state["ticks"], state["who"]


def ticking(batch_size, seed) -> EnvBase:
    env = Ticking(batch_size)
    env.set_seed(seed)
    return TransformedEnv(env, Compose(InitTracker(), RewardSum()))


def check_rows(replay) -> None:
    """Every stored step leads to the next tick of the same environment, and every stream has rows."""
    transitions = replay.transitions()
    now, then = transitions["observation"], transitions["successor", "observation"]
    assert len(now) > 0
    torch.testing.assert_close(then[:, 0], now[:, 0] + 1)
    torch.testing.assert_close(then[:, 1], now[:, 1])
    streams = transitions["index"] // (replay._storage.max_size // replay.num_streams)
    owners = [set(now[streams == stream, 1].tolist()) for stream in range(replay.num_streams)]
    assert all(owners), "a stream without rows"
    everyone = [who for stream in owners for who in stream]
    assert len(everyone) == len(set(everyone)), "an environment in two streams"


SMALL = {"num_options": 2, "dimensions": 3, "batch_size": 8, "eps_frames": 400}
ROOMS = partial(make_env, "NineRooms", room_size=3)


def make_trainer(worker_env, collector, agent="dceo", frames=400, num_envs=4, **kwargs) -> Trainer:
    torch.manual_seed(0)
    env = worker_env(batch_size=[num_envs], seed=0, **kwargs.pop("env", {}))
    known = SMALL if agent.startswith("dceo") else {"batch_size": 8, "eps_frames": 400}
    built = make_agent(agent, env, **{**known, **kwargs.pop("agent_settings", {})})
    config = TrainConfig(
        total_frames=frames,
        update_period=10,
        learning_starts=100,
        replay_capacity=5000,
        log_period=100,
        eval_period=1000,
        progress=False,
        seed=0,
    )
    collection = CollectorConfig(collector, worker_steps=10, weight_period=20)
    return Trainer(built, env, config, collection=collection, worker_env=worker_env, **kwargs)


def record(trainer):
    """All batches that the trainer takes, with their streams."""
    taken, take = [], trainer._take

    def recording(data, streams):
        taken.append((data.clone(), streams))
        take(data, streams)

    trainer._take = recording
    return taken


def act_by_what_is_learned(kind: str) -> None:
    """All that the policy is made of arrives at the workers: weights, ε, and the statistics of the images."""
    env = ROOMS(batch_size=[4], seed=0)
    agent = make_agent("dceo", env, option_duration=1.5, **SMALL)
    config = CollectorConfig(kind, worker_steps=5, weight_period=1)
    collection = make_collection(agent, TrainConfig(), config, ROOMS)
    collection.start(env, reward_free=False, frames=0)
    frames, shares = 0, []
    try:
        for data, _ in collection:
            frames += data.numel()
            shares.append(float((data["action"] == 3).float().mean()))
            if len(shares) == 4:
                with torch.no_grad():
                    agent.explorer.eps.fill_(0.0)
                    agent.policy[0].module[0].centre.fill_(7.0)
                    last = [p for p in agent.policy[0].parameters() if p.dim() == 1][-1]
                    last.copy_(torch.tensor([0.0, 0.0, 0.0, 1000.0]))
            collection.learned(frames)
            if len(shares) == 14:
                break
        held = collection._policy
    finally:
        collection.close()
    assert max(shares[:4]) < 0.8
    assert shares[-4:] == [1.0] * 4
    assert float(held[-1].eps) == 0.0 and bool((held[0].module[0].centre == 7).all())
    # The learner's own tensors are not the workers'.
    assert not any(p.is_shared() for p in agent.policy.parameters())
