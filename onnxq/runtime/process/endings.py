"""Ctrl-C and other signals to end: heard once, so that the stack unwinds undisturbed and what is staged is swept."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

#: Seconds in which a signal is the same wish as the one before: of somebody impatient, or of a whole process group.
AGAIN = 5.0
#: After so many seconds a finalizer is over.
SOON = 0.05


#: Seconds that what functions of the user's own began has to end when the work is done.
GRACE = 10.0

_has_called = False


class Ended(SystemExit):
    """A signal asked this process to end: not `sys.exit` of somebody's function."""


class _Listener:
    def __init__(self) -> None:
        self._number, self._since = 0, 0.0

    def end(self, number: int, frame: FrameType | None) -> None:
        """Raise what unwinds the stack, as a handler of signals."""
        if self._number and time.monotonic() - self._since < AGAIN:
            return
        self._number, self._since = number, time.monotonic()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Ended(128 + number)

    def lost(self, unraisable: Any) -> None:
        """What is raised in a finalizer is lost there: ends are asked for once more, all else is printed as ever."""
        if not self._number or not issubclass(unraisable.exc_type, (KeyboardInterrupt, SystemExit)):
            sys.__unraisablehook__(unraisable)
            return
        number, self._number = self._number, 0
        timer = threading.Timer(SOON, _thread.interrupt_main, (number,))
        timer.daemon = True
        timer.start()


def calls_the_users() -> None:
    """Note that a function of the user's own was called, which may begin threads and processes that never end."""
    global _has_called
    _has_called = True


def not_wait_long(code: object) -> None:
    """Let this process end with `code`, as `sys.exit` takes it, some seconds from now: Python waits for threads and for
    processes of `multiprocessing` before it ends, but the work is done.
    """
    if _has_called:
        timer = threading.Timer(GRACE, _leave, (code if isinstance(code, int) else int(code is not None),))
        timer.daemon = True
        with contextlib.suppress(RuntimeError, MemoryError):
            timer.start()


def _leave(code: int) -> None:
    with contextlib.suppress(Exception):  # whoever reads has left
        print("onnxq: what a function of yours began still runs, and is not waited for", file=sys.stderr)
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        for child in sys.modules["multiprocessing"].active_children():
            child.terminate()
    os._exit(code)


def listen() -> None:
    """Let signals that ask this process to end unwind its stack, but those that it was started to ignore (nohup)."""
    listener = _Listener()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, listener.end)
    sys.unraisablehook = listener.lost
