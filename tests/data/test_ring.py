from __future__ import annotations

import torch

from torchrl_dceo._fast import fast_path
from torchrl_dceo.data.ring import StreamRing


def flags(*rows: str) -> torch.Tensor:
    return torch.tensor([[mark == "1" for mark in row] for row in rows])


def test_final_rows_make_streams_advance_unevenly():
    ring = StreamRing(10, 2)
    update = ring.advance(flags("0100", "0000"))
    assert update.rows.tolist() == [[0, 1, 3, 4], [10, 11, 12, 13]]
    assert update.final_rows.tolist() == [2]
    assert ring.sampleable().tolist() == [0, 1, 3, 10, 11, 12]
    update = ring.advance(flags("11", "01"))
    assert update.rows.tolist() == [[5, 7], [14, 15]]
    assert update.final_rows.tolist() == [6, 8, 16]
    assert ring.sampleable().tolist() == [0, 1, 3, 4, 5, 7, 10, 11, 12, 13, 14, 15]


def test_the_head_runs_over_steps_and_final_rows():
    ring = StreamRing(8)
    ring.advance(flags("010"))  # rows 0 1 (2) 3
    ring.advance(flags("000"))  # rows 4 5 6
    assert ring.advance(flags("00")).rows.tolist() == [[7, 0]]
    assert ring.sampleable().tolist() == [1, 3, 4, 5, 6, 7]
    ring.advance(flags("0"))  # row 1
    assert ring.sampleable().tolist() == [3, 4, 5, 6, 7, 0]
    ring.advance(flags("0"))  # row 2, which was final: no step is lost
    assert ring.sampleable().tolist() == [3, 4, 5, 6, 7, 0, 1]
    ring.advance(flags("1"))  # rows 3 and (4)
    assert ring.sampleable().tolist() == [5, 6, 7, 0, 1, 2, 3]


def test_changes_add_up_to_what_can_be_sampled():
    ring = StreamRing(16, 3, frame_stack=3)
    live = torch.zeros(48, dtype=torch.bool)
    for turn in range(200):
        ends, starts = torch.rand(3, 1 + turn % 4) < 0.2, torch.rand(3, 1 + turn % 4) < 0.1
        ends[:, :-1] |= starts[:, 1:]
        update = ring.advance(ends, starts)
        live[update.changed] = update.live
        assert torch.equal(live.nonzero().flatten(), ring.sampleable().sort().values)
        assert not ring.final[ring.sampleable().numpy()].any()


def test_the_short_way_of_streams_that_go_on_is_the_long_way():
    """Nothing ends, nothing is run over: the same rows, the same state."""
    generator, short = torch.Generator().manual_seed(0), 0
    rings = [StreamRing(40, 3) for _ in range(2)]
    for turn in range(120):
        shape = (3, 1 + turn % 4)
        ends = torch.rand(shape, generator=generator) < 0.05
        starts = torch.rand(shape, generator=generator) < 0.03
        ends[:, :-1] |= starts[:, 1:]
        short += rings[0]._is_plain(ends.numpy(), starts.numpy())
        with fast_path(True):
            quick = rings[0].advance(ends, starts)
        with fast_path(False):
            slow = rings[1].advance(ends, starts)
        for name, one, other in zip(quick._fields, quick, slow, strict=True):
            assert torch.equal(one, other), name
        state = rings[0].state_dict()
        assert all(torch.equal(state[key], held) for key, held in rings[1].state_dict().items())
        assert torch.equal(rings[0].sampleable(), rings[1].sampleable())
        if turn % 30 == 29:
            for ring in rings:
                ring.clear()
    assert short > 15


def test_an_abandoned_step_becomes_a_final_state():
    ring = StreamRing(12)
    ring.advance(flags("000"))
    ring.advance(flags("00"), starts=flags("10"))
    assert ring.sampleable().tolist() == [0, 1, 3]
    rows, count = ring.window(torch.tensor([0, 1, 3]), 4)
    assert count.flatten().tolist() == [2, 1, 1]
    assert rows[0, :3].tolist() == [0, 1, 2]


def test_state_round_trip():
    ring, other = StreamRing(12, 2, frame_stack=3), StreamRing(12, 2, frame_stack=3)
    for _ in range(9):
        ring.advance(torch.rand(2, 3) < 0.3)
    other.load_state_dict({key: value.clone() for key, value in ring.state_dict().items()})
    for _ in range(9):
        ends = torch.rand(2, 3) < 0.3
        for left, right in zip(ring.advance(ends), other.advance(ends), strict=True):
            assert torch.equal(left, right)
        assert torch.equal(ring.sampleable(), other.sampleable())
