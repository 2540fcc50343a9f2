from __future__ import annotations

import pytest
import torch
from torchrl.data import Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.utils import check_env_specs

from torchrl_dceo.envs import RubiksCubeEnv, TableEnv


class Ring(TableEnv):
    """Ten cells in a circle; the actions are back, stay and on."""

    def __init__(self, starts=(0,), goals=None, **kwargs):
        cells = torch.arange(10)
        table = torch.stack([(cells - 1) % 10, cells, (cells + 1) % 10], dim=1)
        super().__init__(table, starts, goals, "observation", Unbounded((1,)), **kwargs)

    def observe(self, state_ids):
        return state_ids.unsqueeze(-1).float()


def _always(action, batch_size=()):
    return lambda td: td.set("action", torch.full(batch_size, action))


@pytest.mark.parametrize("batch_size", [(), (3,), (2, 2)])
def test_specs(batch_size):
    check_env_specs(Ring(starts=(0, 5), goals=(2,), batch_size=batch_size), seed=0)


def test_same_seed_same_trajectory_other_seed_another():
    def run(seed):
        env = RubiksCubeEnv(max_depth=3, batch_size=[4], slip=1.0)
        env.set_seed(seed)
        return env.rollout(50, _always(0, (4,)), break_when_any_done=False)["next", "state_id"]

    assert run(1).equal(run(1))
    assert not run(1).equal(run(2))
    assert not run(1)[0].equal(run(1)[1])  # environments of one batch differ too


def test_seed_argument_and_global_seed():
    def run(env):
        return env.rollout(50, _always(0))["next", "state_id"]

    assert run(Ring(slip=1.0, seed=3)).equal(run(Ring(slip=1.0, seed=3)))
    torch.manual_seed(5)
    first = run(Ring(slip=1.0))
    torch.manual_seed(5)
    assert run(Ring(slip=1.0)).equal(first)


def test_batched_environment_equals_lone_ones_on_the_same_random_numbers(monkeypatch):
    batch, steps = 5, 120
    starts, slips = torch.rand(steps + 1, batch), torch.rand(steps, batch, dtype=torch.float64)
    actions = torch.randint(3, (steps, batch))

    def run(which):
        env = Ring(starts=(0, 3, 7), goals=(5,), max_steps=9, batch_size=which.shape, slip=0.3)
        # One row of numbers a step, for the slip, and one a reset; all are called at every step.
        numbers = iter(starts)
        monkeypatch.setattr(env, "_uniform", lambda: next(numbers)[which])
        monkeypatch.setattr(env._slip, "_shape", (steps, *which.shape))
        monkeypatch.setattr(env._slip, "_uniform", lambda: slips[:, which])
        env._slip._next_block()
        trajectory, data = [], env.reset()
        for t in range(steps):
            data["action"] = actions[t][which]
            following = env.step(data)["next"]
            trajectory.append(following.clone())
            data = following.exclude("reward")
            data["_reset"] = data["done"].clone()
            data = env.reset(data)
        return torch.stack(trajectory)

    together = run(torch.arange(batch))
    assert together["terminated"].any() and together["truncated"].any()
    for i in range(batch):
        alone = run(torch.tensor(i))
        for key in ("state_id", "reward", "terminated", "truncated", "observation"):
            assert together[key][:, i].equal(alone[key]), (i, key)


@pytest.mark.parametrize("batch_size", [(), (3,)])
def test_step_and_maybe_reset_equals_that_of_torchrl(batch_size):
    class Plain(Ring):
        _step_and_maybe_reset = EnvBase._step_and_maybe_reset
        _step_proc_data = EnvBase._step_proc_data

    def run(kind):
        env = kind(starts=(0, 5), goals=(3,), max_steps=7, batch_size=batch_size, seed=0)
        generator = torch.Generator().manual_seed(0)
        data, steps, roots = env.reset(), [], []
        data["memory"] = torch.zeros(*batch_size, 2)
        data["nested", "memory"] = torch.zeros(*batch_size, 2)
        for _ in range(60):
            data["action"] = torch.randint(3, batch_size, generator=generator)
            step, data = env.step_and_maybe_reset(data)
            steps.append(step)
            roots.append(data.clone())
        return steps, roots

    (fast, fast_roots), (plain, plain_roots) = run(Ring), run(Plain)
    assert any(step["next", "terminated"].any() for step in fast)
    assert any(step["next", "truncated"].any() for step in fast)
    for a, b in zip(fast + fast_roots, plain + plain_roots, strict=True):
        assert set(a.keys(True, True)) == set(b.keys(True, True))
        assert all(value.equal(b[key]) for key, value in a.items(True, True))


@pytest.mark.parametrize("slip", [0.0, 0.15, 1.0])
def test_slip_frequency_and_uniform_random_actions(slip):
    env = Ring(batch_size=[100_000], slip=slip, seed=0)
    data = env.reset()
    data["action"] = torch.ones(100_000, dtype=torch.int64)  # stay
    where = env.step(data)["next", "state_id"]
    back, stay, on = ((where == cell).float().mean().item() for cell in (9, 0, 1))
    # Standard deviation of each share below 0.0016.
    assert back == pytest.approx(slip / 3, abs=0.006)
    assert on == pytest.approx(slip / 3, abs=0.006)
    assert stay == pytest.approx(1 - slip * 2 / 3, abs=0.006)


