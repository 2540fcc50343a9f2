"""A study of many runs: what fails is said and repaired, what is done is not repeated, what is stopped continues."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from fake_study import wait_for

from torchrl_dceo.cli import study as cli
from torchrl_dceo.studies import worker
from torchrl_dceo.studies.job_state import read_run, read_state

ALL = [("dceo", 0), ("ddqn", 0), ("dceo", 1), ("ddqn", 1)]


def states(fake) -> list[str]:
    return [read_state(fake.run(*each)) for each in ALL]


def children_of(fake) -> list[int]:
    """Processes that work in the study's folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(fake.folder / "out") in line and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def run_of(fake, agent: str, seed: int) -> int:
    """The process of a fake run."""
    own = str(fake.run(agent, seed))
    for pid in children_of(fake):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
        if own in line and "fake.py" in line:
            return pid
    raise AssertionError("it does not run")


def test_runs_each_once_and_leaves_results(fake, capsys):
    assert cli.main(fake.arguments("run", "--no-figure")) == 0
    assert states(fake) == ["done"] * 4
    assert cli.main(fake.arguments("run")) == 0
    assert all(fake.starts(*each) == ["fresh"] for each in ALL)
    results = fake.run("dceo", 0).parents[3] / "results"
    assert (results / "toy.png").is_file()
    assert (
        f"for seed in 0 1; do python {fake.program} env=fake agent=dceo seed=$seed"
        in (results / "README.md").read_text()
    )
    origin = json.loads((results / "study.json").read_text())
    assert origin["seeds"] == [0, 1] and origin["agents"] == ["dceo", "ddqn"]
    assert origin["done"] == 4 and origin["versions"]["torch"]
    assert "run" in origin["command"] and origin["preset"] == "laptop"
    # The replay of a run that is done is not kept.
    assert not (fake.run("dceo", 0) / "checkpoints").exists()


def test_a_seed_with_other_defaults_is_left_out_and_named(fake, capsys):
    """Defaults of training have changed since: the study's own settings are the same, the runs are not."""
    assert cli.main(fake.arguments("run", "--no-figure")) == 0
    config = fake.run("ddqn", 1) / "config.yaml"
    config.write_text(json.dumps({**json.loads(config.read_text()), "update_period": 3}))
    assert cli.main(fake.arguments("figure")) == 0
    said = capsys.readouterr().err
    assert f"left out: {fake.run('ddqn', 1)} is no further seed" in said and "update_period" in said
    results = fake.run("dceo", 0).parents[3] / "results"
    assert not (results / "toy" / "ddqn" / "seed_1.csv").exists()


