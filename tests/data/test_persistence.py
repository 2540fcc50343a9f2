from __future__ import annotations

import pytest
import torch

from torchrl_dceo.data import persistence
from torchrl_dceo.data.persistence import load_state, save_state


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def state(offset: int = 0):
    return {
        "bytes": torch.arange(24, dtype=torch.uint8).view(2, 3, 4) + offset,
        "part": (torch.arange(60).view(3, 5, 4) + offset)[:, :2],  # not contiguous
        "transposed": torch.rand(3, 4).t() + offset,
        "half": torch.rand(3).bfloat16(),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(1.5),
        "nothing": torch.zeros(0, 3),
        "inner": {"list": [torch.arange(3), 2, "x", None, True], "": {}, "a.b/c": 1e-300},
    }


@pytest.mark.parametrize("chunk", [4, 1 << 24])
def test_round_trip(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(persistence, "_CHUNK", chunk)
    saved = state()
    save_state(tmp_path / "new" / "folder", saved)
    loaded = load_state(tmp_path / "new" / "folder")
    assert same(saved, loaded)
    loaded["bytes"] += 1  # private: the file does not change
    assert same(saved, load_state(tmp_path / "new" / "folder"))


def test_only_bytes_and_json(tmp_path):
    save_state(tmp_path, state())
    names = {path.name for path in tmp_path.iterdir()}
    assert "state.json" in names and all(name.endswith(".bin") for name in names - {"state.json"})
    sizes = sum(path.stat().st_size for path in tmp_path.glob("*.bin"))
    assert sizes == 24 + 3 * 2 * 4 * 8 + 12 * 4 + 3 * 2 + 2 + 4 + 3 * 8


def test_a_crash_while_saving_leaves_the_old_state(tmp_path, monkeypatch):
    old = state()
    save_state(tmp_path, old)
    write, calls = persistence._write, []

    def fail_at_the_third(path, tensor):
        calls.append(path)
        if len(calls) == 3:
            raise OSError("disk full")
        return write(path, tensor)

    monkeypatch.setattr(persistence, "_write", fail_at_the_third)
    with pytest.raises(OSError, match="disk full"):
        save_state(tmp_path, state(1))
    assert same(load_state(tmp_path), old)
    save_state(tmp_path, state(2))
    assert int(load_state(tmp_path)["bytes"][0, 0, 0]) == 2
    assert len(list(tmp_path.glob("*.bin"))) == 8  # the left-overs are gone


def test_damage_is_noticed(tmp_path):
    save_state(tmp_path, {"x": torch.arange(100)})
    (file,) = tmp_path.glob("*.bin")
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    with pytest.raises(ValueError, match="does not have its 800 bytes"):
        load_state(tmp_path)
    file.write_bytes(good[:50] + bytes([good[50] ^ 1]) + good[51:])
    with pytest.raises(ValueError, match=r"checksum of .* differs"):
        load_state(tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match="is damaged"):
        load_state(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"No saved state in .*: it has no file state\.json"
    ):
        load_state(tmp_path / "elsewhere")


def test_what_would_need_pickle_is_refused(tmp_path):
    with pytest.raises(TypeError, match="Cannot save a value of type object without pickle"):
        save_state(tmp_path, {"x": object()})
