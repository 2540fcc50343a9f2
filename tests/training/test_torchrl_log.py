"""TensorBoard and Weights & Biases beside the CSV file: the same points, each once, also after a resume."""

from __future__ import annotations

import json
import struct
import sys
import types

import pytest
import torch
from training_runs import rows

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer, train
from torchrl_dceo.training.logging import TorchRLLog, make_logs


class Power:
    """A log whose machine loses power at some row."""

    def __init__(self, frames):
        self.frames = frames

    def write(self, row):
        if row["frames"] == self.frames:
            raise KeyboardInterrupt

    def write_again(self, row):
        pass

    def close(self):
        pass


def make_trainer(run_dir, logs=()):
    torch.manual_seed(0)
    env = make_env("NineRooms", room_size=3, batch_size=5, seed=0)
    config = TrainConfig(
        total_frames=250,
        update_period=50,
        learning_starts=50,
        log_period=50,
        checkpoint_period=100,
        progress=False,
    )
    eval_env = make_env("NineRooms", room_size=3, batch_size=2, max_steps=5, seed=1)
    agent = make_agent("ddqn", env)
    return Trainer(agent, env, config, eval_env=eval_env, run_dir=run_dir, logs=logs)


def interrupt_and_resume(run_dir, kind, **kwargs):
    """Stopped at 200, after the row of 150 that no checkpoint has."""
    with pytest.raises(KeyboardInterrupt):
        make_trainer(run_dir, [*make_logs(kind, run_dir, **kwargs), Power(200)]).run()
    # Go back one more checkpoint: 150 and 200 come again.
    newest = max((run_dir / "checkpoints").iterdir())
    assert newest.name.endswith("100")
    trainer = make_trainer(run_dir, make_logs(kind, run_dir, **kwargs))
    assert trainer.resume() == 100
    trainer.run()


def points(run_dir, column):
    return [
        (int(r["frames"]), float(r[column])) for r in rows(run_dir) if r[column] not in ("", "nan")
    ]


def test_tensorboard_has_the_points_of_the_csv_file_once(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    interrupt_and_resume(tmp_path, "tensorboard")
    reader = accumulator.EventAccumulator(str(tmp_path / "tensorboard"), purge_orphaned_data=False)
    reader.Reload()
    for column in ("loss_main", "eps", "episodes", "eval_return"):
        found = [(event.step, event.value) for event in reader.Scalars(column)]
        assert found == [(s, pytest.approx(v)) for s, v in points(tmp_path, column)], column
    assert [event.step for event in reader.Scalars("frames")] == [50, 100, 150, 200, 250]


def test_another_logger_changes_no_number(tmp_path):
    pytest.importorskip("tensorboard")
    interrupt_and_resume(tmp_path / "both", "tensorboard")
    make_trainer(tmp_path / "csv").run()
    assert rows(tmp_path / "both") == rows(tmp_path / "csv")


@pytest.fixture
def fake_wandb(monkeypatch):
    """What TorchRL's logger uses of the package, remembered."""
    calls = []

    class Run:
        def __init__(self, **kwargs):
            calls.append(("init", kwargs))
            self.config = types.SimpleNamespace(
                update=lambda *a, **k: calls.append(("config", a[0]))
            )

        def define_metric(self, *args, **kwargs):
            pass

        def log(self, row, **kwargs):
            calls.append(("log", row))

        def finish(self):
            calls.append(("finish", None))

    module = types.ModuleType("wandb")
    module.__spec__ = types.SimpleNamespace(name="wandb")
    module.init = lambda **kwargs: Run(**kwargs)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr("torchrl.record.loggers.wandb._has_wandb", True)
    return calls


def test_wandb_goes_on_in_the_same_run_and_sends_each_row_once(tmp_path, fake_wandb):
    interrupt_and_resume(tmp_path, "wandb", settings={"lr": 1}, project="mine", mode="offline")
    kinds = [kind for kind, _ in fake_wandb]
    first_part = ["init", "config", *["log"] * 4, "finish"]
    assert kinds == [*first_part, "init", "config", "log", "log", "finish"]
    first, second = (kwargs for kind, kwargs in fake_wandb if kind == "init")
    assert first["id"] == second["id"] and first["resume"] == "allow"
    assert (first["project"], first["mode"], first["dir"]) == ("mine", "offline", str(tmp_path))
    assert ("config", {"lr": 1}) in fake_wandb
    sent = [row for kind, row in fake_wandb if kind == "log"]
    assert [row["step"] for row in sent] == [50, 100, 150, 200, 250, 250]
    assert set(sent[-1]) == {"step", "eval_return"}  # the evaluation at the end comes later
    # What is no number is not sent.
    assert all(value == value for row in sent for value in row.values())
    assert [(r["step"], r["loss_main"]) for r in sent if "loss_main" in r] == points(
        tmp_path, "loss_main"
    )


def records(data):
    """The records of a .wandb file: LevelDB's log format in blocks of 32 KiB, after a header of 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def test_wandb_itself_writes_without_network(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for frames in ((10, 20), (20, 30)):  # the second begins with a row that was sent
        log = TorchRLLog("wandb", tmp_path, {"lr": 0.1}, name="run", project="tests")
        for step in frames:
            log.write({"frames": step, "loss": step / 2, "train_return": float("nan")})
        log.close()
    sent = []
    for path in sorted(tmp_path.rglob("*.wandb")):
        for data in records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {
                    (i.key or "/".join(i.nested_key)): i.value_json for i in record.history.item
                }
                sent.append((json.loads(items["step"]), json.loads(items["loss"])))
    assert sent == [(10, 5.0), (20, 10.0), (30, 15.0)]


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        ImportError, match=r"^logger=wandb needs wandb: pip install 'torchrl-dceo\[w"
    ):
        TorchRLLog("wandb", tmp_path)


def test_train_takes_the_name_of_a_logger(tmp_path):
    pytest.importorskip("tensorboard")
    env = make_env("NineRooms", room_size=3, batch_size=5, seed=0)
    settings = {"total_frames": 50, "update_period": 50, "log_period": 50, "progress": False}
    with pytest.raises(ValueError, match="logger=tensorboard needs a run_dir"):
        train(make_agent("ddqn", env), env, logger="tensorboard", **settings)
    train(make_agent("ddqn", env), env, logger="tensorboard", run_dir=tmp_path / "a", **settings)
    assert list((tmp_path / "a" / "tensorboard").iterdir())
    assert (tmp_path / "a" / "progress.csv").is_file()


def test_tensorboard_has_the_figures_and_the_settings(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    env = make_env("NineRooms", room_size=3, seed=0, visits="counts")
    train(make_agent("ddqn", env, lr=3e-4), env, run_dir=tmp_path, logger="tensorboard", total_frames=120,
          learning_starts=60, log_period=60, eval_episodes=0, progress=False)  # fmt: skip
    reader = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    assert {"learning_curve", "visits"} <= set(reader.Tags()["images"])
    (shown,) = reader.Images("visits")
    assert shown.step == 120 and shown.width > 100
    text = reader.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "lr: 0.0003" in text and "name: NineRooms" in text
    # A resumed run sends the settings no second time.
    train(make_agent("ddqn", env, lr=3e-4), env, run_dir=tmp_path, logger="tensorboard", total_frames=180,
          learning_starts=60, log_period=60, eval_episodes=0, progress=False, resume=True)  # fmt: skip
    reader.Reload()
    assert len(reader.Tensors("settings/text_summary")) == 1 and len(reader.Images("visits")) == 2