def test_a_crash_stops_no_other_and_a_second_call_repairs_it(fake, capsys):
    fake.faults("ddqn 0 crash")
    assert cli.main(fake.arguments("run", "--no-figure")) == 1
    said = capsys.readouterr().err
    assert (
        "failed  toy/ddqn/seed_0: it ended with exit code 1; RuntimeError: the lamp went out"
        in said
    )
    assert str(fake.run("ddqn", 0) / "log.txt") in said
    assert "1 of 4 runs failed; to try it again: dceo study run" in said
    assert states(fake) == ["done", "failed", "done", "done"]
    assert cli.main(fake.arguments("status")) == 0
    shown = capsys.readouterr().out
    assert "1 done, 1 failed" in shown and "the lamp went out" in shown
    fake.mend()
    assert cli.main(fake.arguments("run", "--no-figure")) == 0
    assert "trying again: toy/ddqn/seed_0 had failed" in capsys.readouterr().err
    assert states(fake) == ["done"] * 4
    assert fake.starts("ddqn", 0) == ["fresh", "resumed"]
    assert fake.starts("dceo", 0) == ["fresh"]
    rows = (fake.run("ddqn", 0) / "progress.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["10", "20", "30", "40", "50"]


def test_a_killed_run_and_a_killed_worker_count_as_failed(fake):
    fake.faults("dceo 0 hang", "ddqn 0 hang")
    study = fake.start("--no-figure", "--agents", "dceo", "ddqn", "--seeds", "0", "--jobs", "2")
    wait_for(lambda: all((fake.run(agent, 0) / "hanging").exists() for agent in ("dceo", "ddqn")))
    os.kill(run_of(fake, "dceo", 0), signal.SIGKILL)
    os.kill(worker.read_json(fake.run("ddqn", 0) / worker.STATE)["pid"], signal.SIGKILL)
    _, said = study.communicate(timeout=60)
    assert study.returncode == 1
    assert "toy/dceo/seed_0: it was killed by SIGKILL" in said
    assert "toy/ddqn/seed_0: its worker ended early: it was killed by SIGKILL" in said
    wait_for(lambda: not children_of(fake))  # what the worker ran died with it
    assert states(fake)[:2] == ["failed", "failed"]


def test_ctrl_c_ends_the_runs_and_says_how_to_go_on(fake):
    fake.faults("dceo 0 hang", "ddqn 0 hang")
    study = fake.start("--no-figure")
    wait_for(lambda: all((fake.run(agent, 0) / "hanging").exists() for agent in ("dceo", "ddqn")))
    study.send_signal(signal.SIGINT)
    _, said = study.communicate(timeout=60)
    assert study.returncode == 130 and "Traceback" not in said
    assert "Stopped. To resume: dceo study run" in said
    assert not children_of(fake)
    assert states(fake) == ["interrupted", "interrupted", "waiting", "waiting"]
    fake.mend()
    again = fake.start("--no-figure")
    again.communicate(timeout=120)
    assert again.returncode == 0 and states(fake) == ["done"] * 4
    assert fake.starts("dceo", 0) == ["fresh", "resumed"] and fake.starts("dceo", 1) == ["fresh"]


def test_a_killed_study_takes_its_runs_along(fake):
    fake.faults("dceo 0 hang", "ddqn 0 hang")
    study = fake.start("--no-figure")
    wait_for(lambda: all((fake.run(agent, 0) / "hanging").exists() for agent in ("dceo", "ddqn")))
    assert states(fake) == ["running", "running", "waiting", "waiting"]
    study.kill()
    study.communicate(timeout=60)
    wait_for(lambda: not children_of(fake))
    assert states(fake) == ["interrupted", "interrupted", "waiting", "waiting"]


def test_a_run_of_another_study_is_waited_for(fake):
    fake.declare(total=50, pause=0.2)
    first = fake.start("--no-figure", "--agents", "dceo", "--seeds", "0")
    wait_for(lambda: fake.starts("dceo", 0))
    assert cli.main(fake.arguments("run", "--no-figure", "--agents", "dceo", "--seeds", "0")) == 0
    first.communicate(timeout=60)
    assert fake.starts("dceo", 0) == ["fresh"]


def test_other_settings_are_refused(fake, capsys):
    assert cli.main(fake.arguments("run", "--no-figure", "--agents", "dceo", "--seeds", "0")) == 0
    fake.declare(total=60)
    assert cli.main(fake.arguments("run", "--no-figure")) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "holds a run with other settings (total_frames=50 instead of total_frames=60)" in said
    assert not (fake.run("ddqn", 0) / "starts").exists()


def test_a_stale_state_does_not_pass_for_a_run(tmp_path):
    """A worker that died without a word: its number may be another's by now."""
    worker.write_json(tmp_path / worker.STATE, {"state": "running", "pid": os.getpid()})
    (tmp_path / worker.LOCK).touch()
    assert read_run(tmp_path).state == "interrupted"
    with worker.take(tmp_path / worker.LOCK):
        assert read_run(tmp_path).state == "running"
    (tmp_path / worker.STATE).write_text("{half a fi")
    assert read_run(tmp_path).state == "waiting"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "onlien"], "unknown study 'onlien' (did you mean 'online'?); choose from "),
        (["rum", "online"], "unknown command 'rum' (did you mean 'run'?); choose from list, "),
        (["run", "online", "--preset", "desk"], "study online has no size 'desk'"),
        (["run", "online", "--agents", "dcoe"], "unknown agent of this study 'dcoe' (did you "),
        (
            ["run", "online", "--worlds", "moon"],
            "unknown environment of this study 'moon'; choose ",
        ),
        (["run", "online", "--executor", "slrm"], "unknown executor 'slrm'"),
        (["run", "online", "--jobs", "0"], "jobs must be at least 1, got 0"),
        (["run", "online", "--set", "device"], "--set takes KEY=VALUE as training does, "),
        (["run", "online", "--set", "seed=3"], "seed is the study's own: --set cannot change"),
        (["run", "visitation", "--agents", "ceo"], "this study runs whole scripts: it has no "),
        (["run", "online", "--retries", "-1"], "retries must be at least 0, got -1"),
        (["run", "mine.py"], "there is no file mine.py with a study"),
        (["figure", "online", "--out", "/nowhere"], "no run of online has begun yet: there is "),
    ],
)
def test_a_mistake_gets_one_sentence(arguments, sentence, capsys):
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(sentence) and "\n" not in said


def test_list_names_every_study(capsys):
    assert cli.main(["list"]) == 0
    assert "online_vs_two_phase" in capsys.readouterr().out
