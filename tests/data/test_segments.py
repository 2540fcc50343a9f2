"""Replays saved in segments: only what was written since is written again, and what is loaded is what was held."""

from __future__ import annotations

import errno
import os
import random

import pytest
import torch
from same_state import same

from torchrl_dceo.data import make_replay_buffer, persistence, replay_buffer
from torchrl_dceo.data.persistence import Segment, load_state, save_state


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def short_segments(monkeypatch):
    """Segments of a few rows."""
    monkeypatch.setattr(replay_buffer, "_SEGMENT", 400)
    monkeypatch.setattr(replay_buffer, "_MOST_SEGMENTS", 1000)


def make_buffer(streams=3, length=40, **settings):
    return make_replay_buffer(
        streams * length,
        num_streams=streams,
        state_keys=["state_id"],
        frame_stack=2,
        n_steps=2,
        batch_size=8,
        **{"seed": 0, **settings},
    )


def whole(state):
    """A state whose rows are put together again."""
    parts = state["rows"]
    return {**state, "rows": {k: torch.cat([p[k] for p in parts], 1) for k in parts[0]}}


def inodes(folder) -> set[int]:
    return {path.stat().st_ino for path in folder.glob("*.bin")}


SETTINGS = {
    "uniform": {},
    "prioritized": {"sampler": "prioritized"},
    "distinct": {"uniform_key": "other", "uniform_measure": "distinct"},
    "distinct rows": {"sampler": "distinct"},
    "files": {"storage": "memmap"},
}


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("kind", SETTINGS)
def test_any_history_comes_back(build_env, tmp_path, monkeypatch, short_segments, kind, links):
    """Streams that advance unevenly, several times around the ring, saved at random moments into two chains."""
    if not links:

        def refuse(*args, **kwargs):
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", refuse)
    draw = random.Random(1)
    env = build_env(3, 40, stack=2, abandon=0.1)
    rb, chains, taken = make_buffer(**SETTINGS[kind]), [{}, {}], 0
    for turn in range(30):
        for _ in range(draw.randrange(6)):
            some = draw.choice([None, [0], [2, 1]])
            rb.extend(env.batch(draw.choice([1, 4, 9]), streams=some), streams=some)
            if kind == "prioritized" and len(rb):
                batch = rb.sample()
                batch["td_error"] = torch.rand(8)
                rb.update_tensordict_priority(batch)
        if turn == 20:
            rb.empty()
        chain = chains[turn % 2]
        old = {saved.path.name: saved.path.stat().st_ino for saved in chain.values()}
        folder, held = tmp_path / str(turn), rb.state_dict(copy=False, segments=True)
        chains[turn % 2] = save_state(folder, held, compress=True, reuse=chain)
        for path in folder.glob("*.bin"):
            taken += path.name in old
            assert (path.stat().st_ino in old.values()) == (links and path.name in old)
        loaded = load_state(folder)
        if loaded["rows"]:
            assert same(whole(loaded), rb.state_dict())
        else:
            assert not rb.writer.ring.head.any()
        other = make_buffer(**{**SETTINGS[kind], "seed": 5})
        other.load_state_dict(loaded)
        if len(rb):
            assert bool((other.sample() == rb.sample()).all())
    assert rb.writer.ring.head.min() > 40  # around the ring
    assert taken > 10


def test_only_what_was_written_is_written_again(build_env, tmp_path, monkeypatch):
    """One stream, rows of 31 bytes, segments of ten rows: files that a batch touches are new, the others stay."""
    monkeypatch.setattr(replay_buffer, "_SEGMENT", 310)
    env = build_env(1, 40, stack=1, mean_length=1e9)
    rb = make_replay_buffer(40, state_keys=["state_id"], seed=0)
    rb.extend(env.batch(15))

    def save(name, reuse):
        segments = save_state(
            tmp_path / name, rb.state_dict(copy=False, segments=True), reuse=reuse
        )
        return segments, [saved.path.stat().st_ino for saved in segments.values()]

    first, files = save("a", {})
    assert len(files) == 2
    rb.extend(env.batch(4))  # rows 15 to 18, in the second segment
    second, more = save("b", first)
    assert len(more) == 2 and more[0] == files[0] and more[1] != files[1]
    for _ in range(2):
        rb.extend(env.batch(10))  # rows 19 to 38
    third, more = save("c", second)
    assert len(more) == 4 and more[0] == files[0] and not {*more[1:]} & {*files}
    rb.extend(env.batch(3))  # rows 39, 0 and 1: the ring comes round
    _, last = save("d", third)
    assert [a == b for a, b in zip(last, more, strict=True)] == [False, True, True, False]
    assert same(whole(load_state(tmp_path / "d")), rb.state_dict())


@pytest.mark.parametrize("change", ["loaded", "emptied", "edited", "restored"])
def test_what_the_heads_do_not_show_is_no_reason_to_keep_a_file(
    build_env, tmp_path, short_segments, change
):
    """The same rows were written, and hold something else."""
    rb, other = make_buffer(), make_buffer()
    env, elsewhere = build_env(3, 40, stack=2, seed=0), build_env(3, 40, stack=2, seed=0)
    elsewhere.count = 1000
    for _ in range(3):
        rb.extend(env.batch(4))
        other.extend(elsewhere.batch(4))
    segments = save_state(tmp_path / "a", rb.state_dict(copy=False, segments=True))
    if change == "loaded":
        rb.load_state_dict(other.state_dict())
    elif change == "emptied":
        rb.empty()
        third = build_env(3, 40, stack=2, seed=0)
        third.count = 5000
        for _ in range(3):
            rb.extend(third.batch(4))
    elif change == "edited":
        row = rb.storage[3]
        row["state_id"] += 1
        rb.storage[3] = row
    else:
        rb.storage.load_state_dict(other.storage.state_dict())
    save_state(tmp_path / "b", rb.state_dict(copy=False, segments=True), reuse=segments)
    assert not inodes(tmp_path / "a") & inodes(tmp_path / "b")
    assert same(whole(load_state(tmp_path / "b")), rb.state_dict())


