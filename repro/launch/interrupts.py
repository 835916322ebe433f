"""Ctrl-C at a bad moment: what has been started elsewhere must be known before an interruption may stop its starter.

with Interrupts() as interrupts:
    try:
        with interrupts.held():
            job = submit()      # an interruption in here is raised behind it, when `job` is known
        follow(job)
    except BaseException:
        cancel(job)             # a second interruption does not cut this short
        raise
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While entered, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt: the first of them, and not while held.

    A signal that was ignored (nohup, a background job's SIGINT) stays ignored. Outside the main thread, which alone may
    handle signals, nothing changes.
    """

    def __init__(self) -> None:
        self._came = False
        self._held = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.getsignal(number)
                if before not in (signal.SIG_IGN, None):
                    self._before[number] = before
                    signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @contextmanager
    def held(self) -> Iterator[None]:
        """An interruption inside the block is raised when the block has ended well; an error of its own goes first."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._came:
            raise KeyboardInterrupt

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._came:
            return
        self._came = True
        if not self._held:
            raise KeyboardInterrupt
