from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.tabular import QLearning, QTable
from torchrl_dceo.tabular.q_learning import argmax_random_tie


def test_equals_plain_python():
    torch.manual_seed(0)
    env = GridWorldEnv("S..\n.#.\n..G", batch_size=[4], seed=3, max_steps=15)
    actor = QTable(4, env.num_states, env.num_actions)
    learn = QLearning(actor, step_size=0.3, gamma=0.9)
    tables = [[[0.0] * 4 for _ in range(env.num_states)] for _ in range(4)]
    step, ends = env.reset(), {"terminated": 0, "truncated": 0}
    for _ in range(600):
        now, step = env.step_and_maybe_reset(step.set("action", env.action_spec.rand()))
        learn(now)
        for b, q in enumerate(tables):
            s, a, t = (int(now[key][b]) for key in ("state_id", "action", ("next", "state_id")))
            r, end = float(now["next", "reward"][b]), bool(now["next", "terminated"][b])
            q[s][a] += 0.3 * (r + (0.0 if end else 0.9 * max(q[t])) - q[s][a])
            ends["terminated"] += end
            ends["truncated"] += bool(now["next", "truncated"][b]) and not end
    assert min(ends.values()) > 5
    torch.testing.assert_close(actor.table, torch.tensor(tables, dtype=torch.float64))
    assert actor.table.abs().max() > 0.1


@pytest.mark.parametrize("terminated", [True, False])
def test_no_value_comes_from_beyond_a_terminal_step(terminated):
    """The state after the step has a value, which an environment's own terminal states never have."""
    actor = QTable(1, num_states=2, num_actions=2)
    actor.table[0, 1] = torch.tensor([3.0, 7.0])
    learn = QLearning(actor, step_size=0.5, gamma=0.9)
    following = {"state_id": [1], "reward": [[1.0]], "terminated": [[terminated]]}
    step = TensorDict({"state_id": [0], "action": [1], "next": following}, [1])
    target = 1.0 if terminated else 1.0 + 0.9 * 7.0
    assert learn(step)["td_error"].item() == pytest.approx(target)
    assert actor.table[0, 0].tolist() == pytest.approx([0.0, 0.5 * target])


def test_ties_are_broken_uniformly():
    torch.manual_seed(0)
    values = torch.tensor([1.0, 0.0, 1.0, 1.0]).expand(30_000, 4)
    share = argmax_random_tie(values).bincount(minlength=4) / 30_000
    assert share[1] == 0
    # Four standard deviations of a share of a third.
    assert (share[[0, 2, 3]] - 1 / 3).abs().max() < 4 * (2 / 9 / 30_000) ** 0.5


def test_each_seed_reads_its_own_table_at_any_batch_shape():
    actor = QTable(2, num_states=3, num_actions=2)
    actor.table.copy_(torch.arange(12.0).view(2, 3, 2))
    state = torch.tensor([[0, 1, 2], [2, 1, 0]])
    values = actor(TensorDict({"state_id": state}, [2, 3]))["action_value"]
    assert values[..., 0].tolist() == [[0, 2, 4], [10, 8, 6]]


@pytest.mark.parametrize("wrong", [{"step_size": 0.0}, {"step_size": 1.5}, {"gamma": 1.1}])
def test_refuses(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} must lie in"):
        QLearning(QTable(1, 2, 2), **wrong)
