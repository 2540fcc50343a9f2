"""Signals during training: a checkpoint is saved before the run ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interruption"]

# Seconds for the last checkpoint after a signal.
_GRACE = 60.0


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
        >>> from torchrl_dceo.training.interruption import Interruption
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
