"""Rows that suffice: final observations have room of their own, however short the episodes are."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrl_dceo.data import make_replay_buffer, rows_for


def steps_of(count: int, streams: int, length: int, offset: int = 0) -> TensorDict:
    """Steps of episodes of a given length, numbered through."""
    number = torch.arange(offset, offset + count).expand(streams, count)
    end = ((number + 1) % length == 0).unsqueeze(-1)
    following = {"x": number + 1, "reward": torch.ones(streams, count, 1)}
    flags = {"done": end, "terminated": end}
    steps = {"x": number, "action": number, "next": {**following, **flags}}
    return TensorDict(steps, [streams, count])


@pytest.mark.parametrize("length", [1, 2, 4, 1000])
@pytest.mark.parametrize(("streams", "stack"), [(1, 1), (3, 1), (2, 4)])
def test_no_step_is_lost(length, streams, stack):
    total = 240
    capacity = rows_for(total, num_streams=streams, frame_stack=stack)
    rb = make_replay_buffer(
        capacity, observation_keys=["x"], num_streams=streams, frame_stack=stack, stack_dim=-1
    )
    each = total // streams
    for start in range(0, each, 8):
        data = steps_of(8, streams, length, start)
        if stack > 1:
            for td in (data, data["next"]):
                td["x"] = td["x"].unsqueeze(-1).expand(streams, 8, stack).contiguous()
        rb.extend(data)
    open_steps = 0 if each % length == 0 else streams
    assert len(rb) == total - open_steps
    for stream in range(streams):
        first = rb.transitions()["action"].view(streams, -1)[stream].sort().values
        assert torch.equal(first, torch.arange(each - open_steps // streams))


def test_one_row_less_a_step_is_too_few():
    """What the bound is for: with episodes of one step each, fewer rows lose the oldest."""
    rb = make_replay_buffer(300, observation_keys=["x"])
    for start in range(0, 240, 8):
        rb.extend(steps_of(8, 1, 1, start)[0])
    assert len(rb) < 240
