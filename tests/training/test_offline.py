from __future__ import annotations

import pytest
import torch

from torchrl_dceo.agents import make_agent
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import fit


@pytest.fixture
def parts():
    torch.manual_seed(0)
    env = make_env("NineRooms", room_size=3, observation="xy", batch_size=10, seed=0)
    replay = make_replay_buffer(
        5000, observation_keys=["observation"], num_streams=10, n_steps=5, batch_size=16, seed=0
    )
    replay.extend(env.rollout(100, break_when_any_done=False))
    return make_agent("dceo", env, num_options=2, dimensions=3, lr=1e-3), replay


def snapshot(agent):
    return {
        name: [p.detach().clone() for p in agent.objectives[name].parameters()]
        for name in ("laplacian", "option", "main")
    }


def moved(before, after) -> set[str]:
    return {
        name
        for name in before
        if not all(torch.equal(a, b) for a, b in zip(before[name], after[name], strict=True))
    }


def test_only_what_is_named_learns(parts):
    agent, replay = parts
    first = snapshot(agent)
    outputs = fit(agent, replay, 3, objectives=("laplacian", "reward", "option"))
    second = snapshot(agent)
    assert moved(first, second) == {"laplacian", "option"}
    assert {"loss_laplacian", "loss_option"} <= set(outputs) and "loss_main" not in outputs
    fit(agent, replay, 3)
    assert moved(second, snapshot(agent)) == {"laplacian", "option", "main"}


def test_it_learns(parts):
    """More of the same data, smaller the Laplacian's loss."""
    agent, replay = parts
    first, last = (
        fit(agent, replay, updates, objectives=["laplacian"])["loss_laplacian"]
        for updates in (1, 300)
    )
    assert last < 0.7 * first


def test_the_outputs_are_means_of_the_last_tenth(parts, monkeypatch):
    agent, replay = parts
    values = iter(range(1, 31))
    monkeypatch.setattr(
        agent, "update", lambda batch, phase: {"loss": torch.tensor(float(next(values)))}
    )
    assert fit(agent, replay, 30) == {"loss": 29.0}


def test_the_same_as_updating_by_hand(parts):
    agent, replay = parts
    state, saved = replay.state_dict(), {k: v.clone() for k, v in agent.state_dict().items()}
    learning = agent.learning_state()
    assert learning["moments"] == {}
    fit(agent, replay, 2)
    fitted = {k: v.clone() for k, v in agent.state_dict().items()}
    agent.load_state_dict(saved)
    agent.optimizer.state.clear()
    agent.load_learning_state(learning)
    replay.load_state_dict(state)
    for _ in range(2):
        agent.update(replay.sample(), agent.phases[0])
    assert all(torch.equal(fitted[key], value) for key, value in agent.state_dict().items())


def test_bad_arguments(parts):
    agent, replay = parts
    with pytest.raises(ValueError, match="num_updates must be at least 1, got 0"):
        fit(agent, replay, 0)
    with pytest.raises(ValueError, match=r"no objectives \['laplace'\]; it has \['laplacian'"):
        fit(agent, replay, 1, objectives=["laplace"])
