"""The command line's work is done in a child process, so that a library which aborts on a hostile model takes only that
with it, and the user is told what happened.

The parent is forked off before anything is imported, costs some milliseconds and memory of its own as good as none, and
only waits: signals that it gets are passed on, and the child's exit status is its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable

_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
#: What a process that damages its own memory, or gives up, ends with.
_CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
#: `si_code` of a signal that another process sent; Ctrl-C comes from the kernel, and to the child as well.
_SENT_BY_A_PROCESS = 0
_CANNOT, _BUG, _KILLED = 1, 70, 137
#: What the C library ends a process with that has no memory for a thread's own variables.
_NO_THREAD = 127
_PARENT_DIES = 1  # PR_SET_PDEATHSIG
#: Bytes of what parent and child share: what is being done, which function of the user's is at work, and whether the
#: child's work came to its end.
_PAGE, _CALLED, _END = 1024, 512, 1023
_HOUR = 3600.0
#: Seconds that the child has to end after it was told to: inside a library that runs an endless loop, it hears nothing.
PATIENCE = 15.0

_page: mmap.mmap | None = None
_is_at_work = False


def doing(what: str) -> None:
    """Note what is being done, for the sentence that the parent says if this process does not live to say one."""
    if _page is not None:
        _note(what, 0, _CALLED)


def calling(function: str) -> None:
    """Note which function of the user's is at work, in whatever thread; empty: none any more."""
    if _page is not None:
        _note(function, _CALLED, _END)


def _note(what: str, start: int, stop: int) -> None:
    assert _page is not None
    text = what.encode("utf-8", "replace")[: stop - start - 1] + b"\0"
    _page[start : start + len(text)] = text


def _noted(start: int) -> str:
    """What was, of names in a hostile file only what can be printed."""
    assert _page is not None
    what = _page[start:].split(b"\0")[0].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in what)


def is_at_work() -> bool:
    """Whether this process is the command line's, all of whose threads are ours."""
    return _is_at_work


def die_with(parent: int) -> None:
    """To be called in a process that was forked off: the system kills it when its parent ends, where it can (Linux)."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other systems
        ctypes.CDLL(None).prctl(_PARENT_DIES, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it is gone already
            os._exit(_KILLED)


def supervised(work: Callable[[], None]) -> None:
    """Run `work` in a child process, and end as it ends."""
    global _page, _is_at_work
    _is_at_work = True
    if not hasattr(signal, "sigwaitinfo"):  # systems other than Linux
        work()
        return
    _page = mmap.mmap(-1, _PAGE)
    waited_for = _PASSED_ON | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with(parent)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            work()
        except KeyboardInterrupt:  # pressed before anybody listened
            _say("interrupted")
            os._exit(128 + signal.SIGINT)
        finally:
            _page[_END] = 1
        return
    # Under nohup and in the background of a script, some of these do not end it.
    ending = {number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}
    until, ended_by = math.inf, 0
    while True:
        got = signal.sigtimedwait(waited_for, min(_HOUR, max(0.0, until - time.monotonic())))
        if got is None:
            if time.monotonic() >= until:
                os.kill(child, signal.SIGKILL)
                until = math.inf
            continue
        if got.si_signo != signal.SIGCHLD:
            if got.si_code <= _SENT_BY_A_PROCESS:
                os.kill(child, got.si_signo)
            if got.si_signo in ending and not ended_by:
                until, ended_by = time.monotonic() + PATIENCE, got.si_signo
            continue
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            os._exit(_exit_code(status, ended_by))


def _exit_code(status: int, ended_by: int) -> int:
    """The child's exit code; of one that a signal ended, what shells make of it, with a sentence."""
    code = os.waitstatus_to_exitcode(status)
    what, function = _noted(0), _noted(_CALLED)
    assert _page is not None
    if code >= 0 and code != _NO_THREAD:
        if function and not _page[_END]:  # in which somebody took leave, and nothing was cleaned up
            _say(f"{function} ended the process, with exit code {code}, before the work was done")
            return _CANNOT
        return code
    if -code == signal.SIGKILL and ended_by:
        _say("ended while a library below onnxq was at work")
        return 128 + ended_by
    if function:
        what = f"{function} was at work{f', and perhaps {what}' if what else ''}"
    if code == _NO_THREAD:
        _say(f"a thread could not be had{f' while {what}' if what else ''}, because memory ran out")
        return _KILLED
    if -code == signal.SIGKILL:
        _say(f"killed{f' while {what}' if what else ''}, most often because memory ran out")
        return _KILLED
    if -code == signal.SIGXCPU:
        _say(f"the limit of processor time ('ulimit -t') was reached{f' while {what}' if what else ''}")
        return 128 - code
    if crash := crash_of(code, what):
        _say(crash)
        return _BUG
    if function and not ended_by:
        _say(f"ended by {signal.Signals(-code).name} while {what}")
    return 128 - code


def crash_of(code: int, what: str = "") -> str:
    """A sentence on a process that ended with this exit code, if it crashed while doing `what`; else nothing."""
    if -code not in _CRASHES:
        return ""
    during = f" while {what}" if what else ""
    return (
        f"a library below onnxq crashed ({signal.Signals(-code).name}){during}: a damaged model, or a bug; "
        "'onnxq doctor MODEL' tells whether onnxruntime crashes on the model alone; if it does not, please report it"
    )


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), f"onnxq: {sentence}\n".encode("utf-8", "replace"))
