"""The same study on a queue that plays Slurm and on a Ray cluster of this machine."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

import pytest
from fake_study import wait_for

from torchrl_dceo.cli import study as cli
from torchrl_dceo.studies import worker
from torchrl_dceo.studies.executors import RayExecutor, SlurmExecutor, make_executor
from torchrl_dceo.studies.job_state import prepare, read_run, read_state
from torchrl_dceo.studies.runner import StudyFolders, StudyRun

ALL = [("dceo", 0), ("ddqn", 0), ("dceo", 1), ("ddqn", 1)]


class Quiet:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}

    def ended(self, job, run, folder):
        self.said[job.name] = run.state

    def look(self, runs, parallel):
        pass


def study_run(fake) -> StudyRun:
    study = runpy.run_path(str(fake.folder / "study.py"))["STUDY"]
    folders = StudyFolders(fake.folder / "out", study.name, "laptop")
    return StudyRun(study, study.preset("laptop"), folders)


def test_submitit_runs_the_study_without_slurm(fake):
    pytest.importorskip("submitit")
    fake.faults("ddqn 0 crash")
    study, quiet = study_run(fake), Quiet()
    executor = SlurmExecutor(study.folders.root, cluster="local", time=5)
    assert study.run(executor, quiet) is False
    assert [read_state(fake.run(*each)) for each in ALL] == ["done", "failed", "done", "done"]
    assert quiet.said["toy/ddqn/seed_0"] == "failed" and len(quiet.said) == 4
    assert "the lamp went out" in read_run(fake.run("ddqn", 0)).reason


PLAYED = {
    # What submitit asks Slurm: whether it is there, to take a job, and how jobs are.
    "srun": "exit 0",
    "sbatch": 'cp "$1" "$FAKE/submitted"; echo x >> "$FAKE/count"; echo "Submitted batch job 77"',
    "sacct": 'echo "JobID|State|NodeList"; for i in 0 1; do echo "77_$i|PENDING|"; done',
}


def test_slurm_is_asked_for_an_array_and_not_twice(fake, monkeypatch):
    submitit = pytest.importorskip("submitit")
    commands = fake.folder / "bin"
    commands.mkdir()
    for name, script in PLAYED.items():
        (commands / name).write_text(f"#!/bin/sh\n{script}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(fake.folder))
    study = study_run(fake)
    folders = [study.folders.folder(job) for job in study.jobs[:2]]
    for job, folder in zip(study.jobs, folders, strict=False):
        prepare(job, folder)
    settings = {"partition": "long", "time": 90, "memory": 6.0, "threads": 2, "address": None}
    executor = make_executor("slurm", jobs=1, folder=study.folders.root, **settings)
    handles = executor.start(folders)
    script = (fake.folder / "submitted").read_text()
    for line in ("partition=long", "time=90", "mem=6GB", "cpus-per-task=2", "array=0-1%1"):
        assert f"#SBATCH --{line}" in script
    assert executor.outlives and executor.capacity is None
    assert [handle.ended() for handle in handles] == [None, None]
    executor.stop()
    # Another call, in another process say: they wait in the queue already.
    submitit.SlurmJob.watcher.clear()
    again = make_executor("slurm", jobs=1, folder=study.folders.root, **settings)
    assert [handle.ended() for handle in again.start(folders)] == [None, None]
    assert (fake.folder / "count").read_text() == "x\n"
    # A task does the run, as Slurm's node would.
    task = submitit.core.utils.DelayedSubmission.load(
        next((study.folders.root / "slurm").glob("77_0_submitted.pkl"))
    )
    assert task.function() == worker.DONE and read_state(folders[0]) == "done"


@pytest.mark.slow
def test_ray_runs_the_study_and_says_which_task_it_lost(fake):
    ray = pytest.importorskip("ray")
    fake.faults("dceo 0 crash", "ddqn 0 hang")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        study, quiet = study_run(fake), Quiet()
        hanging = fake.run("ddqn", 0)

        class Killer(Quiet):
            """Kills the worker that hangs, as a broken node would."""

            def look(self, runs, parallel):
                state = worker.read_json(hanging / worker.STATE)
                if (hanging / "hanging").exists() and state["state"] == "running":
                    os.kill(state["pid"], signal.SIGKILL)

        quiet = Killer()
        assert study.run(RayExecutor(jobs=2), quiet) is False
        states = [read_state(fake.run(*each)) for each in ALL]
        assert states == ["failed", "failed", "done", "done"]
        fake.mend()
        assert study.run(RayExecutor(), Quiet()) is True
        assert fake.starts("dceo", 1) == ["fresh"]
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_ctrl_c_ends_what_ray_runs(fake):
    pytest.importorskip("ray")
    fake.faults("dceo 0 hang")
    given = ["--executor", "ray", "--agents", "dceo", "--seeds", "0", "--no-figure"]
    study = fake.start(*given)
    wait_for(lambda: (fake.run("dceo", 0) / "hanging").exists(), 120)
    study.send_signal(signal.SIGINT)
    _, said = study.communicate(timeout=120)
    assert study.returncode == 130 and "To resume: " in said and "--executor ray" in said
    wait_for(lambda: read_state(fake.run("dceo", 0)) == "interrupted")
    own = str(fake.folder / "out")
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if own in _read(p)]
    assert not left


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize(("name", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_missing_package_is_one_sentence(name, package, fake, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(fake.arguments("run", "--executor", name)) == 2
    said = capsys.readouterr().err
    assert said == f"--executor {name} needs {package}: pip install 'torchrl-dceo[{name}]'\n"


def test_without_slurm_it_is_said(fake, capsys):
    pytest.importorskip("submitit")
    assert cli.main(fake.arguments("run", "--executor", "slurm")) == 2
    said = capsys.readouterr().err
    assert said.startswith("Slurm cannot be used here: ") and said.count("\n") == 1
