"""A process that has imported everything, and forks one that runs a command for each line that it is sent.

A request is `{"argv", "cwd", "env", "patches", "output"}` and is answered by a process id, or `{"wait": id}`, which is
answered by an exit status; negative, if a signal ended it. Starting Python for each of hundreds of runs would take
minutes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import threading
import traceback
from typing import Any, BinaryIO

import onnxruntime  # noqa: F401  imported once, here; it makes no threads before there is a session

from onnxq import __main__ as program
from onnxq.cli import main
from onnxq.cluster import processes, worker

list(main.commands.values())  # with all that commands import, which would take most of the time of each of them


class ForkedProcess:
    """What `processes` needs of `subprocess.Popen`, without another start of Python."""

    def __init__(self, command: list[str], **_: object) -> None:
        stdin, self.stdin = _pipe()
        self.stdout, stdout = _pipe()
        self.returncode: int | None = None
        self._lock = threading.Lock()  # several threads may wait
        self.pid = os.fork()
        if not self.pid:
            os.setpgid(0, 0)
            os.dup2(stdin.fileno(), 0)
            os.dup2(stdout.fileno(), 1)
            for end in (self.stdin, self.stdout):
                os.close(end.fileno())
            sys.stdin, sys.stdout = os.fdopen(0, "r", closefd=False), os.fdopen(1, "w", closefd=False)
            _run(worker.main)
        stdin.close()
        stdout.close()

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is None:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self.returncode


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    read, write = os.pipe()
    return os.fdopen(read, "rb"), os.fdopen(write, "wb")


def _run(function: Any) -> None:
    code: object = 1
    try:
        function()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def start(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    tempfile.tempdir = None  # asked for again, as the environment says now
    output = os.open(request["output"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, file in ((0, null), (1, output), (2, output)):
        os.dup2(file, number)
    for name, value in request["patches"].items():
        module, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(module), attribute, value)
    processes.subprocess.Popen = ForkedProcess  # type: ignore[misc, assignment]
    os.fsync = lambda file: None  # nobody pulls the plug here
    sys.argv = ["onnxq", *request["argv"]]
    _run(program.work)
    raise AssertionError


def main() -> None:
    assert threading.active_count() == 1
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = start(request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
