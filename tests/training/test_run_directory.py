"""One directory, one run: not two at a time, and not another's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal

import pytest
import torch
import torchrl
from training_runs import logged_frames, rows

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.settings import first_difference
from torchrl_dceo.training import TrainConfig, Trainer, train
from torchrl_dceo.training.checkpoint.run_directory import RunDirectory, RunLock
from torchrl_dceo.training.errors import RunError


def make_trainer(
    run_dir, agent="ddqn", agent_settings=None, env=None, settings=None, **config
) -> Trainer:
    torch.manual_seed(0)
    own_env = make_env("NineRooms", **{"room_size": 3, "batch_size": 5, "seed": 0, **(env or {})})
    built = make_agent(agent, own_env, **(agent_settings or {}))
    fields = {
        "total_frames": 100,
        "update_period": 50,
        "learning_starts": 50,
        "replay_capacity": 1000,
        "log_period": 50,
        "progress": False,
    }
    return Trainer(
        built, own_env, TrainConfig(**{**fields, **config}), run_dir=run_dir, settings=settings
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished")
    make_trainer(path, settings={"note": 1}).run()
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agent": "ez_greedy"}, r"modules\.\S+ is .* there and .* here"),
        (
            {"agent": "dceo"},
            r"agent\.objectives is \['centring', 'main'\] there and \['centring', 'laplacian'",
        ),
        (
            {"agent_settings": {"lr": 1e-3}},
            r"agent\.optimizer\S*\.lr is 0\.0005 there and 0\.001 h",
        ),
        ({"agent_settings": {"gamma": 0.9}}, r"agent\.replay\.gamma is 0\.99 there and 0\.9 here"),
        ({"agent_settings": {"eps_end": 0.2}}, r"modules\.\S+eps_end is 0\.1 there and 0\.2 here"),
        ({"agent_settings": {"n_steps": 3}}, r"agent\.replay\.n_steps is 5 there and 3 here"),
        ({"agent_settings": {"target_tau": 0.02}}, r"eps is 0\.99 there and 0\.98 here"),
        ({"agent_settings": {"network": "mlp"}}, r"modules\S+ is .* there and .* here"),
        ({"env": {"slip": 0.0}}, r"envs\.train\.settings\.slip is 0\.15 there and 0\.0 here"),
        ({"env": {"room_size": 4}}, r"envs\.train\.observation\.pixels"),
        ({"env": {"starts": [(1, 1)]}}, r"envs\.train\.settings\.tables"),
        ({"env": {"batch_size": 10}}, r"envs\.train\.batch_size\[0\] is 5 there and 10 here"),
        ({"update_period": 25}, r"train\.update_period is 50 there and 25 here"),
        ({"seed": 1}, r"train\.seed is 0 there and 1 here"),
        ({"replay_capacity": 900}, r"train\.replay_capacity is 1000 there and 900 here"),
        ({"settings": {"note": 2}}, r"settings\.note is 1 there and 2 here"),
        ({"settings": None}, r"settings\.note is 1 there and 'missing' here"),
    ],
)
def test_another_configuration_is_refused(finished, change, message):
    before = rows(finished)
    trainer = make_trainer(finished, **{"settings": {"note": 1}, **change})
    with pytest.raises(ValueError, match=f"belongs to another configuration: .*{message}"):
        trainer.resume()
    assert rows(finished) == before
    # The refusal has let go of the directory.
    assert make_trainer(finished, settings={"note": 1}).resume() == 100


def test_runs_of_earlier_versions_are_recognised(finished):
    """What describes an environment had other names in their fingerprints."""
    trainer = make_trainer(finished, settings={"note": 1})
    own = trainer.fingerprint()
    earlier = json.loads(json.dumps(own))
    for env in earlier["envs"].values():
        env["world"] = env.pop("settings")
    RunDirectory(finished).check(own, earlier)
    earlier["envs"]["train"]["world"]["slip"] = 0.5
    with pytest.raises(RunError, match=r"envs\.train\.settings\.slip is 0\.5 there"):
        RunDirectory(finished).check(own, earlier)


def test_what_may_change(finished):
    trainer = make_trainer(
        finished, settings={"note": 1}, checkpoint_period=50, keep_checkpoints=1, keep_best=True
    )
    assert trainer.resume() == 100
    assert trainer.run()["frames"] == 100  # nothing left to do


def test_a_run_does_not_become_shorter(tmp_path):
    """Not even by going back to an older checkpoint; the end that it had is never too short."""
    make_trainer(tmp_path, total_frames=190, checkpoint_period=50).run()
    before = files(tmp_path)
    for end in (99, 149, 189):
        sentence = f"total_frames={end} is less than the 200 frames that the run has: give 200 or"
        with pytest.raises(RunError, match=sentence):
            make_trainer(tmp_path, total_frames=end).resume()
    assert files(tmp_path) == before
    assert make_trainer(tmp_path, total_frames=190).resume() == 200


def test_the_same_objects_can_be_resumed(tmp_path):
    """As in a notebook, after an interruption: what training changed is no difference."""
    trainer = make_trainer(tmp_path, agent="dceo", checkpoint_period=50)
    trainer.run()
    again = Trainer(trainer.agent, trainer.env, trainer.config, run_dir=tmp_path)
    assert again.resume() == 100
    kinds = [type(t).__name__ for t in again.env.transform]
    assert len(set(kinds)) == len(kinds)  # no transform is there twice


def test_a_new_run_needs_a_new_directory(finished):
    before = rows(finished)
    with pytest.raises(FileExistsError, match="already holds a run: resume it, or choose another"):
        make_trainer(finished).run()
    assert rows(finished) == before


def test_there_must_be_a_run_to_resume(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no run to resume in"):
        make_trainer(tmp_path / "none").resume()
    with pytest.raises(ValueError, match="only a run with a run_dir can be resumed"):
        make_trainer(None).resume()


def files(folder) -> dict[str, bytes]:
    """All that is in a directory, but for the lock's process number."""
    found = {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    found.pop(str(folder / "run.lock"), None)
    return found


def kill_at_first_checkpoint(trainer: Trainer) -> None:
    """Leaves what SIGKILL leaves in the middle of the first checkpoint."""

    def die(state):
        folder = trainer.checkpoints.path / "000000000100"
        folder.mkdir(parents=True)
        (folder / "0000-00000000.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    trainer.checkpoints.save = lambda step, state: die(state)
    with contextlib.suppress(KeyboardInterrupt):
        trainer.checkpoints.remove_unfinished = lambda: None
        trainer.run()


def test_killed_before_its_first_checkpoint_it_starts_over(tmp_path):
    make_trainer(tmp_path / "whole").run()
    run_dir = tmp_path / "killed"
    kill_at_first_checkpoint(make_trainer(run_dir))
    assert len(rows(run_dir)) == 2 and (run_dir / "checkpoints" / "000000000100").is_dir()
    other = make_trainer(run_dir, seed=3)
    with pytest.raises(ValueError, match=r"train\.seed is 0 there and 3 here"):
        other.resume()
    again = make_trainer(run_dir)
    assert again.resume() == 0 and rows(run_dir) == []
    again.run()
    assert rows(run_dir) == rows(tmp_path / "whole")
    (run_dir / "run.json").write_text("{")
    shutil.rmtree(run_dir / "checkpoints")
    with pytest.raises(ValueError, match=r"run\.json cannot be read and there is no checkpoint"):
        make_trainer(run_dir).resume()


@pytest.mark.parametrize("loss", ["folder", "indices", "folders"])
def test_a_run_that_lost_its_checkpoints_does_not_start_over(tmp_path, loss):
    make_trainer(tmp_path, checkpoint_period=50).run()
    folders = list((tmp_path / "checkpoints").iterdir())
    assert len(folders) == 2
    if loss == "folder":
        shutil.rmtree(tmp_path / "checkpoints")
    for folder in folders if loss != "folder" else ():
        shutil.rmtree(folder) if loss == "folders" else (folder / "state.json").unlink()
    before = files(tmp_path)
    trainer = make_trainer(tmp_path)
    with pytest.raises(
        RunError, match=r"had a checkpoint after 100 frames .* nothing was changed; restore it, or"
    ):
        trainer.resume()
    with pytest.raises(RunError, match="already holds a run"):
        make_trainer(tmp_path).run()
    assert files(tmp_path) == before


def test_a_run_of_an_older_version_is_not_started_over_either(tmp_path):
    """Its run.json says nothing of checkpoints: whether it had any is not known."""
    make_trainer(tmp_path).run()
    shutil.rmtree(tmp_path / "checkpoints")
    content = json.loads((tmp_path / "run.json").read_text())
    del content["checkpoint"], content["versions"]
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match="had a checkpoint after an unknown number of frames"):
        make_trainer(tmp_path).resume()


def test_other_versions_are_named(tmp_path, caplog, monkeypatch):
    make_trainer(tmp_path).run()
    written = json.loads((tmp_path / "run.json").read_text())["versions"]
    assert written["torch"] == torch.__version__ and written["torchrl_dceo"]
    make_trainer(tmp_path).resume()
    assert "other versions" not in caplog.text
    monkeypatch.setattr(torchrl, "__version__", "9.9")
    make_trainer(tmp_path).resume()
    assert f"other versions (torchrl was {written['torchrl']!r} and is '9.9')" in caplog.text
    caplog.clear()
    make_trainer(tmp_path).resume()  # said once for each change
    assert "other versions" not in caplog.text
    assert json.loads((tmp_path / "run.json").read_text())["resumed"][0]["torchrl"] == "9.9"


def test_two_runs_do_not_share_a_directory(runs, tmp_path):
    spec = {"run_dir": tmp_path, "agent": "dceo", "frames": 100_000}
    process = runs.start(**spec)
    try:
        while logged_frames(tmp_path) < 300:
            pass
        os.kill(process, signal.SIGSTOP)
        log = rows(tmp_path)
        with pytest.raises(RuntimeError, match=f"written by the run of process {process}: wait"):
            make_trainer(tmp_path).resume()
        with pytest.raises(RuntimeError, match=f"written by the run of process {process}: wait"):
            make_trainer(tmp_path).run()
        assert rows(tmp_path) == log
    finally:
        os.kill(process, signal.SIGKILL)
        assert runs.wait() == -signal.SIGKILL
    # The file that it leaves behind bars nobody.
    assert (tmp_path / "run.lock").read_text() == f"{process}\n"
    lock = RunLock(tmp_path)
    lock.acquire()
    lock.acquire()  # once more is fine
    assert (tmp_path / "run.lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_an_error_lets_go_of_the_directory(tmp_path):
    def fail(trainer):
        raise ArithmeticError("probe")

    trainer = make_trainer(tmp_path)
    trainer.probes = (fail,)
    with pytest.raises(ArithmeticError):
        trainer.run()
    RunLock(tmp_path).acquire()


def test_first_difference():
    same = {"a": [1, {"b": None}], "c": 0.1}
    assert first_difference(same, {"c": 0.1, "a": [1, {"b": None}]}) is None
    cases = [
        ({"a": [1, {"b": 2}], "c": 0.1}, "a[1].b is None there and 2 here"),
        ({"a": [1], "c": 0.1}, "a is [1, {'b': None}] there and [1] here"),
        ({"a": [1, {"b": None}]}, "c is 0.1 there and 'missing' here"),
        ({**same, "d": "x" * 200}, "d is 'missing' there and '" + "x" * 76 + "... here"),
    ]
    for other, message in cases:
        assert first_difference(same, other) == message


def test_train_resumes_on_request(tmp_path):
    def run(**kwargs):
        trainer = make_trainer(None)
        return train(
            trainer.agent, trainer.env, progress=False, log_period=50, run_dir=tmp_path, **kwargs
        )

    fields = {"update_period": 50, "learning_starts": 50, "replay_capacity": 1000}
    with pytest.raises(FileNotFoundError, match="no run to resume"):
        run(total_frames=100, resume=True, **fields)
    assert run(total_frames=100, resume="auto", **fields)["frames"] == 100
    assert run(total_frames=150, resume="auto", **fields)["frames"] == 150
    assert run(total_frames=200, resume=True, **fields)["frames"] == 200
    assert [row["frames"] for row in rows(tmp_path)] == ["50", "100", "150", "200"]
    with pytest.raises(FileExistsError, match="already holds a run"):
        run(total_frames=200, **fields)
    with pytest.raises(ValueError, match="resume must be True, False or 'auto', got 'yes'"):
        run(total_frames=200, resume="yes", **fields)
    with pytest.raises(ValueError, match=r"unknown setting 'total_frame' \(did you mean"):
        run(total_frame=200)
