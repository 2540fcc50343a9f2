"""Damaged, lost and crafted files: named, restored where something holds them, refused where nothing does."""

from __future__ import annotations

import errno
import json
import logging
import os
import zipfile
import zlib

import pytest
import torch
from training_runs import difference, final_state, make_trainer, rows

from torchrl_dceo.analysis import load_analysis
from torchrl_dceo.data import persistence
from torchrl_dceo.data.persistence import Segment, load_state, save_state
from torchrl_dceo.training import Checkpoints
from torchrl_dceo.training import checkpoint as checkpoint_module
from torchrl_dceo.training.checkpoint.run_directory import load_settings
from torchrl_dceo.training.errors import RunError


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished")
    make_trainer(path).run()
    return path


def cut(text: bytes) -> bytes:
    return text[: len(text) // 3]


def garbage_line(text: bytes) -> bytes:
    lines = text.split(b"\n")
    return b"\n".join([*lines[:2], b"some words", *lines[3:]])


def another_digit(text: bytes) -> bytes:
    lines = text.split(b"\n")
    return b"\n".join([*lines[:1], lines[1].replace(b"100,", b"107,", 1), *lines[2:]])


def binary(text: bytes) -> bytes:
    lines = text.split(b"\n")
    return b"\n".join([lines[0], bytes(range(11, 256)), *lines[2:]])


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (None, "progress.csv is missing"),
        (lambda text: b"", "has 0 of 3 rows"),
        (cut, "progress.csv"),
        (garbage_line, "line 3 of "),
        (another_digit, "line 2 of "),
        (binary, "line 2 of "),
        (lambda text: text.replace(b"frames", b"frumes", 1), "line 1 of "),
    ],
)
def test_the_log_is_restored_from_the_checkpoint(tmp_path, caplog, damage, sentence):
    make_trainer(tmp_path, frames=200).run()
    whole = make_trainer(tmp_path, frames=300)
    whole.resume()
    whole.run()
    log, path = rows(tmp_path), tmp_path / "progress.csv"
    good = path.read_bytes()
    path.unlink() if damage is None else path.write_bytes(damage(good))
    caplog.set_level(logging.WARNING)
    trainer = make_trainer(tmp_path, frames=400)
    assert trainer.resume() == 300
    assert sentence in caplog.text and "restored from the checkpoint" in caplog.text
    assert rows(tmp_path)[:3] == log
    trainer.run()
    assert [row["frames"] for row in rows(tmp_path)] == ["100", "200", "300", "400"]


def test_what_a_killed_run_leaves_of_a_row_is_no_damage(tmp_path, caplog):
    """Rows after the checkpoint are written again anyway."""
    make_trainer(tmp_path).run()
    with (tmp_path / "progress.csv").open("ab") as file:
        file.write(b"400,12\n50\xff0,")
    caplog.set_level(logging.WARNING)
    assert make_trainer(tmp_path).resume() == 300
    assert not [r for r in caplog.records if r.name.startswith("torchrl_dceo")]
    assert len(rows(tmp_path)) == 3


@pytest.mark.parametrize(
    "error",
    [PermissionError(13, "no"), KeyError("agent"), MemoryError(), RecursionError(), TypeError("x")],
)
def test_any_error_of_a_checkpoint_falls_back(tmp_path, monkeypatch, caplog, error):
    trainer = make_trainer(tmp_path)
    trainer.run()
    real = checkpoint_module.load_state

    def load(folder):
        if folder.name.endswith("300"):
            raise error
        return real(folder)

    monkeypatch.setattr(checkpoint_module, "load_state", load)
    assert make_trainer(tmp_path).resume() == 200
    assert "000000000300 is not used: " + type(error).__name__ in caplog.text


@pytest.mark.parametrize("kind", ["directory for a file", "directory for the index", "no index"])
def test_other_things_in_the_place_of_files(tmp_path, caplog, kind):
    make_trainer(tmp_path).run()
    newest = tmp_path / "checkpoints" / "000000000300"
    file = newest / "state.json" if "index" in kind else next(newest.glob("small-*.bin"))
    file.unlink()
    if kind.startswith("directory"):
        file.mkdir()
    trainer = make_trainer(tmp_path)
    assert trainer.resume() == 200
    assert f"checkpoint {newest} is not used" in caplog.text
    assert file.name in caplog.text
    trainer.run()
    assert trainer.checkpoints.steps() == [200, 300]


def test_a_state_with_a_part_missing_falls_back(tmp_path, caplog):
    """Its checksums hold: it was never what a run writes."""
    expected = tmp_path / "whole"
    make_trainer(expected).run()
    make_trainer(tmp_path / "a").run()
    folder = tmp_path / "a" / "checkpoints" / "000000000300"
    state = load_state(folder)
    del state["replay"]
    save_state(folder, state)
    again = make_trainer(tmp_path / "a")
    assert again.resume() == 200 and "is not used: KeyError: 'replay'" in caplog.text
    again.run()
    assert difference(final_state(tmp_path / "a"), final_state(expected)) is None


