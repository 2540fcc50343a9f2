from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.data.nstep import OWN_KEYS, Columns


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
        with pytest.raises(ValueError, match="is written by the buffer"):
            Columns(["a"], [key], [])
    with pytest.raises(ValueError, match="frame_stack must be at least 1, got 0"):
        Columns(["a"], [], [], frame_stack=0)
    with pytest.raises(ValueError, match="stack_dim must be negative, got 0"):
        Columns(["a"], [], [], stack_dim=0)
    with pytest.raises(ValueError, match="cannot be cut into frame_stack=4"):
        Columns(["a"], [], [], frame_stack=4).newest_frame(torch.zeros(3, 6, 2, 2))


@pytest.mark.parametrize("key", [*OWN_KEYS, *((name, "mine") for name in OWN_KEYS)])
@pytest.mark.parametrize("where", ["observations", "states", "steps"])
def test_keys_that_the_buffer_writes_are_refused(key, where):
    entries = {"observations": ["pixels"], "states": [], "steps": []}
    entries[where] = [*entries[where], key]
    with pytest.raises(ValueError, match="is written by the buffer: remove it"):
        Columns(**entries)


def test_a_sample_has_no_entry_that_could_be_overwritten():
    """Every root entry of a sample that no column names is among those refused."""
    rb = make_replay_buffer(
        100, observation_keys=["x"], n_steps=2, window=True, pair_steps=3, sampler="prioritized"
    )
    steps = TensorDict({"x": torch.rand(6, 1), "action": torch.zeros(6)}, [6])
    flags = {"done": torch.zeros(6, 1).bool(), "terminated": torch.zeros(6, 1).bool()}
    steps["next"] = TensorDict({"x": torch.rand(6, 1), "reward": torch.zeros(6, 1), **flags}, [6])
    rb.extend(steps)
    written = set(rb.sample(4).keys()) - {"x", "action"}
    assert written >= {"next", "successor", "window", "later", "index", "priority_weight"}
    assert written <= set(OWN_KEYS)
    assert set(rb.writer.tensors) - {"x", "action"} <= set(OWN_KEYS)


def test_two_keys_with_one_name_on_disk_are_refused():
    with pytest.raises(ValueError, match=r"saved under the name 'a\.b': rename one"):
        Columns([("a", "b")], ["a.b"], [])
