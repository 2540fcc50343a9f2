from __future__ import annotations

import json
import math
import os
import signal
import sys

import pytest
import torch
from same_state import same
from tensordict import TensorDict

from torchrl_dceo.data import make_replay_buffer, persistence
from torchrl_dceo.data.persistence import load_state, save_state


def state(offset: int = 0):
    return {
        "bytes": torch.arange(24, dtype=torch.uint8).view(2, 3, 4) + offset,
        "part": (torch.arange(60).view(3, 5, 4) + offset)[:, :2],  # not contiguous
        "transposed": torch.rand(3, 4).t() + offset,
        "half": torch.rand(3).bfloat16(),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(1.5),
        "nothing": torch.zeros(0, 3),
        "inner": {"list": [torch.arange(3), 2, "é", None, True], "": {}, "a.b/c": 1e-300},
        "infinite": [float("inf"), float("-inf")],
    }


@pytest.mark.parametrize("small", [0, 20, 1 << 20])  # none, some, all tensors in the shared file
@pytest.mark.parametrize("chunk", [4, 1 << 24])
def test_round_trip(tmp_path, monkeypatch, chunk, small):
    monkeypatch.setattr(persistence, "_CHUNK", chunk)
    monkeypatch.setattr(persistence, "_SMALL", small)
    saved = state()
    save_state(tmp_path / "new" / "folder", saved)
    loaded = load_state(tmp_path / "new" / "folder")
    assert same(saved, loaded)
    loaded["bytes"] += 1  # private: the file does not change
    assert same(saved, load_state(tmp_path / "new" / "folder"))


def test_only_bytes_and_json(tmp_path, monkeypatch):
    monkeypatch.setattr(persistence, "_SMALL", 0)
    save_state(tmp_path, state())
    names = {path.name for path in tmp_path.iterdir()}
    assert "state.json" in names and all(name.endswith(".bin") for name in names - {"state.json"})
    sizes = sum(path.stat().st_size for path in tmp_path.glob("*.bin"))
    assert sizes == 24 + 3 * 2 * 4 * 8 + 12 * 4 + 3 * 2 + 2 + 4 + 3 * 8


def test_a_crash_while_saving_leaves_the_old_state(tmp_path, monkeypatch):
    old = state()
    save_state(tmp_path, old)
    sync, calls = os.fsync, []

    def fail_at_the_third(handle):
        calls.append(handle)
        if len(calls) == 3:
            raise OSError("disk full")
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(persistence, "_SMALL", 0)
        patch.setattr(os, "fsync", fail_at_the_third)
        with pytest.raises(OSError, match="disk full"):
            save_state(tmp_path, state(1))
    assert len(list(tmp_path.glob("*.bin"))) > 1
    assert same(load_state(tmp_path), old)
    save_state(tmp_path, state(2))
    assert int(load_state(tmp_path)["bytes"][0, 0, 0]) == 2
    assert len(list(tmp_path.glob("*.bin"))) == 1  # the left-overs are gone