# Crafted files


def crafted(folder, change) -> None:
    """A saved state whose index is changed, with the right checksum."""
    segment = Segment({"a": torch.zeros(999), "b": torch.arange(4)}, 0)
    saved = {"x": torch.arange(6).view(2, 3), "y": torch.zeros(1 << 18), "z": segment}
    save_state(folder, saved, compress=True)
    path = folder / "state.json"
    index = persistence._read_index(path)
    change(index)
    path.write_bytes(persistence._framed(json.dumps(index).encode()))


def node(index, name="x", inside=None):
    found = next(item for key, item in index["tree"]["items"] if key == name)
    return found if inside is None else dict(found["items"])[inside]


def rename(index, name):
    old = node(index)["file"]
    node(index)["file"] = name
    index["files"][name] = index["files"].pop(old)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda i: rename(i, "../secret.bin"),
            "names '../secret.bin', which is not a file in its directory",
        ),
        (
            lambda i: rename(i, "/etc/hostname"),
            "names '/etc/hostname', which is not a file in its directory",
        ),
        (lambda i: node(i).update(offset=-8), "contains no tensor of the kind"),
        (lambda i: node(i).update(shape=[-2, -3]), "contains no tensor of the kind"),
        (lambda i: node(i).update(shape=[2.0, 3]), "contains no tensor of the kind"),
        (lambda i: node(i).update(shape=[2, 300]), "a tensor of 4800 bytes is not in a file of 48"),
        (lambda i: node(i).update(offset=16), "a tensor of 48 bytes is not in a file of 48"),
        (lambda i: node(i).update(shape=[1 << 50]), "is not in a file of 48"),
        (lambda i: node(i).update(dtype="save"), "contains no tensor of the kind"),
        (lambda i: node(i).update(dtype="nothing"), "cannot be read"),
        (lambda i: node(i).update(file="none.bin"), "cannot be read"),
        (lambda i: node(i, "y").update(shape=[1 << 40]), "is not in a file of"),
        (lambda i: node(i, "y").update(shape=[1 << 10]), "unpacks to more than 4096 bytes"),
        (lambda i: node(i, "y").update(shape=[1 << 19]), "unpacks to 1048576 of 2097152 bytes"),
        (lambda i: node(i, "z", "a").update(packed=1 << 20), "is not in a file of"),
        (lambda i: node(i, "z", "a").update(packed=-1), "contains no tensor of the kind"),
        (lambda i: node(i, "z", "a").update(packed=1), "is not in a file of"),
        (lambda i: node(i, "z", "a").update(packed=8), "unpacks to "),
        (lambda i: node(i, "z", "a").update(offset=8), "damaged: Error"),
        (lambda i: node(i, "z", "b").update(packed=1 << 20), "is not in a file of"),
        (lambda i: node(i, "z", "b").update(offset=1 << 20), "contains no tensor of the kind"),
        (lambda i: i.pop("tree"), "cannot be read"),
        (lambda i: i.update(tree={"items": 3}), "cannot be read"),
    ],
)
def test_crafted_indices_are_refused(tmp_path, change, sentence):
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    crafted(tmp_path / "state", change)
    with pytest.raises(ValueError, match=sentence):
        load_state(tmp_path / "state")


def test_a_link_out_of_the_directory_is_refused(tmp_path):
    save_state(tmp_path / "state", {"x": torch.arange(6)})
    file = next((tmp_path / "state").glob("*.bin"))
    file.rename(tmp_path / "outside.bin")
    file.symlink_to(tmp_path / "outside.bin")
    with pytest.raises(ValueError, match="which is not a file in its directory"):
        load_state(tmp_path / "state")


def test_a_deep_tree_is_refused(tmp_path):
    save_state(tmp_path, {"x": 1})
    payload = b'{"files": {}, "tree": ' + b'{"list": [' * 100_000 + b"]}" * 100_000 + b"}"
    (tmp_path / "state.json").write_bytes(persistence._framed(payload))
    with pytest.raises(ValueError, match="cannot be read"):
        load_state(tmp_path)


def test_decompression_needs_no_more_memory_than_the_tensor(tmp_path, monkeypatch):
    """A bomb: a kilobyte that unpacks to a megabyte, said to be 4 kB."""
    most = []
    real = zlib.decompressobj

    class Counting:
        def __init__(self):
            self.inner = real()

        def decompress(self, data, limit=0):
            out = self.inner.decompress(data, limit)
            most.append(len(out))
            return out

        @property
        def unconsumed_tail(self):
            return self.inner.unconsumed_tail

    monkeypatch.setattr(persistence.zlib, "decompressobj", Counting)
    crafted(tmp_path, lambda i: node(i, "y").update(shape=[1 << 10]))
    with pytest.raises(ValueError, match="unpacks to more than"):
        load_state(tmp_path)
    assert max(most) <= 4097


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"seed: ${oc.env:HOME}", r"has '\$\{oc.env:HOME\}', which reads from outside the run"),
        (b"a: &a [1]\nb: *a", "line 2 has an alias"),
        (b"seed: [1", "cannot be read, restore it from a copy"),
        (b"\xff\xfe\x00", "cannot be read, restore it from a copy"),
        (b"a: !!python/object:os.system {}", "cannot be read, restore it from a copy"),
        (b"just words", "holds no settings"),
        (b"- 1", "holds no settings"),
        (b"[" * 50_000, "cannot be read, restore it from a copy"),
        (b"#" * (1 << 21), "larger than a megabyte"),
    ],
)
def test_settings_that_no_run_wrote_are_refused(tmp_path, text, sentence):
    (tmp_path / "config.yaml").write_bytes(text)
    with pytest.raises(RunError, match=sentence):
        load_settings(tmp_path / "config.yaml")


