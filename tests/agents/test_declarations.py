"""What an objective declares is what the agent does for it."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives import LossModule

from torchrl_dceo.agents import Agent, Objective, Phase, make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer


class _Loss(LossModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, tensordict):
        tensordict["bonus"] = torch.full((len(tensordict),), 3.0)
        return TensorDict({"loss": self.weight.square(), "bonus": tensordict["bonus"]})


def test_logged_entries_and_what_follows_an_update():
    """An objective that rests in a phase has neither."""
    ddqn, calls = make_agent("ddqn", make_env("NineRooms", room_size=3)), []
    first, second = _Loss(), _Loss()
    agent = Agent(
        ddqn.policy,
        {
            "first": Objective(
                first, logged=("bonus",), after_update=lambda: calls.append("first")
            ),
            "second": Objective(second, after_update=lambda: calls.append("second")),
        },
        explorer=ddqn.explorer,
        optimizer=torch.optim.SGD([first.weight, second.weight], lr=0.1),
    )
    batch = TensorDict({"action": torch.zeros(5)}, [5])
    out = agent.update(batch, Phase("one", objectives=("first",)))
    assert calls == ["first"] and float(out["bonus"]) == 3.0
    assert float(first.weight) == pytest.approx(0.8) and float(second.weight) == 1.0
    agent.update(batch, Phase("both"))
    assert calls == ["first", "first", "second"]


@pytest.mark.parametrize("objective", ["generalized", "graph_drawing", "allo"])
def test_the_laplacian_is_averaged_uniformly_and_its_duals_move(objective):
    env = make_env("NineRooms", room_size=3, batch_size=4, seed=0)
    agent = make_agent("rainbow_dceo", env, objective=objective, num_options=2, dimensions=3)
    assert agent.replay.uniform
    replay = agent.replay.make(env, 400, seed=0)
    replay.extend(env.rollout(40, break_when_any_done=False))
    agent.learn(replay, agent.phases[0])
    if objective == "allo":
        assert int(agent.objectives["laplacian"].num_dual_steps) == 1


def test_a_table_learner_builds_no_network_for_its_values(monkeypatch):
    from torchrl_dceo.agents import learners

    made = []
    plain = learners.make_network_fn

    def noted(env, kind):
        def make(size):
            made.append(size)
            return plain(env, kind)(size)

        return make

    monkeypatch.setattr(learners, "make_network_fn", noted)
    env = make_env("RubiksCube222", max_depth=2)
    make_agent("ddqn", env, main_learner="table")
    assert made == []
    make_agent("ddqn", env)
    assert made == [9]


@pytest.mark.parametrize("per_update", [1, None])
def test_options_left_out_of_an_update_learn_with_a_declared_agent(per_update):
    env = make_env("NineRooms", room_size=3, batch_size=4, seed=0)
    agent = make_agent("dceo", env, options_per_update=per_update, num_options=2)
    config = TrainConfig(total_frames=240, learning_starts=100, update_period=40, progress=False)
    assert Trainer(agent, env, config).run()["updates"] == 3


def test_more_environments_than_frames_before_learning():
    """A first batch of one step of each holds no transition that can be sampled: nothing is learned from it yet."""
    env = make_env("NineRooms", room_size=3, batch_size=128, seed=0)
    config = TrainConfig(total_frames=1024, learning_starts=100, update_period=64, progress=False)
    row = Trainer(make_agent("dceo", env), env, config).run()
    assert row["frames"] == 1024 and row["updates"] > 5
