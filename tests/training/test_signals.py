"""SIGTERM and SIGINT save first: a pre-empted run loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training_runs import difference, final_state, logged_frames, make_trainer, rows

from torchrl_dceo.data import persistence
from torchrl_dceo.data.persistence import load_state
from torchrl_dceo.training.errors import RunInterrupted, exit_with_a_sentence
from torchrl_dceo.training.interruption import Interruption

SPEC = {"agent": "dceo", "frames": 2400, "log_period": 100, "checkpoint_period": 2400}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_first(runs, tmp_path, number):
    """Between two rows of the log, far from any checkpoint of its own; the resumed run is the same to the last bit."""
    runs.run(run_dir=tmp_path / "whole", **SPEC)
    stopped = tmp_path / "stopped"
    status = runs.run_until(
        lambda: logged_frames(stopped) >= 700, number, delay=0.07, run_dir=stopped, **SPEC
    )
    assert status == 128 + number
    (folder,) = (stopped / "checkpoints").iterdir()
    frames = load_state(folder)["counters"]["frames"]
    assert logged_frames(stopped) <= frames < 2400 and frames >= 700
    runs.run(run_dir=stopped, resume=True, **SPEC)
    assert difference(final_state(stopped), final_state(tmp_path / "whole")) is None
    assert rows(stopped) == rows(tmp_path / "whole")


def test_what_was_gathered_for_a_row_is_saved(tmp_path):
    """A signal at each of several batches between two rows."""
    make_trainer(tmp_path / "whole").run()
    for batches in (1, 3, 8):
        folder = tmp_path / str(batches)
        trainer = make_trainer(folder)
        take, taken = trainer._take, []

        def counting(data, streams, take=take, taken=taken, batches=batches):
            take(data, streams)
            taken.append(1)
            if len(taken) == batches:
                os.kill(os.getpid(), signal.SIGTERM)

        trainer._take = counting
        sentence = f"stopped by SIGTERM after {20 * batches} frames, which are saved: resume"
        with pytest.raises(RunInterrupted, match=sentence) as caught:
            trainer.run()
        assert caught.value.exit_code == 143
        again = make_trainer(folder)
        assert again.resume() == 20 * batches
        again.run()
        assert rows(folder) == rows(tmp_path / "whole")
        assert difference(final_state(folder), final_state(tmp_path / "whole")) is None


def test_the_handlers_of_before_are_back(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    trainer = make_trainer(tmp_path, frames=100)
    during = []
    trainer.probes = (lambda _: during.append(signal.getsignal(signal.SIGTERM)) or {},)
    trainer.run()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert during[0] not in before
    # A run that could save nothing leaves signals alone.
    during.clear()
    trainer = make_trainer(None, frames=100)
    trainer.probes = (lambda _: during.append(signal.getsignal(signal.SIGTERM)) or {},)
    trainer.run()
    assert during[0] in before


SLOW = """
import os, signal, sys, time
from torchrl_dceo.training.interruption import Interruption
with Interruption(grace=float(sys.argv[1])) as interruption:
    print("ready", flush=True)
    while True:
        time.sleep(0.05)  # a batch that never ends
"""


@pytest.mark.parametrize(("grace", "signals"), [(60, 2), (0.3, 1)])
def test_a_second_signal_or_the_end_of_patience_ends_at_once(grace, signals):
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SLOW, str(grace)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    for _ in range(signals):
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert process.wait(timeout=20) == 143


WITH_A_CHILD = """
import multiprocessing, time
from torchrl_dceo.training.interruption import Interruption
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=[600])
    child.start()
    with Interruption() as interruption:
        print(child.pid, flush=True)
        while True:
            time.sleep(0.05)
"""


def test_the_end_at_once_leaves_no_process(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WITH_A_CHILD], stdout=subprocess.PIPE, text=True
    )
    child = int(process.stdout.readline())
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert process.wait(timeout=20) == 130
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_a_signal_in_the_middle_of_a_save(tmp_path, monkeypatch):
    """The checkpoint under way is finished, and is the one that the run ends with."""
    make_trainer(tmp_path / "whole").run()
    trainer = make_trainer(tmp_path / "a")
    real, sent = persistence._File.write, []

    def write(file, data):
        if trainer.counters.frames == 200 and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))
        real(file, data)

    monkeypatch.setattr(persistence._File, "write", write)
    with pytest.raises(RunInterrupted, match="stopped by SIGTERM after 200 frames, which are sav"):
        trainer.run()
    assert sent and trainer.checkpoints.steps() == [100, 200]
    monkeypatch.undo()
    again = make_trainer(tmp_path / "a")
    assert again.resume() == 200
    again.run()
    assert difference(final_state(tmp_path / "a"), final_state(tmp_path / "whole")) is None


def test_outside_the_main_thread_nothing_is_caught():
    import threading

    def run():
        with Interruption() as interruption:
            found.append(interruption._before)

    found = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [{}]


def test_sigterm_outside_of_a_run_is_a_sentence_too(tmp_path, capsys):
    """While a command starts, loads a checkpoint, or draws."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, exit_with_a_sentence(tmp_path):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except Exception:  # what falls back to another checkpoint does not take it for damage
            pytest.fail("it is no error")
    assert end.value.code == 143
    assert capsys.readouterr().err == f"{tmp_path}: stopped by SIGTERM\n"
    assert signal.getsignal(signal.SIGTERM) == before