def save_and_die(path, die_at: int, value: int) -> int:
    """Saves in a child that dies by SIGKILL at its n-th file operation; returns how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    calls = 0

    def count(event, args):
        nonlocal calls
        if event in ("open", "os.rename", "os.remove", "os.scandir", "os.listdir"):
            calls += 1
            if calls == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    save_state(path, {"x": torch.full((9,), value), "y": torch.full((5,), value)})
    os._exit(0)


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_killed_at_any_moment_the_old_state_or_the_new_is_there(tmp_path, monkeypatch, small):
    monkeypatch.setattr(persistence, "_SMALL", small)
    save_state(tmp_path, {"x": torch.zeros(9), "y": torch.zeros(5)})
    seen, last = [], 0
    for die_at in range(1, 30):
        status = save_and_die(tmp_path, die_at, value=die_at)
        loaded = load_state(tmp_path)
        values = {int(v) for tensor in loaded.values() for v in tensor}
        assert values in ({last}, {die_at})
        last = values.pop()
        seen.append((status, last == die_at))
        if status == 0:
            break
    assert set(seen) == {(-9, False), (-9, True), (0, True)}
    assert len(list(tmp_path.iterdir())) == (4 if small == 0 else 2)


def test_an_interrupted_save_is_cleared_away(tmp_path):
    with pytest.raises(TypeError):
        save_state(tmp_path, {"a": torch.arange(3), "x": object()})
    with pytest.raises(FileNotFoundError):
        load_state(tmp_path)
    save_state(tmp_path, {"a": torch.arange(3)})
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".bin", ".json"]


def test_what_shrinks_is_compressed_and_the_rest_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(persistence, "_SMALL", 1000)
    monkeypatch.setattr(persistence, "_SAMPLE", 1000)
    flat = torch.arange(50, dtype=torch.uint8).repeat(7, 400)
    saved = {
        "flat": flat,
        "part": flat[:, :19_999],  # not contiguous
        "small": torch.zeros(100),
        "noise": torch.randint(256, (100_000,), dtype=torch.uint8),
    }
    save_state(tmp_path / "packed", saved, compress=True)
    save_state(tmp_path / "raw", saved)
    assert same(load_state(tmp_path / "packed"), saved)
    assert same(load_state(tmp_path / "raw"), saved)
    sizes = [
        [path.stat().st_size for path in sorted((tmp_path / name).glob("*.bin"))]
        for name in ("packed", "raw")
    ]
    assert sizes[1] == [140_000, 139_993, 100_000, 400]
    assert max(sizes[0][:2]) < 14_000 and sizes[0][2:] == [100_000, 400]


def each_damage(good: bytes):
    """Every way that a file is cut short, grows or has one bit flipped (a sample of the bits)."""
    yield from (good[:-1], good[: len(good) // 2], b"", good + b"\0")
    for bit in range(0, 8 * len(good), max(1, 8 * len(good) // 200)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


@pytest.mark.parametrize("compress", [False, True])
def test_damage_of_any_file_is_noticed(tmp_path, monkeypatch, compress):
    monkeypatch.setattr(persistence, "_SMALL", 100)
    monkeypatch.setattr(persistence, "_SAMPLE", 100)
    saved = {"x": torch.arange(100), "y": torch.rand(3), "z": {"é": 1e-3, "flag": True}}
    save_state(tmp_path, saved, compress=compress)
    files = sorted(tmp_path.iterdir())
    assert [path.name[:5] for path in files] == ["0000-", "small", "state"]
    assert (files[0].stat().st_size < 400) == compress
    for file in files:
        good = file.read_bytes()
        for bad in each_damage(good):
            file.write_bytes(bad)
            with pytest.raises(ValueError, match=r"damaged") as error:
                load_state(tmp_path)
            assert str(file) in str(error.value)
        file.write_bytes(good)
        assert same(load_state(tmp_path), saved)


def test_the_error_says_what_is_wrong(tmp_path):
    save_state(tmp_path, {"x": torch.arange(100)})
    (file,) = tmp_path.glob("*.bin")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="does not have its 800 bytes"):
        load_state(tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match="is damaged"):
        load_state(tmp_path)
    (tmp_path / "state.json").write_text('{"items": []}')
    with pytest.raises(ValueError, match=r"state\.json is not a state saved by torchrl_dceo"):
        load_state(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"No saved state in .*: it has no file state\.json"
    ):
        load_state(tmp_path / "elsewhere")


def test_the_index_is_json(tmp_path):
    save_state(tmp_path, {"x": torch.arange(3), "nan": float("nan")})
    refuse = {"parse_constant": lambda name: pytest.fail(f"{name} is no JSON")}
    index = json.loads((tmp_path / "state.json").read_text(), **refuse)
    assert set(index) == {"format", "crc32", "state"}
    assert math.isnan(load_state(tmp_path)["nan"])


def test_what_would_need_pickle_is_refused(tmp_path):
    with pytest.raises(TypeError, match="Cannot save a value of type object without pickle"):
        save_state(tmp_path, {"x": object()})


def test_what_is_saved_depends_on_what_is_held_alone():
    """Neither on what the memory held before, nor on what the buffer held: saved bytes can be compared."""

    def buffer(fill: int):
        one = make_replay_buffer(
            120, num_streams=2, observation_keys=["x"], frame_stack=2, stack_dim=-1, seed=0
        )
        one.extend(steps(7, [3, 3]))  # allocates
        for held in one.writer.tensors.values():
            held.fill_(fill)
        one.empty()
        return one

    def steps(count: int, done_at: list[int]) -> TensorDict:
        done = torch.zeros(2, count, 1, dtype=torch.bool)
        for stream, end in enumerate(done_at):
            done[stream, end : end + 1] = True
        x = torch.arange(1, count + 1).expand(2, count)
        following = {"x": torch.stack([x, x + 1], -1), "reward": x[..., None].float(), "done": done}
        root = {"x": torch.stack([x - 1, x], -1), "action": x}
        return TensorDict({**root, "next": {**following, "terminated": done}}, [2, count])

    one, other, loaded = buffer(0), buffer(1), buffer(1)
    for used in (one, other):
        used.extend(steps(10, done_at=[5, 10]))  # only the first stream ends, and gets ahead
    loaded.extend(steps(20, done_at=[1, 7]))
    loaded.load_state_dict(one.state_dict())
    for _ in range(8):
        states = [used.state_dict() for used in (one, other, loaded)]
        assert same(states[0], states[1]) and same(states[0], states[2])
        for used in (one, other, loaded):
            used.extend(steps(9, done_at=[3, 9]))


def test_a_single_element_of_any_stride(tmp_path):
    """A column of a matrix with one row, as the room of a single environment is: contiguous, but no view as bytes."""
    column = torch.arange(3).view(1, 3).unbind(-1)[1]
    assert column.is_contiguous() and column.stride() == (3,)
    save_state(tmp_path, {"column": column})
    assert load_state(tmp_path)["column"].tolist() == [1]