def test_starts_are_drawn_uniformly():
    env = Ring(starts=(1, 4, 8), batch_size=[60_000], seed=0)
    counts = env.reset()["state_id"].bincount(minlength=10)
    assert counts.sum() == counts[[1, 4, 8]].sum()
    assert (counts[[1, 4, 8]] / 60_000 - 1 / 3).abs().max() < 0.01


def test_goal_ends_with_one_and_the_limit_truncates():
    env = Ring(goals=(3,), slip=0.0, max_steps=5)
    data = env.rollout(20, _always(2))
    assert data["next", "reward"].flatten().tolist() == [0.0, 0.0, 1.0]
    assert data["next", "terminated"].flatten().tolist() == [False, False, True]
    assert not data["next", "truncated"].any()
    data = env.rollout(20, _always(0))
    assert data["next", "truncated"].flatten().tolist() == [False] * 4 + [True]
    assert data["next", "done"].equal(data["next", "truncated"])
    assert not data["next", "terminated"].any()
    both = Ring(goals=(3,), slip=0.0, max_steps=3).rollout(20, _always(2))["next"][-1]
    assert both["terminated"].item() and both["truncated"].item() and both["done"].item()
    assert Ring(slip=0.0, max_steps=None).rollout(300, _always(2)).shape == (300,)


def test_partial_reset_leaves_the_others_alone():
    env = Ring(batch_size=[3], slip=0.0, max_steps=10)
    data = env.rollout(4, _always(2, (3,)))[:, -1]["next"]
    data["_reset"] = torch.tensor([[True], [False], [False]])
    assert env.reset(data)["state_id"].tolist() == [0, 4, 4]
    data = env.rollout(
        6, _always(2, (3,)), auto_reset=False, tensordict=data.exclude("_reset", "reward")
    )
    assert data["next", "truncated"][:, -1].flatten().tolist() == [False, True, True]


def test_saved_state_continues_identically():
    env = Ring(starts=(0, 5), goals=(3,), batch_size=[6], slip=0.5, max_steps=20, seed=0)
    data = env.rollout(13, break_when_any_done=False)[:, -1]["next"].exclude("reward")
    saved = env.get_env_state()
    assert all(isinstance(value, torch.Tensor) for value in saved.values())

    def go_on(env):
        return env.rollout(
            40,
            _always(2, (6,)),
            auto_reset=False,
            tensordict=data.clone(),
            break_when_any_done=False,
        )

    first = go_on(env)
    other = Ring(starts=(0, 5), goals=(3,), batch_size=[6], slip=0.5, max_steps=20, seed=99)
    other.set_env_state(saved)
    again = go_on(other)
    assert (first == again).all()
    assert other.get_env_state()["env_steps"].tolist() == [53] * 6
    with pytest.raises(ValueError, match=r"has shape \[6\].*batch size \[2\]"):
        Ring(batch_size=[2]).set_env_state(saved)


def test_stepping_does_not_write_into_what_was_handed_out():
    env = Ring(batch_size=[2], slip=0.0)
    first = env.reset()
    kept = first["state_id"].clone()
    first["action"] = torch.tensor([2, 2])
    env.step(first)
    assert first["state_id"].equal(kept)


@pytest.mark.parametrize("batch_size", [(), (2,)])
def test_writing_into_a_result_does_not_change_the_environment(batch_size):
    env = Ring(starts=(0, 5), goals=(5,), batch_size=batch_size, slip=0.0)
    env.reset()["state_id"].fill_(7)
    data = env.reset()
    data["action"] = torch.full(batch_size, 2)
    result = env.step(data)["next"]
    tables = [env.next_state.clone(), env._is_goal.clone(), env._starts.clone()]
    for value in result.values():
        value.fill_(1)
    assert all(
        a.equal(b) for a, b in zip(tables, [env.next_state, env._is_goal, env._starts], strict=True)
    )


def test_transition_matrix_is_the_frequency_of_real_steps():
    env = Ring(slip=0.3, batch_size=[50_000], seed=0)
    policy = torch.zeros(10, 3)
    policy[:, 2] = 1.0
    expected = env.transition_matrix(policy).to_dense()
    assert expected.sum(1).tolist() == pytest.approx([1.0] * 10)
    data = env.reset()
    data["action"] = torch.full((50_000,), 2)
    share = env.step(data)["next", "state_id"].bincount(minlength=10) / 50_000
    assert torch.allclose(share.double(), expected[0], atol=0.01)
    assert expected[0, [9, 0, 1]].tolist() == pytest.approx([0.1, 0.1, 0.8])
    uniform = env.transition_matrix()
    assert uniform.is_sparse and uniform.dtype == torch.float64
    assert uniform.to_dense()[4, [3, 4, 5]].tolist() == pytest.approx([1 / 3] * 3)
    with pytest.raises(ValueError, match=r"policy must have shape \[10, 3\], got \[3\]"):
        env.transition_matrix(torch.ones(3))


def test_matrix_adds_up_actions_that_lead_to_the_same_state():
    env = RubiksCubeEnv(max_depth=3)
    matrix = env.transition_matrix().to_dense()
    start = int(env.reset()["state_id"])
    assert matrix[start, start].item() == pytest.approx(6 / 9)
    assert matrix.sum(1).tolist() == pytest.approx([1.0] * 385)


def test_bad_input():
    with pytest.raises(ValueError, match=r"slip must lie in \[0, 1\], got 1.5"):
        Ring(slip=1.5)
    with pytest.raises(ValueError, match=r"max_steps must be at least 1 .*, got 0"):
        Ring(max_steps=0)
    with pytest.raises(ValueError, match="starts must name at least one state"):
        Ring(starts=())
