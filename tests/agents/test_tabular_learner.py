"""A table as main learner: exact Q-learning inside an agent that knows nothing of it."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from torchrl_dceo.agents import make_agent
from torchrl_dceo.agents.tabular_learner import AdamWithTables, StateTable
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer

AGENTS = ("ddqn", "counts", "ez_greedy", "rnd", "dceo", "dceo_two_phase", "diayn", "cic")


def small_env(**settings):
    return make_env(
        "RubiksCube222", max_depth=2, **{"batch_size": 2, "visits": "counts", "seed": 0, **settings}
    )


def build(name, **settings):
    torch.manual_seed(0)
    if name in ("dceo", "dceo_two_phase", "diayn", "cic"):
        settings["num_options"] = 2
    if name in ("dceo_two_phase", "diayn", "cic"):
        settings["discovery_frames"] = 80
    return make_agent(name, small_env(), main_learner="table", **settings)


def trainer(name, run_dir=None, total_frames=240, **settings):
    config = TrainConfig(
        total_frames=total_frames,
        learning_starts=20,
        replay_capacity=2000,
        log_period=40,
        eval_period=120,
        checkpoint_period=120,
        progress=False,
    )
    return Trainer(
        build(name, **settings),
        small_env(),
        config,
        eval_env=small_env(visits=None, batch_size=3, seed=1),
        discovery_env=small_env(coverage=True, seed=2),
        run_dir=run_dir,
    )


def test_an_update_is_q_learning_on_each_transition():
    agent = build("ddqn", gamma=0.9, table_step_size=0.3)
    table = next(m for m in agent.modules() if isinstance(m, StateTable))
    with torch.no_grad():
        table.values.copy_(torch.rand_like(table.values))
    before = table.values.detach().clone()
    batch = TensorDict(
        {
            "state_id": torch.tensor([0, 3, 5]),
            "action": torch.tensor([1, 8, 2]),
            "steps_to_next_obs": torch.tensor([[1], [3], [2]]),
            "next": {
                "state_id": torch.tensor([4, 7, 0]),
                "reward": torch.tensor([[0.0], [0.5], [1.0]]),
                "done": torch.tensor([[False], [False], [True]]),
                "terminated": torch.tensor([[False], [False], [True]]),
            },
        },
        [3],
    )
    agent.update(batch, agent.phases[0])
    expected = before.clone()
    for s, a, t, r, m, end in ((0, 1, 4, 0.0, 1, 0), (3, 8, 7, 0.5, 3, 0), (5, 2, 0, 1.0, 2, 1)):
        target = r + (0.0 if end else 0.9**m * float(before[t].max()))
        expected[s, a] += 0.3 * (target - float(before[s, a]))
    torch.testing.assert_close(table.values.detach(), expected, atol=5e-6, rtol=0)
    # And nothing else moves, at this update or at later ones.
    untouched = torch.ones_like(before, dtype=torch.bool)
    untouched[[0, 3, 5], [1, 8, 2]] = False
    assert torch.equal(table.values.detach()[untouched], before[untouched])


@pytest.mark.parametrize("name", AGENTS)
def test_trains_in_the_loop(name):
    run = trainer(name)
    row = run.run()
    assert row["frames"] == 240 and row["updates"] > 20
    actor, table = (
        run.agent.policy[0],
        next(m for m in run.agent.modules() if isinstance(m, StateTable)),
    )
    assert actor.in_keys == ["state_id"]
    # The policy acts by the table that the loss moves.
    with torch.no_grad():
        for parameter in run.agent.objectives["main"].parameters():
            parameter.zero_()
            parameter[7, 4] = 1.0
    state = TensorDict({"state_id": torch.tensor([7])}, [1])
    assert actor(state)["action"].tolist() == [4]
    assert table.values.shape == (64, 9)
    if "reward" in run.agent.objectives:  # the networks of the options learn by Adam, as ever
        assert len(run.agent.learning_state()["moments"]) > 4


@pytest.mark.fast_only
def test_solves_a_small_cube():
    run = trainer("ddqn", total_frames=2500, eps_frames=1500, n_steps=1)
    assert run.run()["eval_return"] == 1.0


def test_resumes_exactly(tmp_path):
    whole = trainer("dceo", tmp_path / "whole")
    whole.run()
    trainer("dceo", tmp_path / "part", total_frames=120).run()  # built after: it seeds all draws
    again = trainer("dceo", tmp_path / "part")
    assert again.resume() == 120
    again.run()
    for (name, first), second in zip(
        whole.agent.state_dict().items(), again.agent.state_dict().values(), strict=True
    ):
        assert torch.equal(first, second), name


def test_equal_values_make_a_random_action():
    torch.manual_seed(0)
    actions = StateTable(3, 4)(torch.ones(8000, dtype=torch.int64)).argmax(-1)
    share = actions.bincount(minlength=4) / 8000
    assert (share - 0.25).abs().max() < 4 * (0.25 * 0.75 / 8000) ** 0.5


def test_optimizer_is_adam_for_networks():
    torch.manual_seed(0)
    nets = [nn.Linear(3, 2) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    table = nn.Parameter(torch.zeros(2))
    both = AdamWithTables(
        [{"params": nets[0].parameters()}, {"params": [table], "table": True, "lr": 1.0}], lr=0.01
    )
    adam = torch.optim.Adam(nets[1].parameters(), lr=0.01)
    for step in range(3):
        x = torch.randn(4, 3)
        nets[0](x).square().sum().backward()
        nets[1](x).square().sum().backward()
        table.grad = torch.tensor([1.0, 0.0]) if step == 0 else torch.zeros(2)
        both.step(), adam.step()
        both.zero_grad(), adam.zero_grad()
    torch.testing.assert_close(nets[0].weight, nets[1].weight, rtol=0, atol=0)
    assert table.tolist() == [-1.0, 0.0]  # no momentum
