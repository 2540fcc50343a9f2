"""Errors that end a run, and how a command ends with them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from torchrl.envs import EnvBase, ParallelEnv, TransformedEnv

__all__ = [
    "NoRun",
    "NonFiniteError",
    "RunBusy",
    "RunError",
    "RunExists",
    "RunInterrupted",
    "RunRefused",
    "dead_worker",
    "exit_with_a_sentence",
    "own_line",
    "raised_here",
    "run_errors",
]


class RunError(Exception):
    """A run cannot be started, resumed or continued; the message is one sentence with the cause and the fix.

    Attributes:
        exit_code (int): the exit code of a command that ends with this error.
    """

    exit_code = 1


class NonFiniteError(RunError, ArithmeticError):
    """A loss, gradient, weight, reward or observation is NaN or infinite."""


class RunRefused(RunError, ValueError):
    """The run in the directory is a different one, or damaged."""


class RunExists(RunError, FileExistsError):
    """The directory of a new run already has a run."""


class NoRun(RunError, FileNotFoundError):
    """There is no run to resume."""


class RunBusy(RunError, RuntimeError):
    """Another process trains in the directory."""


class RunInterrupted(RunError):
    """A signal ended the run, after a checkpoint.

    Args:
        message (str): the sentence.
        signal_number (int): SIGTERM or SIGINT.

    Examples:
        >>> import signal
        >>> from torchrl_dceo.training.errors import RunInterrupted
        >>> RunInterrupted("stopped by SIGTERM", signal.SIGTERM).exit_code
        143
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + int(signal_number)


_MISTAKES = (FileNotFoundError, FileExistsError, ImportError)
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}


def _translated(error: Exception, run_dir: Path | None) -> RunError | None:
    """The message for an error of the machine: disk, memory or processes."""
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        place = error.filename or run_dir
        return RunError(
            f"the disk of {place} is full ({os.strerror(error.errno or 0)}): free some space and resume the run"
        )
    if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
        place = error.filename or run_dir
        return RunError(
            f"{place} cannot be written ({os.strerror(error.errno or 0)}): choose another run_dir or change its "
            "permissions"
        )
    if isinstance(error, MemoryError):
        return RunError(
            f"this machine has too little memory for the run ({error}): set a smaller replay_capacity, or total_frames"
        )
    if isinstance(error, NotADirectoryError):
        return RunError(f"{error.filename or run_dir} lies in no directory: choose another run_dir")
    if isinstance(error, BrokenPipeError | EOFError | ConnectionError):
        return RunError(
            f"a process that steps environments has ended (out of memory or killed? {type(error).__name__}): "
            "resume the run"
        )
    return None


def dead_worker(env: EnvBase) -> str | None:
    """A message about a worker process of a ``ParallelEnv`` that has ended; ``None`` if all are running.

    Args:
        env (EnvBase): any environment, with or without transforms.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.errors import dead_worker
        >>> dead_worker(make_env("NineRooms")) is None
        True
    """
    while isinstance(env, TransformedEnv):
        env = env.base_env
    if not isinstance(env, ParallelEnv):
        return None
    for number, process in enumerate(env._workers):
        if process._popen is None or not process.is_alive():
            code = None if process._popen is None else process.exitcode
            how = "" if code is None else f", with exit code {code}"
            if code is not None and code < 0:
                how = f", killed by signal {-code}"
            return f"worker {number} of the ParallelEnv has ended{how}"
    return None


@contextlib.contextmanager
def run_errors(run_dir: Path | None) -> Iterator[None]:
    """Converts system errors (a full disk, a read-only folder, a dead process) into a :class:`RunError`.

    Args:
        run_dir (Path, optional): used in the message if the error has no file.

    Examples:
        >>> import errno, os
        >>> from pathlib import Path
        >>> from torchrl_dceo.training.errors import run_errors
        >>> with run_errors(Path("runs/a")):
        ...     raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        Traceback (most recent call last):
        torchrl_dceo.training.errors.RunError: the disk of runs/a is full ...
    """
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        translated = _translated(error, run_dir)
        if translated is None:
            raise
        raise translated from error


@contextlib.contextmanager
def exit_with_a_sentence(run_dir: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Context manager of commands: an error becomes a one-sentence message on standard error and an exit code.

    The code is 1 for any error, 143 after SIGTERM, 130 after SIGINT. The traceback of an unexpected error (a bug, or
    an error in the user's environment) is saved as ``error.txt`` in the run directory, and the message names this file.

    Args:
        run_dir (path-like, optional): the run's directory, which begins the message.
    """
    folder = None if run_dir is None else Path(run_dir)
    start = "" if folder is None else f"{folder}: "
    try:
        with _termination(start), run_errors(folder):
            yield
    except RunError as error:
        sys.stderr.write(f"{start}{_one_line(error)}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write(f"{start}stopped by SIGINT\n")
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if isinstance(error, _MISTAKES) or (isinstance(error, ValueError) and raised_here(error)):
            # Invalid settings: their own message.
            sys.stderr.write(f"{start}{_one_line(error)}\n")
            _keep_traceback(folder)
            sys.exit(1)
        sentence = f"{start}{type(error).__name__}: {_one_line(error)}"
        kept = _keep_traceback(folder)
        if kept is None:
            traceback.print_exc()
        else:
            sentence += f" (traceback in {kept})"
        sys.stderr.write(f"{sentence}\n")
        sys.exit(1)


@contextlib.contextmanager
def _termination(start: str) -> Iterator[None]:
    """Ends a command with a message and exit code 143 on SIGTERM before or after training."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.stderr.write(f"{start}stopped by SIGTERM\n")
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def raised_here(error: BaseException) -> bool:
    """Whether this package raised the error deliberately, rather than Python, a library or the user's code.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.errors import raised_here
        >>> for build in (lambda: make_env("NineRoms"), lambda: int("x")):
        ...     try:
        ...         build()
        ...     except ValueError as error:
        ...         print(raised_here(error))
        True
        False
    """
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_PACKAGE)


def own_line(error: BaseException) -> str:
    """The last frame of the traceback in the user's files, `` (file, line n)``; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_PACKAGE, *_LIBRARIES))]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _keep_traceback(folder: Path | None) -> Path | None:
    if folder is None or not folder.is_dir():
        return None
    path = folder / "error.txt"
    with contextlib.suppress(OSError):
        path.write_text(traceback.format_exc())
        return path
    return None
