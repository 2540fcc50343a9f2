"""Errors that end a run, checks for non-finite numbers, and signal handling."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import multiprocessing
import os
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torch.nn.parameter import is_lazy
from torchrl.envs import EnvBase, ParallelEnv, TransformedEnv

from torchrl_dceo.agents.agent import Agent

__all__ = [
    "FiniteGuard",
    "Interruption",
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

_log = logging.getLogger(__name__)
# Seconds for the last checkpoint after a signal.
_GRACE = 60.0


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


class FiniteGuard:
    """Detects non-finite numbers: in collected data immediately, in losses and weights once per row of the log.

    No device is synchronised between two rows: the outputs of updates stay there (see
    :class:`~torchrl_dceo.training.logging.metrics.RunMetrics`), and weights and optimizer moments are checked when
    a row is written, before any checkpoint. A non-finite gradient stays in the moments, so none is
    missed.

    Args:
        agent (Agent): its weights are checked.
        env (EnvBase): its rewards and observations are checked.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.errors import FiniteGuard
        >>> env = make_env("NineRooms", room_size=3)
        >>> agent = make_agent("dceo", env, num_options=2, dimensions=3)
        >>> guard = FiniteGuard(agent, env)
        >>> with torch.no_grad():
        ...     _ = next(agent.objectives["main"].parameters()).fill_(torch.nan)
        >>> guard.check_weights(updates=7)
        Traceback (most recent call last):
        torchrl_dceo.training.errors.NonFiniteError: objective 'main' has diverged: ... is nan after 7 updates: ...
    """

    def __init__(self, agent: Agent, env: EnvBase) -> None:
        self._agent = agent
        spec = env.full_observation_spec
        floats = [key for key in spec.keys(True, True) if spec[key].dtype.is_floating_point]
        keys: list[NestedKey] = [("next", "reward")]
        for key in floats:
            keys += [key, ("next", *((key,) if isinstance(key, str) else key))]
        self._keys = keys
        self._num_envs = max(1, env.batch_size.numel())
        # E.g. running extremes that start at infinity.
        self._exempt = {name for name, value in self._named() if not bool(value.isfinite().all())}

    def check_batch(
        self, data: TensorDictBase, frames: int, streams: Sequence[int] | None = None
    ) -> None:
        """Checks the rewards and observations of a batch.

        Args:
            data (TensorDictBase): steps ``[*E, T]``.
            frames (int): the frames of the run before it.
            streams (sequence of int, optional): the environments of the batch. Default: all.
        """
        for key in self._keys:
            value = data.get(key, None)
            # The sum of finite numbers may overflow: then they are checked one by one.
            if value is None or math.isfinite(float(value.sum())):
                continue
            flat = value.reshape(data.numel() // data.shape[-1], data.shape[-1], -1)
            places = (~flat.isfinite()).any(-1).nonzero()
            if not len(places):
                continue
            place, step = places[places[:, 1].argmin()].tolist()
            number = place if streams is None else streams[place]
            found = flat[place, step]
            found = found[~found.isfinite()][0]
            at = f"step {frames // self._num_envs + step + 1}" if streams is None else "a step"
            name = key if isinstance(key, str) else key[-1]
            raise NonFiniteError(
                f"environment {number} gave {name!r} = {float(found)} at {at} (after {frames} frames of the run): "
                "nothing can be learned from it; the checkpoints are from before"
            )

    def check_evaluation(self, value: float, frames: int) -> None:
        """Raises an error if an evaluation is not finite, because it could not be compared with others.

        Args:
            value (float): the mean return.
            frames (int): the frames of the run.
        """
        if not math.isfinite(value):
            raise NonFiniteError(
                f"the greedy evaluation after {frames} frames returned {value}: look at the rewards of the evaluation "
                "environment; the checkpoints are from before"
            )

    def check_updates(self, found: tuple[str, int, float] | None, updates: int) -> None:
        """Raises an error if an output of an update was not finite.

        Args:
            found (tuple, optional): the output's name, the number of updates since then, and its value; see
                :meth:`~torchrl_dceo.training.logging.metrics.RunMetrics.non_finite`.
            updates (int): those that the run has made.
        """
        if found is None:
            return
        key, before, value = found
        objective = key.removeprefix("loss_")
        subject = (
            f"objective {objective!r} has diverged: {key}"
            if objective in self._agent.objectives
            else f"the gradient of {', '.join(self._agent.objectives)} is not finite: {key}"
        )
        raise NonFiniteError(f"{subject} is {value} at update {updates - before}: {_ADVICE}")

    def check_weights(self, updates: int) -> None:
        """Raises an error if a weight, a buffer or a moment of the optimizer is not finite.

        Args:
            updates (int): those that the run has made.
        """
        tensors = dict(self._named())
        kept = [value for name, value in tensors.items() if name not in self._exempt]
        moments = [value for _, value in self._moments()]
        # One number per device, so one synchronisation each.
        if _all_finite([*kept, *moments]):
            return
        parameters = {value.data_ptr(): name for name, value in tensors.items()}
        for parameter, value in self._moments():
            if not _all_finite([value]):
                name = parameters.get(parameter.data_ptr(), "policy.?")
                raise NonFiniteError(
                    f"objective {_owner(name)!r} has diverged: the gradient of {name} was not finite after {updates} "
                    f"updates: {_ADVICE}"
                )
        for name, value in tensors.items():
            if name not in self._exempt and not _all_finite([value]):
                found = float(value[~value.isfinite()].flatten()[0])
                raise NonFiniteError(
                    f"objective {_owner(name)!r} has diverged: {name} is {found} after {updates} updates: {_ADVICE}"
                )

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        # The objectives first: a weight shared with the policy is reported with the objective that trains it.
        seen: set[int] = set()
        modules = [(f"objectives.{n}", m) for n, m in self._agent.objectives.items()]
        for prefix, module in [*modules, ("policy", self._agent.policy)]:
            for name, value in [*module.named_parameters(), *module.named_buffers()]:
                if is_lazy(value) or not value.is_floating_point():
                    continue
                if value.numel() and value.data_ptr() not in seen:
                    seen.add(value.data_ptr())
                    yield f"{prefix}.{name}", value.detach()

    def _moments(self) -> Iterator[tuple[Tensor, Tensor]]:
        state: Mapping[Tensor, dict[str, Any]] = self._agent.optimizer.state
        for parameter, entry in state.items():
            for value in entry.values():
                if isinstance(value, Tensor) and value.is_floating_point():
                    yield parameter, value


_ADVICE = "lower the step size (lr) or look at the rewards; the checkpoints are from before"


def _owner(name: str) -> str:
    first, _, rest = name.partition(".")
    return rest.split(".")[0] if first == "objectives" else first


def _all_finite(tensors: list[Tensor]) -> bool:
    if not tensors:
        return True
    # The largest absolute value is not finite if any value is not.
    return math.isfinite(float(torch.nn.utils.get_total_norm(tensors, math.inf)))


class Interruption:
    """Handles SIGTERM and SIGINT during training, so that a checkpoint is saved before the run ends.

    The first signal is only recorded: the loop checks it after the current batch. A second signal ends the process
    immediately, and so does the first if there is no checkpoint after a minute. The previous handlers are restored
    at the end. Outside the main thread, where Python delivers no signals, nothing is handled.

    Args:
        enabled (bool, optional): ``False`` to install no handlers. Default: ``True``.
        grace (float, optional): seconds until the process ends after the first signal. Default: 60.

    Examples:
        >>> import os, signal
        >>> from torchrl_dceo.training.errors import Interruption
        >>> with Interruption() as interruption:
        ...     os.kill(os.getpid(), signal.SIGTERM)
        ...     interruption.received.name
        'SIGTERM'
    """

    def __init__(self, enabled: bool = True, grace: float = _GRACE) -> None:
        self.enabled = enabled
        self.grace = grace
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._timer: threading.Timer | None = None

    def is_received(self) -> bool:
        """Whether a signal was received."""
        return self.received is not None

    def __enter__(self) -> Interruption:
        self.received = None
        if self.enabled and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if self._timer is not None:
            self._timer.cancel()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            _end_at_once(number)
        self.received = signal.Signals(number)
        self._timer = threading.Timer(self.grace, _end_at_once, [number])
        self._timer.daemon = True
        self._timer.start()


def _end_at_once(number: int) -> None:
    """Ends the process without a checkpoint; those on disk are always valid."""
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(128 + number)
