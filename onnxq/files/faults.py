"""Named points at which a file changes, so that a test can end the process or fail the disk exactly there.

`ONNXQ_FAULT="kill publish.model"` ends the process with SIGKILL, `"ENOSPC write.text 2"` raises that error the second
time the point is passed, `"STOP …"` halts the process until somebody sends SIGCONT. `ONNXQ_FAULT_LOG` names a file to
which every point that is passed adds its name and its process, and which holds nothing else. Without these variables,
or with other words in them, a point does nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
from collections import Counter

_passed: Counter[str] = Counter()
_FAULT = re.compile(r"(kill|STOP|E[A-Z0-9]+) ([\w.]+)(?: ([0-9]{1,9}))?")
_LINE = re.compile(rb"[\w.]+ [0-9]+\n")


def point(name: str) -> None:
    """The file operation called `name` comes next.

    Raises:
        OSError: a test asked for it.
    """
    if log := os.environ.get("ONNXQ_FAULT_LOG"):
        with contextlib.suppress(OSError, ValueError):
            _note(log, name)
    wanted = _FAULT.fullmatch(os.environ.get("ONNXQ_FAULT", ""))
    if wanted and wanted[2] == name:
        _passed[name] += 1
        if _passed[name] == int(wanted[3] or 1):
            _fail(wanted[1])


def _note(log: str, name: str) -> None:
    """Add a line to a file of such lines or a new one: what else lies there may be what a command reads."""
    with open(log, "a+b") as file:
        file.seek(0)
        begin = file.read(200)
        if not begin or _LINE.match(begin):
            file.write(f"{name} {os.getpid()}\n".encode())


def _fail(action: str) -> None:
    if action in ("kill", "STOP"):
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        return
    if number := getattr(errno, action, None):
        raise OSError(number, os.strerror(number))
