"""Checkpoints: rotated, bounded, and refused when damaged."""

from __future__ import annotations

import logging

import pytest
import torch
from training_runs import difference, final_state, make_trainer, rows

from torchrl_dceo.data import persistence
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import Checkpoints


def test_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path / "new", keep=3)
    assert checkpoints.steps() == [] and checkpoints.nbytes() == 0
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        checkpoints.load_latest()
    for step in range(5):
        checkpoints.save(step, {"x": torch.full((1000,), step)})
    assert checkpoints.steps() == [2, 3, 4]
    assert 3 * 8000 < checkpoints.nbytes() < 3 * 9000
    assert int(checkpoints.load_latest()["x"][0]) == 4
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        Checkpoints(tmp_path, keep=0)


def test_what_was_left_unfinished_is_no_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, {"x": torch.ones(1)})
    (tmp_path / "000000000002").mkdir()
    (tmp_path / "000000000002" / "small-0.bin").write_bytes(b"half")
    assert checkpoints.steps() == [1]
    assert int(checkpoints.load_latest()["x"]) == 1
    checkpoints.save(3, {"x": torch.ones(1)})
    assert [path.name for path in tmp_path.iterdir()] == ["000000000003"]


def test_a_resumed_run_does_not_keep_a_refused_future(tmp_path):
    """Damaged checkpoints ahead of it must not take the places of whole ones."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (10, 20, 30):
        checkpoints.save(step, {"x": torch.full((1,), step)})
    (tmp_path / "000000000030" / "state.json").write_text("damaged")
    assert int(checkpoints.load_latest()["x"]) == 20
    checkpoints.save(25, {"x": torch.full((1,), 25)})
    assert checkpoints.steps() == [20, 25]


def test_an_unwanted_state_is_passed_over(tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, {"step": step})

    def check(state):
        if state["step"] > limit:
            raise ValueError(f"step {state['step']} is foreign")

    limit = 1
    assert checkpoints.load_latest(check)["step"] == 1
    assert "000000000002 is not used: step 2 is foreign" in caplog.text
    limit = 0
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be used: step 2 is foreign"):
        checkpoints.load_latest(check)


def test_damage_to_any_file_costs_one_checkpoint(tmp_path, monkeypatch, caplog):
    """Each file of a real checkpoint, cut short or with one bit flipped: the one before is used."""
    monkeypatch.setattr(persistence, "_SMALL", 20_000)
    monkeypatch.setattr(persistence, "_SAMPLE", 5000)
    trainer = make_trainer(tmp_path)
    trainer.run()
    expected, log = final_state(tmp_path), rows(tmp_path)
    newest = tmp_path / "checkpoints" / "000000000300"
    files = sorted(newest.iterdir())
    kinds = {path.name.split("-")[0] for path in files}
    assert {"small", "state.json"} < kinds and len(files) > 5
    caplog.set_level(logging.WARNING)
    assert trainer.resume() == 300
    draw = torch.Generator().manual_seed(0)
    for file in files:
        good = file.read_bytes()
        place = int(torch.randint(len(good), (), generator=draw))
        flipped = good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :]
        for bad in (good[:-1], flipped):
            file.write_bytes(bad)
            caplog.clear()
            assert trainer.resume() == 200
            assert str(file) in caplog.text
        file.write_bytes(good)
    # And from the one before, the run ends as it did.
    files[0].write_bytes(b"")
    trainer.close()
    again = make_trainer(tmp_path)
    assert again.resume() == 200
    again.run()
    assert difference(final_state(tmp_path), expected) is None and rows(tmp_path) == log
    assert again.checkpoints.steps() == [200, 300]


def test_without_a_whole_checkpoint_nothing_is_resumed(tmp_path):
    trainer = make_trainer(tmp_path, frames=100)
    trainer.run()
    (tmp_path / "checkpoints" / "000000000100" / "state.json").write_bytes(b"{}")
    log = rows(tmp_path)
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be used: .*state\.json is not"):
        make_trainer(tmp_path).resume()
    assert rows(tmp_path) == log  # what is there stays


def test_pictures_of_a_grid_take_a_fraction_of_their_bytes(tmp_path):
    env = make_env("NineRooms", batch_size=10, seed=0)
    pixels = env.rollout(200, break_when_any_done=False)["pixels"]
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, {"pixels": pixels})
    assert checkpoints.nbytes() < pixels.nbytes / 15
    assert torch.equal(checkpoints.load_latest()["pixels"], pixels)


def test_no_pickle(tmp_path, monkeypatch):
    """Neither pickle nor torch.save is called, and no file has the marks of one."""
    import pickle

    def refuse(*args, **kwargs):
        raise AssertionError("pickled")

    trainer = make_trainer(tmp_path, frames=100)
    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    trainer.run()
    assert trainer.resume() == 100
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".bin", ".json", ".csv", ".lock", ".yaml"}
    assert not any(path.read_bytes()[:2] in (b"PK", b"\x80\x04") for path in files)
