from __future__ import annotations

import pytest
import torch

from torchrl_dceo.envs.table_env import Slip


def test_overwrites_as_often_as_told_by_every_action_alike():
    slip = Slip(0.15, 4, batch_size=[1000], seed=0)
    action = torch.full((1000,), 2)
    done = torch.stack([slip(action) for _ in range(400)])
    share = torch.bincount(done.flatten(), minlength=4) / done.numel()
    # Of 4e5 draws: the standard error is 0.0003.
    assert share.tolist() == pytest.approx([0.0375, 0.0375, 0.8875, 0.0375], abs=0.0015)


def test_draws_are_independent_between_steps_and_environments():
    slip = Slip(0.5, 2, batch_size=[2], seed=0)
    changed = torch.stack([slip(torch.zeros(2).long()) for _ in range(40_000)]).double()
    assert torch.corrcoef(changed.T)[0, 1].abs() < 0.02
    for lag in (1, 256):  # 256: from one block of draws to the next
        pair = torch.stack([changed[:-lag, 0], changed[lag:, 0]])
        assert torch.corrcoef(pair)[0, 1].abs() < 0.02


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 0.0), (1.0, 0.75)])
def test_never_and_always(probability, expected):
    slip = Slip(probability, 4, batch_size=[500], seed=1)
    action = torch.zeros(500).long()
    changed = torch.stack([slip(action) != action for _ in range(100)]).float().mean().item()
    assert changed == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("steps", [0, 1, 255, 256, 300])
@pytest.mark.parametrize("batch_size", [(), (3,), (2**17,)])
def test_goes_on_identically_after_restoring(steps, batch_size):
    if batch_size == (2**17,):
        steps = min(steps, 2)
    action = torch.zeros(batch_size).long()
    slip = Slip(0.5, 4, batch_size=batch_size, seed=3)
    for _ in range(steps):
        slip(action)
    state = slip.get_state()
    expected = [slip(action) for _ in range(20)]
    other = Slip(0.5, 4, batch_size=batch_size, seed=99)
    other.set_state(state)
    assert all(a.equal(other(action)) for a in expected)
    assert all(isinstance(value, torch.Tensor) for value in state.values())
