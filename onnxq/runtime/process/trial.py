"""Something is tried in a process of its own first, where a library that crashes takes nothing else with it."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from onnxq.runtime import supervisor

#: Signals that ask a process to end, and Ctrl-C also the one that is forked off.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signal_that_ends(work: Callable[[], object]) -> str:
    """The name of the signal by which a process that does `work` ends, as SIGSEGV; empty if it ends by itself, however.

    It is forked off, so that what `work` changes is lost. Where that cannot be done safely (other systems, a program
    with several threads that is not our command line), nothing is tried.
    """
    if not hasattr(os, "fork") or (threading.active_count() > 1 and not supervisor.is_at_work()):
        return ""
    parent, child = os.getpid(), 0
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        child = os.fork()
        if child == 0:
            _do(work, parent, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _, status = os.waitpid(child, 0)
    except BaseException:  # who asks this process to end is not kept waiting, nor left with a process that still runs
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it had just ended
            if child:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if supervisor.crash_of(code) else ""


def _do(work: Callable[[], object], parent: int, mask: set[Any]) -> None:
    """Whatever it says is said by the process that it was forked off from, if at all. Signals end it at once: unwound
    like the other's, its stack would sweep what is the other's.
    """
    try:
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        faulthandler.disable()  # it is expected to crash
        supervisor.die_with(parent)
        gc.freeze()  # sessions that nobody holds any more would wait for threads that are not in this process
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        with contextlib.suppress(BaseException):
            work()
    finally:
        os._exit(0)
