"""Studies whose folders are damaged, whose disk is full, whose user is impatient: named, counted, nothing left over."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from fake_study import wait_for

from torchrl_dceo.cli import study as cli
from torchrl_dceo.studies import Grid, Method, Preset, Script, Study, worker
from torchrl_dceo.studies.job_state import read_run, read_state
from torchrl_dceo.studies.results import escaped
from torchrl_dceo.studies.runner import StudyFolders

ALL = [("dceo", 0), ("ddqn", 0), ("dceo", 1), ("ddqn", 1)]


def garbage_log(folder: Path) -> None:
    (folder / "progress.csv").write_bytes(bytes(range(256)) * 20)


def garbage_row(folder: Path) -> None:
    with (folder / "progress.csv").open("ab") as file:
        file.write(b"\xff\xfe nonsense\n")


def lock_is_a_folder(folder: Path) -> None:
    (folder / worker.LOCK).unlink()
    (folder / worker.LOCK).mkdir()


def folder_is_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no folder")


def job_of_wrong_types(folder: Path) -> None:
    (folder / worker.JOB).write_text(json.dumps({"program": 3, "arguments": "x", "begun": None}))


def job_is_a_list(folder: Path) -> None:
    (folder / worker.JOB).write_text("[1, 2]")


def state_of_wrong_types(folder: Path) -> None:
    (folder / worker.STATE).write_text(json.dumps({"state": ["done"], "began": "x", "ended": []}))
    (folder / "progress.csv").unlink()
    (folder / "progress.csv").mkdir()


def done_without_log(folder: Path) -> None:
    (folder / "progress.csv").unlink()


DAMAGES = {
    garbage_log: "progress.csv is not a log",
    garbage_row: "progress.csv is damaged: its last row is",
    lock_is_a_folder: "job.lock is not a file",
    folder_is_a_file: "there is a file in the place of its folder",
    job_of_wrong_types: "job.json does not describe a run",
    job_is_a_list: "job.json does not describe a run",
    state_of_wrong_types: "progress.csv cannot be read",
    done_without_log: "it is marked as done, but progress.csv holds no row",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_folder_is_named_and_stops_nothing(damage, fake, capsys):
    assert cli.main(fake.arguments("run", "--no-figure")) == 0
    damage(fake.run("ddqn", 0))
    # Another run is open still, and is done in spite of the damage.
    shutil.rmtree(fake.run("dceo", 1))
    capsys.readouterr()
    assert cli.main(fake.arguments("status")) == 0
    shown = capsys.readouterr().out
    assert f"failed  toy/ddqn/seed_0: {DAMAGES[damage]}" in shown and "1 failed" in shown
    assert cli.main(fake.arguments("run")) == 1
    said = capsys.readouterr().err
    assert "toy/ddqn/seed_0: " in said and "1 of 4 runs failed" in said
    assert "Traceback" not in said
    assert [read_state(fake.run(*each)) for each in ALL] == ["done", "failed", "done", "done"]
    assert cli.main(fake.arguments("figure")) == 0
    results = fake.run("dceo", 0).parents[3] / "results"
    assert (results / "toy" / "dceo" / "seed_1.csv").is_file()
    assert not (results / "toy" / "ddqn" / "seed_0.csv").exists()
    origin = json.loads((results / "study.json").read_text())
    assert origin["done"] == 3


def test_a_run_that_is_removed_after_its_damage_is_repeated(fake):
    assert cli.main(fake.arguments("run", "--no-figure")) == 0
    folder_is_a_file(fake.run("ddqn", 0))
    fake.run("ddqn", 0).unlink()
    assert cli.main(fake.arguments("run", "--no-figure")) == 0
    assert fake.starts("ddqn", 0) == ["fresh"]


def test_a_log_without_a_row_yet_is_no_damage(fake):
    folder = fake.run("dceo", 0)
    folder.mkdir(parents=True)
    for text in ("", "frames,eval", "frames,eval_return,seconds\n", "frames,seconds\n10,0.1\n20"):
        (folder / "progress.csv").write_text(text)
        assert read_run(folder).reason == ""
    assert read_run(folder).progress.frames == 10


def test_the_table_of_an_experiment_is_no_damaged_log(fake):
    program = fake.folder / "mine.py"
    program.write_text(
        "import pathlib, sys\n"
        "pathlib.Path(sys.argv[1], 'progress.csv').write_text('step,cosine\\n1,0.5\\n')\n"
    )
    (fake.folder / "study.py").write_text(
        "from torchrl_dceo.studies import Preset, Script, Study\n"
        f"part = Script('part', {str(program)!r}, ['{{folder}}'], minutes=1)\n"
        "STUDY = Study('fake', 'A fake', 'Does it run?', {'laptop': Preset('tiny', [part])})\n"
    )
    assert cli.main(fake.arguments("run", "--no-figure")) == 0


def test_retries_are_as_many_as_given(fake, capsys):
    fake.faults("ddqn 0 crash")
    given = ["--no-figure", "--agents", "ddqn", "--seeds", "0", "--retries", "2"]
    assert cli.main(fake.arguments("run", *given)) == 1
    assert fake.starts("ddqn", 0) == ["fresh", "resumed", "resumed"]
    assert capsys.readouterr().err.count("failed  toy/ddqn/seed_0") == 3
    fake.mend()
    assert cli.main(fake.arguments("run", *given)) == 0
    assert len(fake.starts("ddqn", 0)) == 4


def test_a_state_is_on_disk_before_anything_follows_from_it(tmp_path, monkeypatch):
    """The file before its rename and its folder after it: checkpoints are removed next."""
    calls, fsync, rename = [], os.fsync, Path.replace

    def record(handle):
        calls.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(
        Path, "replace", lambda self, target: calls.append("rename") or rename(self, target)
    )
    worker.write_json(tmp_path / worker.STATE, {"state": "done"})
    assert calls[0].startswith(str(tmp_path / worker.STATE))
    assert calls[1:] == ["rename", str(tmp_path)]
    assert worker.read_json(tmp_path / worker.STATE) == {"state": "done"}


def test_a_full_disk_is_a_sentence(fake, monkeypatch, capsys):
    def full(path, value):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(worker, "write_json", full)
    assert cli.main(fake.arguments("run", "--no-figure")) == 1
    said = capsys.readouterr().err.strip()
    assert said.startswith("the disk is full (") and "\n" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_of_a_worker_fails_its_run_alone(fake, capsys):
    folder = fake.run("ddqn", 0)
    folder.mkdir(parents=True)
    (folder / worker.LOG).symlink_to("/dev/full")
    assert cli.main(fake.arguments("run", "--no-figure", "--seeds", "0")) == 1
    said = capsys.readouterr().err
    assert "toy/ddqn/seed_0: its worker ended early: the disk is full" in said
    assert read_state(fake.run("dceo", 0)) == "done"


def processes_of(fake) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(fake.folder / "out") in line and str(os.getpid()) != path.parent.name:
            found.append(line)
    return found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are found in /proc")
def test_ctrl_c_twice_leaves_no_process(fake):
    fake.faults("dceo 0 stubborn", "ddqn 0 stubborn")
    study = fake.start("--no-figure")
    wait_for(lambda: all((fake.run(agent, 0) / "hanging").exists() for agent in ("dceo", "ddqn")))
    assert len(processes_of(fake)) >= 7  # the study, two workers, two runs and what they started
    study.send_signal(signal.SIGINT)
    # Deaf to the first one, and not killed yet.
    wait_for(lambda: read_state(fake.run("dceo", 0)) == "running")
    with pytest.raises(Exception, match="timed out"):
        study.communicate(timeout=1.5)
    study.send_signal(signal.SIGINT)
    _, said = study.communicate(
        timeout=worker.GRACE - 3
    )  # not after the time that one signal gives
    assert study.returncode == 130 and "Traceback" not in said
    assert not processes_of(fake)


@pytest.mark.parametrize("name", ["../mine", "/tmp/x", "..", "a/b", "", ".hidden", "a\nb", "x\0y"])
def test_names_cannot_leave_the_folder(name):
    preset = {"laptop": Preset("tiny", [Grid("maze", ["dceo"], 1, 10)])}
    with pytest.raises(ValueError, match="becomes a folder"):
        Study(name, "A study", "Is it?", preset)
    with pytest.raises(ValueError, match="becomes a folder"):
        Study("mine", "A study", "Is it?", {name: preset["laptop"]})
    with pytest.raises(ValueError, match="becomes a folder"):
        StudyFolders(Path("out"), "mine", name)
    if name:  # an empty label is no label
        for part in (
            Grid("maze", ["dceo"], 1, 10, label=name),
            Grid("maze", [Method("dceo", label=name)], 1, 10),
            Script(name, "mine.py", (), minutes=1),
        ):
            with pytest.raises(ValueError, match="becomes a folder"):
                Preset("tiny", [part]).jobs()


def test_the_readme_of_results_escapes_html(fake, capsys):
    text = (fake.folder / "study.py").read_text()
    evil = "<script>alert(1)</script> | <img src=x>"
    (fake.folder / "study.py").write_text(text.replace("'A fake'", repr(evil)))
    assert cli.main(fake.arguments("run", "--agents", "dceo", "--seeds", "0")) == 0
    readme = (fake.run("dceo", 0).parents[3] / "results" / "README.md").read_text()
    assert "<script" not in readme and "<img" not in readme and escaped(evil) in readme
