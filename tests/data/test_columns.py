from __future__ import annotations

import pytest
import torch

from torchrl_dceo.data.nstep import Columns


@pytest.mark.parametrize(
    ("shape", "dim"), [((6, 5, 4), -3), ((6,), -1), ((2, 6), -1), ((6, 2), -2)]
)
def test_cutting_and_stacking_are_inverse(shape, dim):
    columns = Columns(["x"], [], [], frame_stack=3, stack_dim=dim)
    stack = torch.rand(7, *shape)
    frames = stack.chunk(3, dim)
    assert torch.equal(columns.newest_frame(stack), frames[-1])
    assert torch.equal(columns.older_frames(stack), torch.stack(frames[:-1], 1))
    assert torch.equal(columns.stack(torch.stack(frames, 1)), stack)


def test_bad_settings():
    with pytest.raises(ValueError, match="at least one entry"):
        Columns([], [], [])
    with pytest.raises(ValueError, match="'a' is named twice"):
        Columns(["a"], ["a"], [])
    for key in ("reward", ("next", "x"), "index", ("window", "x")):
        with pytest.raises(ValueError, match="one that the buffer writes"):
            Columns(["a"], [key], [])
    with pytest.raises(ValueError, match="frame_stack must be at least 1, got 0"):
        Columns(["a"], [], [], frame_stack=0)
    with pytest.raises(ValueError, match="stack_dim must be negative, got 0"):
        Columns(["a"], [], [], stack_dim=0)
    with pytest.raises(ValueError, match="cannot be cut into frame_stack=4"):
        Columns(["a"], [], [], frame_stack=4).newest_frame(torch.zeros(3, 6, 2, 2))