def test_settings_keep_references(tmp_path):
    (tmp_path / "config.yaml").write_text("num_envs: 3\nagent: {n: '${num_envs}'}")
    assert load_settings(tmp_path / "config.yaml")["agent"] == {"n": "${num_envs}"}


def test_an_archive_of_absurd_size_is_refused(tmp_path):
    """A gigabyte of zeros in a megabyte."""
    with (
        zipfile.ZipFile(tmp_path / "analysis.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("counts.npy", "w", force_zip64=True) as file,
    ):
        for _ in range(17):
            file.write(bytes(1 << 26))
    with pytest.raises(ValueError, match="its arrays take 1140850688 bytes, more than"):
        load_analysis(tmp_path)


# What a machine does


def test_a_full_disk_is_a_sentence_and_costs_no_checkpoint(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    real, saved = persistence._File.write, []

    def write(file, data):
        if trainer.counters.frames == 200:
            saved.append(1)
            if len(saved) > 5:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file, data)

    monkeypatch.setattr(persistence._File, "write", write)
    with pytest.raises(
        RunError, match=f"the disk of {tmp_path} is full .*: free some space and re"
    ):
        trainer.run()
    monkeypatch.undo()
    # What was written of the second one is gone, the first one is whole.
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000000000100"]
    again = make_trainer(tmp_path)
    assert again.resume() == 100
    again.run()
    assert again.checkpoints.steps() == [200, 300]


def test_a_checkpoint_that_fails_leaves_nothing_behind(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": torch.ones(3)})
    with pytest.raises(TypeError, match="Cannot save a value of type"):
        checkpoints.save(2, {"x": torch.ones(3), "y": object()})
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001"]


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path / "run")

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "run"))

    monkeypatch.setattr("torchrl_dceo.training.checkpoint.run_directory.write_file", refuse)
    with pytest.raises(
        RunError, match=r"run cannot be written \(Permission denied\): choose another"
    ):
        trainer.run()


def test_unfinished_checkpoints_are_removed_when_a_run_ends(tmp_path):
    """Also by a run that saves nothing more."""
    make_trainer(tmp_path).run()
    left = tmp_path / "checkpoints" / "000000009999"
    left.mkdir()
    (left / "small-0.bin").write_bytes(b"half")
    (tmp_path / "checkpoints" / "notes").mkdir()  # not ours
    trainer = make_trainer(tmp_path)
    assert trainer.resume() == 300
    trainer.run()
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["000000000200", "000000000300", "notes"]


def test_renames_are_synced(tmp_path, monkeypatch):
    """The file before its rename, its directory after it, and the parent of a new directory."""
    calls = []
    fsync, replace = os.fsync, type(tmp_path).replace

    def record_fsync(handle):
        calls.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def record_replace(self, target):
        calls.append(f"rename {target}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(type(tmp_path), "replace", record_replace)
    trainer = make_trainer(tmp_path, frames=100)
    trainer.run()
    for target in (tmp_path / "run.json", tmp_path / "progress.csv"):
        place = calls.index(f"rename {target}")
        assert calls[place - 1].startswith(f"{target}.")
        assert calls[place + 1] == str(target.parent)
    folder = tmp_path / "checkpoints" / "000000000100"
    place = calls.index(f"rename {folder / 'state.json'}")
    written = [call for call in calls[:place] if call.endswith(".bin")]
    assert {path.name for path in folder.glob("*.bin")} == {os.path.basename(c) for c in written}
    # The other files have their names on disk before the index has its own.
    assert calls[place - 2] == str(folder) and calls[place - 1].startswith(str(folder / "state"))
    # Then what was removed beside it, and the run directory, which may have just got its checkpoints.
    checkpoints = str(folder.parent)
    assert calls[place + 1 : place + 5] == [str(folder), checkpoints, checkpoints, str(tmp_path)]
    # A state by itself, which no Checkpoints syncs once more.
    calls.clear()
    alone = tmp_path / "alone"
    save_state(alone, {"weight": torch.zeros(2)})
    place = calls.index(f"rename {alone / 'state.json'}")
    assert calls[place + 1 :] == [str(alone), str(tmp_path)]
