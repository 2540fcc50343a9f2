from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage
from torchrl.envs import DoubleToFloat

from torchrl_dceo.data import NStepReplayBuffer, UniformStepSampler, make_replay_buffer
from torchrl_dceo.data.nstep import Columns, NStepReader
from torchrl_dceo.data.ring import StreamRing
from torchrl_dceo.data.writer import RowStorage, StreamWriter


def batch(*shape: int, **changes) -> TensorDict:
    data = TensorDict({"pixels": torch.zeros(*shape, 3, 4, 4, dtype=torch.uint8)}, shape)
    data["action"] = torch.zeros(shape, dtype=torch.int64)
    data["next"] = TensorDict({"pixels": data["pixels"], "reward": torch.zeros(*shape, 1)}, shape)
    for key in ("done", "terminated", "truncated"):
        data["next", key] = torch.zeros(*shape, 1, dtype=torch.bool)
    for key, value in changes.items():
        data[key] = value
    return data


@pytest.mark.parametrize(
    ("shape", "streams"), [((6,), 1), ((1, 6), 1), ((4, 6), 4), ((2, 2, 6), 4)]
)
def test_layouts_of_collectors(shape, streams):
    rb = make_replay_buffer(200, num_streams=streams)
    rows = rb.extend(batch(*shape))
    assert rows.shape == shape
    expected = torch.arange(6) + torch.arange(streams).unsqueeze(1) * (200 // streams)
    assert torch.equal(rows.view(streams, 6), expected)
    assert len(rb) == 5 * streams and rb.write_count == 6 * streams


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 4, 6), (6, 4)])
def test_wrong_number_of_streams(shape):
    rb = make_replay_buffer(200, num_streams=4)
    with pytest.raises(ValueError, match=r"Expected a batch of 4 stream\(s\) with time last"):
        rb.extend(batch(*shape))
    with pytest.raises(ValueError, match="set num_streams"):
        rb.add(batch())


def test_add_takes_one_step_of_every_environment():
    rb = make_replay_buffer(200, num_streams=4)
    assert rb.add(batch(4)).tolist() == [0, 50, 100, 150]
    assert rb.add(batch(2, 2)).tolist() == [[1, 51], [101, 151]]
    rb = make_replay_buffer(200)
    assert rb.add(batch()).item() == 0
    assert rb.add(batch()).item() == 1
    assert len(rb) == 1


def test_batches_of_some_streams():
    rb = make_replay_buffer(200, num_streams=4)
    assert rb.extend(batch(2, 3), streams=[3, 1]).tolist() == [[150, 151, 152], [50, 51, 52]]
    assert rb.extend(batch(4, 1)).flatten().tolist() == [0, 53, 100, 153]
    for streams in ([4], [-1], [1, 1], []):
        with pytest.raises(ValueError, match="streams must be different numbers from 0 to 3"):
            rb.extend(batch(len(streams), 3), streams=streams)
    with pytest.raises(ValueError, match=r"Expected a batch of 1 stream\(s\)"):
        rb.extend(batch(2, 3), streams=[2])


@pytest.mark.parametrize(
    "key", ["pixels", "action", "next", ("next", "pixels"), ("next", "reward"), ("next", "done")]
)
def test_missing_entries_are_named(key):
    rb = make_replay_buffer(200)
    name = key if isinstance(key, str) else key[-1]
    with pytest.raises(KeyError, match=f"has no entry .*'{name}'"):
        rb.extend(batch(6).exclude(key))
    rb.extend(batch(6))  # nothing of the failed batch was written
    assert len(rb) == 5


def test_changed_shapes_and_dtypes_are_named():
    rb = make_replay_buffer(200)
    rb.extend(batch(6))
    with pytest.raises(ValueError, match=r"The entry 'action' has dtype torch\.float32"):
        rb.extend(batch(6, action=torch.zeros(6)))
    with pytest.raises(ValueError, match=r"The entry 'pixels' has dtype torch\.float32"):
        rb.extend(batch(6, pixels=torch.zeros(6, 3, 4, 4)))
    assert len(rb) == 5


def test_batches_longer_than_the_ring():
    rb = make_replay_buffer(20)
    assert rb.writer.ring.max_steps == 9
    with pytest.raises(
        ValueError, match="A batch of 10 steps per stream does not fit a ring of 20 rows"
    ):
        rb.extend(batch(10))
    data = batch(9)
    data["next", "done"] = data["next", "truncated"] = torch.ones(9, 1, dtype=torch.bool)
    for _ in range(3):
        rb.extend(data)
        assert 9 <= len(rb) <= 10
    with pytest.raises(ValueError, match="A batch of 0 steps"):
        rb.extend(batch(0))


