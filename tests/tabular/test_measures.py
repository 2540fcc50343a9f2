from __future__ import annotations

import torch

from torchrl_dceo.envs import GridWorldEnv, StateCounts, find_transform, make_env
from torchrl_dceo.tabular import QTable
from torchrl_dceo.tabular.q_learning import TabularMeasures, evaluate_greedy


def test_counts_and_returns_equal_those_of_the_environment():
    torch.manual_seed(0)
    # One seed: then the environment's own transforms count the same.
    env = make_env("S..\n..G", batch_size=[1], seed=0, visits="counts", max_steps=9)
    measures = TabularMeasures(1, 6)
    step = env.reset()
    measures.started(step["state_id"])
    returns, first_all = [], None
    for t in range(1, 201):
        now, step = env.step_and_maybe_reset(step.set("action", env.action_spec.rand()))
        measures.stepped(now, step, t)
        if now["next", "done"].any():
            returns.append(float(now["next", "episode_reward"]))
        if first_all is None and find_transform(env, StateCounts).num_visited == 6:
            first_all = t
    measures.row(200)
    result = measures.result()
    assert torch.equal(result["counts"][0], find_transform(env, StateCounts).counts)
    assert result["coverage"].tolist() == [[6]] and result["covered_at"].tolist() == [first_all]
    assert 0 < sum(returns) < len(returns)
    assert abs(float(result["train_return"]) - sum(returns) / len(returns)) < 1e-12


def test_rows_start_anew():
    env, measures = GridWorldEnv("S.G", batch_size=[1], slip=0.0), TabularMeasures(1, 3)
    step = env.reset()
    right = torch.tensor([1])
    for t in range(1, 6):
        step.set("option", torch.tensor([0 if t == 1 else -1]))
        now, step = env.step_and_maybe_reset(step.set("action", right))
        measures.stepped(now, step, t)
        if t in (4, 5):
            measures.row(t)
    result = measures.result()
    assert result["frames"].tolist() == [4, 5]
    assert result["train_return"][0].tolist() == [1.0] and result["train_return"][1].isnan().all()
    assert result["option_share"].tolist() == [[0.25], [0.0]]
    assert result["eval_return"].isnan().all()


def test_greedy_evaluation_is_of_each_seed():
    env = GridWorldEnv("S..G", batch_size=[3, 2], slip=0.0, max_steps=5)
    actor = QTable(3, env.num_states, env.num_actions)
    actor.table[:, :, 1] = torch.tensor([[1.0], [-1.0], [1.0]])
    actor.table[1, :, 0] = 1.0
    assert evaluate_greedy(actor, env).tolist() == [1.0, 0.0, 1.0]


def test_greedy_evaluation_is_of_one_episode_each():
    """Those that end early reach the goal again before the last one does."""
    env = GridWorldEnv("S..G", batch_size=[2, 16], seed=0, slip=0.4, max_steps=50)
    actor = QTable(2, env.num_states, env.num_actions)
    actor.table[:, :, 1] = 1.0
    torch.manual_seed(0)
    assert evaluate_greedy(actor, env).tolist() == [1.0, 1.0]
