"""Executes one run of a study: ``python worker.py <folder>``.

It uses only the standard library, so it starts fast anywhere: as a process on
this machine, in a Slurm job, in a Ray task. It reads ``job.json``, holds ``job.lock`` during the run, starts
or resumes the run, and writes its output to ``log.txt`` and its result to ``state.json``.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path
from types import FrameType
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows, where there is no lock
    fcntl = None  # type: ignore[assignment]

JOB, LOCK, LOG, STATE = "job.json", "job.lock", "log.txt", "state.json"
DONE, FAILED, TAKEN, INTERRUPTED, FULL, UNUSABLE = 0, 1, 3, 4, 28, 29  # exit codes of a worker
_WORDS = {FULL: "the disk is full", UNUSABLE: "its folder cannot be written to"}
GRACE = 8.0
"""Seconds for a run to end before it is killed."""


def work(folder: Path) -> int:
    """Executes the run of a folder; returns 0 if it is done."""
    try:
        return _work(folder)
    except OSError as error:
        # A full disk or a removed folder: state.json cannot be written, but the exit code can be read.
        return FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else UNUSABLE


def _work(folder: Path) -> int:
    job = json.loads((folder / JOB).read_text())
    lock = take(folder / LOCK)
    if lock is None:
        return TAKEN
    with lock:
        before = read_json(folder / STATE)
        if before.get("state") == "done":
            return DONE
        command = command_of(job, folder)
        attempts = before.get("attempts", 0)
        state = {
            "state": "running",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "began": time.time(),
            "attempts": attempts + 1 if isinstance(attempts, int) else 1,
        }
        write_json(folder / STATE, state)
        code, stopped = run(command, job, folder, lock)
        state |= {"ended": time.time(), "exit": code}
        state["state"] = "done" if code == 0 else "interrupted" if stopped else "failed"
        if state["state"] == "failed":
            state["reason"] = how_it_ended(code)
        write_json(folder / STATE, state)
        for name in job["dropped"] if state["state"] == "done" else ():
            shutil.rmtree(folder / name, ignore_errors=True)
    return {"done": DONE, "failed": FAILED, "interrupted": INTERRUPTED}[str(state["state"])]


def command_of(job: Mapping[str, Any], folder: Path) -> list[str]:
    """The command that starts or resumes the run."""
    begun = any((folder / name).exists() for name in job["begun"])
    arguments = job["continued"] if begun else job["arguments"]
    path = quoted(str(folder)) if job["hydra"] else str(folder)
    return [*job["python"], *(argument.replace("{folder}", path) for argument in arguments)]


def quoted(text: str) -> str:
    """Quotes any text as one Hydra value."""
    if all(character.isalnum() or character in "/._-" for character in text):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def run(
    command: list[str], job: Mapping[str, Any], folder: Path, lock: BufferedRandom
) -> tuple[int, bool]:
    """Runs the command; returns its exit code, and whether it was interrupted."""
    stopping: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.append(time.monotonic())

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with (folder / LOG).open("ab") as log:
        log.write(f"== {time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(command)}\n".encode())
        log.flush()
        try:
            child = subprocess.Popen(
                command,
                cwd=job["cwd"],
                env={**os.environ, **job["env"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # The run inherits the lock: as long as any of its processes is running, no other worker starts it.
                pass_fds=[lock.fileno()],
                # A process group of its own, so that its child processes can be stopped with it.
                start_new_session=True,
                preexec_fn=_prepare_child,
            )
        except OSError as error:
            log.write(f"{error}\n".encode())
            return 127, False
        return _wait(child, stopping), bool(stopping)


def _wait(child: subprocess.Popen[bytes], stopping: list[float]) -> int:
    asked = False
    while not _ended(child.pid):
        time.sleep(0.05)
        if stopping and not asked:
            _signal_group(child.pid, signal.SIGINT)  # Python closes open files
            asked = True
        # A second signal: stop immediately.
        elif stopping and (len(stopping) > 1 or time.monotonic() - stopping[0] > GRACE):
            _signal_group(child.pid, signal.SIGKILL)
    # Not reaped yet, so the group id is still valid: remaining child processes are killed here.
    _signal_group(child.pid, signal.SIGKILL)
    return child.wait()


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _prepare_child() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
    end_with_parent(signal.SIGKILL)


def end_with_parent(number: int) -> None:
    """Asks the kernel to send this process a signal when its parent dies (on Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(number), 0, 0, 0)  # PR_SET_PDEATHSIG


def how_it_ended(code: int) -> str:
    """A description of an exit code."""
    if code in _WORDS:
        return _WORDS[code]
    if code >= 0:
        return f"it ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = ", as when memory runs out" if -code == signal.SIGKILL else ""
    return f"it was killed by {name}{hint}"


def take(path: Path) -> BufferedRandom | None:
    """Acquires a lock that is released when its owner ends; ``None`` if another process holds it."""
    file = path.open("a+b")
    for _ in range(20):
        if fcntl is None:
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            time.sleep(0.05)  # possibly a process that only checks whether it is held
    file.close()
    return None


def is_held(path: Path) -> bool:
    """Whether a process holds the lock."""
    if fcntl is None or not path.is_file():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read_json(path: Path) -> dict[str, Any]:
    """The dictionary in a JSON file; empty if it cannot be read."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a file atomically: if the process is killed, the old file remains."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    # The checkpoints of a finished run are deleted next, so its state must be on disk first.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)
    if len(sys.argv) > 2 and os.getppid() != int(sys.argv[2]):
        sys.exit(INTERRUPTED)  # the parent has died in between
    sys.exit(work(Path(sys.argv[1])))
