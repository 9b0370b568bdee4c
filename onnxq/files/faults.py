"""Named points at which a file changes, so that a test can end the process or fail the disk exactly there.

`ONNXQ_FAULT="kill publish.model"` ends the process with SIGKILL, `"ENOSPC write.text 2"` raises that error the second
time the point is passed, `"STOP …"` halts the process until somebody sends SIGCONT. `ONNXQ_FAULT_LOG` names a file to
which every point that is passed adds its name and its process. Without these variables a point does nothing.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter

_passed: Counter[str] = Counter()


def point(name: str) -> None:
    """The file operation called `name` comes next.

    Raises:
        OSError: a test asked for it.
    """
    if log := os.environ.get("ONNXQ_FAULT_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{name} {os.getpid()}\n")
    if wanted := os.environ.get("ONNXQ_FAULT"):
        action, where, *times = wanted.split()
        if where == name:
            _passed[name] += 1
            if _passed[name] == int(times[0] if times else 1):
                _fail(action)


def _fail(action: str) -> None:
    if action in ("kill", "STOP"):
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        return
    number = getattr(errno, action)
    raise OSError(number, os.strerror(number))
