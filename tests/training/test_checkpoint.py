"""Checkpoints: rotated, bounded, and refused when damaged."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys

import pytest
import torch
from training_runs import difference, final_state, make_trainer, rows

from torchrl_dceo.data import persistence, replay_buffer
from torchrl_dceo.data.persistence import Segment, load_state
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


# Segments, which a checkpoint takes over from the one that it drives out


def growing(count: int, changed: int = -1) -> dict:
    """A state whose rows are ``count`` segments, one of which may have changed."""
    return {
        "count": count,
        "rows": [
            Segment({"x": torch.full((300,), i + (i == changed) * 0.5)}, (i, i == changed))
            for i in range(count)
        ],
    }


def inodes(folder) -> set[int]:
    return {path.stat().st_ino for path in folder.glob("*.bin")}


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_kept_checkpoints_share_no_file(tmp_path, keep):
    """So that damage to one file costs one of them, and yet a row is written only once for each of them."""
    checkpoints, written = Checkpoints(tmp_path, keep=keep), set()
    for step in range(1, 13):
        checkpoints.save(step, growing(step))
        checkpoints.save_best(growing(step))
        folders = [tmp_path / f"{s:012d}" for s in checkpoints.steps()]
        files = [inodes(folder) for folder in [*folders, tmp_path / "best"]]
        assert len(set.union(*files)) == sum(map(len, files))
        assert {p.stat().st_nlink for p in tmp_path.rglob("*.bin")} == {1}
        for s, folder in zip(checkpoints.steps(), folders, strict=True):
            assert load_state(folder)["count"] == s
            assert [float(part["x"][0]) for part in load_state(folder)["rows"]] == [*range(s)]
        assert (
            len(checkpoints._segments) == len(folders) + 1
        )  # nothing is remembered of what is gone
        newest = folders[-1]
        written |= {path.name for path in newest.glob("[0-9]*.bin")}
    # Every segment once for each chain of checkpoints; the first of each chain are short.
    assert len(written) == sum(min(keep, 12 - i) for i in range(12))


def test_what_is_damaged_is_written_anew(tmp_path, caplog):
    """Damage in a checkpoint that is about to leave does not pass to the next one."""
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, growing(5))
    for path in (tmp_path / "000000000001").glob("0*.bin"):
        path.write_bytes(bytes(path.stat().st_size))
    checkpoints.save(3, growing(5))
    assert [float(part["x"][0]) for part in checkpoints.load_latest()["rows"]] == [*range(5)]
    assert not caplog.text
    # And what changed is not taken for what it was.
    checkpoints.save(4, growing(5, changed=2))
    held = [float(part["x"][0]) for part in checkpoints.load_latest()["rows"]]
    assert held == [0, 1, 2.5, 3, 4]


def test_only_own_files_are_taken_over(tmp_path):
    """After a resume the files of before are not trusted: another object writes in full."""
    for step in (1, 2):
        Checkpoints(tmp_path).save(step, growing(4))
    old = inodes(tmp_path / "000000000001")
    Checkpoints(tmp_path).save(3, growing(4))
    assert not old & inodes(tmp_path / "000000000003")


def test_a_step_that_is_saved_again(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for count, step in ((3, 1), (4, 2), (5, 2), (6, 2)):
        checkpoints.save(step, growing(count))
    assert checkpoints.steps() == [1, 2] and checkpoints.load_latest()["count"] == 6
    assert len(list((tmp_path / "000000000002").glob("0*.bin"))) == 6
    assert not inodes(tmp_path / "000000000001") & inodes(tmp_path / "000000000002")


def save_and_die(checkpoints, step: int, die_at: int) -> int:
    """Saves in a child that dies by SIGKILL at its n-th file operation; returns how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    calls = 0
    watched = ("open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "shutil.rmtree")

    def count(event, args):
        nonlocal calls
        if event in watched:
            calls += 1
            if calls == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    checkpoints.save(step, growing(step))
    os._exit(0)


def test_killed_at_any_moment_of_taking_over(tmp_path, monkeypatch):
    """The newest checkpoint or the one before it is whole, the one before does not depend on it, and all goes on."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    ends = set()
    for die_at in range(1, 60):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        checkpoints = Checkpoints(tmp_path / "a")
        for step in (4, 5):
            checkpoints.save(step, growing(step))
        status = save_and_die(checkpoints, 6, die_at)
        found = checkpoints.load_latest()["count"]
        assert found in (5, 6) and len(checkpoints.load_latest()["rows"]) == found
        ends.add((status, found))
        if found == 6:
            # One damaged byte of the newest, shared with what is about to leave or not, costs the newest alone.
            for path in sorted((tmp_path / "a" / "000000000006").glob("*.bin")):
                good = path.read_bytes()
                path.write_bytes(b"\x01" + good[1:] if good[:1] != b"\x01" else b"\x02" + good[1:])
                assert checkpoints.load_latest()["count"] == 5
                path.write_bytes(good)
        checkpoints.save(7, growing(7))
        assert checkpoints.load_latest()["count"] == 7
        assert len(checkpoints.steps()) == 2
        if status == 0:
            break
    assert ends == {(-9, 5), (-9, 6), (0, 6)}


def test_a_run_in_segments_is_the_run(tmp_path, monkeypatch, caplog):
    """Its checkpoints are those that are written in full; a damaged segment is named and costs one of them."""
    plain = tmp_path / "plain"
    make_trainer(plain, frames=600).run()
    monkeypatch.setattr(replay_buffer, "_SEGMENT", 5000)
    trainer = make_trainer(tmp_path / "a", frames=600)
    taken, real = [], os.link
    monkeypatch.setattr(os, "link", lambda *names: taken.append(names) or real(*names))
    trainer.run()
    assert taken
    states = [final_state(tmp_path / name) for name in ("a", "plain")]
    parts = states[0]["replay"]["rows"]
    assert len(parts) > 20 and len(states[1]["replay"]["rows"]) == 1
    together = {key: torch.cat([part[key] for part in parts], 1) for key in parts[0]}
    states[0]["replay"]["rows"] = [together]
    assert difference(*states) is None
    newest = tmp_path / "a" / "checkpoints" / "000000000600"
    segment = min(newest.glob("0*.bin"))
    segment.write_bytes(segment.read_bytes()[:-1])
    again = make_trainer(tmp_path / "a", frames=600)
    assert again.resume() == 500
    assert f"{segment} does not have its" in caplog.text
    again.run()
    parts = final_state(tmp_path / "a")["replay"]["rows"]
    assert difference({k: torch.cat([p[k] for p in parts], 1) for k in parts[0]}, together) is None