def test_a_damaged_file_is_not_taken_over(tmp_path, monkeypatch):
    parts = {i: Segment({"x": torch.arange(100) + i}, i) for i in range(4)}
    segments = save_state(tmp_path / "a", {"rows": list(parts.values())})
    data = segments[0].path.read_bytes()
    segments[0].path.write_bytes(data[:-1])
    segments[1].path.unlink()
    segments[2].path.write_bytes(b"\xff" + segments[2].path.read_bytes()[1:])
    again = save_state(tmp_path / "b", {"rows": list(parts.values())}, reuse=segments)
    assert same(load_state(tmp_path / "b"), {"rows": [dict(part) for part in parts.values()]})
    kept = [again[i].path.name == segments[i].path.name for i in range(4)]
    assert kept == [False, False, False, True]
    # Not even where nothing is read beforehand, if its size shows it.
    monkeypatch.setattr(persistence, "_CHECKED", 0)
    again = save_state(tmp_path / "d", {"rows": list(parts.values())}, reuse=segments)
    kept = [again[i].path.name == segments[i].path.name for i in range(4)]
    assert kept == [False, False, True, True]
    # Nor by a copy, where there are no links and nothing is read beforehand.
    monkeypatch.setattr(os, "link", lambda *names: os.stat(tmp_path / "nothing"))
    save_state(tmp_path / "c", {"rows": list(parts.values())}, reuse=segments)
    assert same(load_state(tmp_path / "c"), {"rows": [dict(part) for part in parts.values()]})


def test_of_much_a_part_is_read_again(tmp_path, monkeypatch):
    """As many bytes as are allowed, on average: not all, and not always the same."""
    parts = [Segment({"x": torch.arange(100) + i}, i) for i in range(100)]
    segments = save_state(tmp_path / "a", {"rows": parts})
    monkeypatch.setattr(persistence, "_CHECKED", 20 * 800)
    read, real = [], persistence._read
    monkeypatch.setattr(
        persistence, "_read", lambda path, facts: read.append(path.name) or real(path, facts)
    )
    turns = []
    for turn in range(4):
        save_state(tmp_path / f"b{turn}", {"rows": parts}, reuse=segments)
        turns.append(set(read))
        read.clear()
    assert all(0 < len(turn) < 60 for turn in turns)
    assert len(set.union(*turns)) > max(map(len, turns))


def test_a_link_never_writes_through_to_its_source(tmp_path, monkeypatch):
    """A file that is left in the new directory under the name of one that is taken over: it may be that very file."""
    part = Segment({"x": torch.arange(100)}, 0)
    segments = save_state(tmp_path / "a", {"rows": [part]})
    (tmp_path / "b").mkdir()
    os.link(segments[0].path, tmp_path / "b" / segments[0].path.name)
    monkeypatch.setattr(os, "link", lambda *names: os.stat(tmp_path / "nothing"))
    save_state(tmp_path / "b", {"rows": [part]}, reuse=segments)
    for name in "ab":
        assert same(load_state(tmp_path / name), {"rows": [dict(part)]})
    assert not inodes(tmp_path / "a") & inodes(tmp_path / "b")


def test_a_segment_of_all_kinds(tmp_path, monkeypatch):
    monkeypatch.setattr(persistence, "_SMALL", 0)  # mapped from the file
    images = torch.zeros(2, 30, 3, 5, dtype=torch.uint8)
    part = {
        "images": images[:, 3:20],  # shrinks
        "noise": torch.randint(256, (2, 17, 301), dtype=torch.uint8),
        "half": torch.rand(2, 17).bfloat16(),
        "flags": torch.rand(2, 17, 3) < 0.5,
        "nothing": torch.zeros(2, 17, 0),
        "numbers": torch.arange(34).view(17, 2).t(),
    }
    for compress in (False, True):
        save_state(tmp_path / str(compress), {"rows": [Segment(part, 0)]}, compress=compress)
        loaded = load_state(tmp_path / str(compress))["rows"][0]
        assert same(loaded, part)
        assert all(value.data_ptr() % value.element_size() == 0 for value in loaded.values())
    sizes = [sum(p.stat().st_size for p in (tmp_path / n).glob("*.bin")) for n in ("False", "True")]
    assert sizes[1] < sizes[0]


def test_segments_are_neither_tiny_nor_too_many(build_env):
    rb = make_buffer(streams=2, length=2000)
    rb.extend(build_env(2, 2000, stack=2).batch(900))
    assert len(rb.state_dict(copy=False, segments=True)["rows"]) == 1
    replay_buffer_bytes = sum(value.nbytes for value in rb.writer.tensors.values())
    assert replay_buffer_bytes < replay_buffer._SEGMENT


def test_a_large_replay_has_few_files(build_env, monkeypatch):
    monkeypatch.setattr(replay_buffer, "_SEGMENT", 100)
    rb = make_buffer(streams=1, length=3000)
    for _ in range(3):
        rb.extend(build_env(1, 3000, stack=2).batch(1400))
    assert 200 < len(rb.state_dict(copy=False, segments=True)["rows"]) <= 256