def test_without_truncated_an_end_that_does_not_terminate_truncates():
    rb = make_replay_buffer(20)
    data = batch(3).exclude(("next", "truncated"))
    data["next", "done"] = torch.tensor([[True], [True], [False]])
    data["next", "terminated"] = torch.tensor([[True], [False], [False]])
    rb.extend(data)
    assert rb.transitions()["next", "truncated"].flatten().tolist() == [False, True]


def test_only_tensordicts():
    with pytest.raises(TypeError, match="extend takes a TensorDict, got list"):
        make_replay_buffer(20).extend([1, 2])


def test_other_storages_are_refused():
    ring, columns = StreamRing(20), Columns(["observation"], [], ["action"])
    writer = StreamWriter(ring, columns)
    with pytest.raises(TypeError, match="RowStorage on the CPU, got a LazyTensorStorage"):
        writer.register_storage(LazyTensorStorage(20))
    with pytest.raises(ValueError, match="The storage has 10 rows, the ring 20"):
        writer.register_storage(RowStorage(10))


def test_the_parts_of_a_buffer_can_be_combined():
    """What make_replay_buffer does, part by part, with a transform of TorchRL's."""
    ring, columns = StreamRing(20), Columns(["observation"], [], ["action"])
    storage, sampler = RowStorage(20), UniformStepSampler(ring, seed=0)
    rb = NStepReplayBuffer(
        reader=NStepReader(ring, columns, storage.tensors, n_steps=2, gamma=0.5),
        uniform=sampler,
        storage=storage,
        sampler=sampler,
        writer=StreamWriter(ring, columns),
        transform=DoubleToFloat(in_keys=["observation"], out_keys=["observation"]),
        batch_size=8,
    )
    steps = TensorDict({"observation": torch.arange(4.0).double(), "action": torch.zeros(4)}, [4])
    flags = {"done": torch.zeros(4, 1).bool(), "terminated": torch.zeros(4, 1).bool()}
    following = {"observation": torch.arange(1.0, 5.0).double(), "reward": torch.ones(4, 1)}
    rb.extend(steps.set("next", TensorDict({**following, **flags}, [4])))
    batch = rb.sample()
    assert batch["observation"].dtype == torch.float32
    distance = batch["next", "observation"] - batch["observation"]
    assert torch.equal(distance, batch["steps_to_next_obs"].squeeze(-1).to(distance.dtype))


@pytest.mark.parametrize("in_files", [False, True])
def test_rows_that_are_never_written_cost_no_memory(in_files):
    code = f"""
import os, torch
from torchrl_dceo.data.writer import RowStorage
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
storage = RowStorage(10**6, in_files={in_files})
before = resident()
storage.allocate({{"pixels": torch.zeros(1, 1024, dtype=torch.uint8)}})
storage.tensors["pixels"][:100] = 1
print(resident() - before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 50e6  # of the 1024e6 bytes reserved


def test_storage_is_read_and_saved_by_rows(tmp_path):
    storage = RowStorage(10)
    with pytest.raises(RuntimeError, match="has no row yet"):
        storage.get(0)
    assert len(storage) == 0
    rows = TensorDict({"a": torch.arange(3), ("b", "c"): torch.rand(3, 2)}, [3])
    storage.set(torch.tensor([1, 4, 7]), rows)
    assert len(storage) == 10 and storage[4].shape == () and storage[:5].shape == (5,)
    assert torch.equal(storage[torch.tensor([1, 4, 7])]["b", "c"], rows["b", "c"])
    other = RowStorage(10)
    other.set(0, rows[0])
    storage.dumps(tmp_path)
    other.loads(tmp_path)
    assert torch.equal(other[:]["a"], storage[:]["a"])


def test_a_start_within_a_batch_cuts_the_episode_before_it():
    """Without a flag at its end: what follows belongs to another episode."""
    rb = make_replay_buffer(100, n_steps=3, observation_keys=["x"])
    data = TensorDict({"x": torch.tensor([[0.0], [1.0], [2.0], [3.0]])}, [4])
    data["action"] = torch.zeros(4, dtype=torch.int64)
    data["is_init"] = torch.tensor([[True], [False], [True], [False]])
    following = {"x": torch.tensor([[1.0], [9.0], [3.0], [4.0]]), "reward": torch.ones(4, 1)}
    ends = {key: torch.zeros(4, 1, dtype=torch.bool) for key in ("done", "terminated")}
    data["next"] = TensorDict({**following, **ends}, [4])
    rb.extend(data)
    held = rb.transitions()
    assert held["x"].flatten().tolist() == [0.0, 1.0, 2.0]
    assert held["next", "x"].flatten().tolist() == [9.0, 9.0, 3.0]
    assert held["steps_to_next_obs"].flatten().tolist() == [2, 1, 1]
    assert not held["next", "done"].any()
