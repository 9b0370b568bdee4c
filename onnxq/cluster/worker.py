"""One of several processes on this machine: tasks come as pickles from stdin, what becomes of them goes to stdout.

A message is a line of JSON, `["advance", n]` or `["outcome", kind, digest, seconds, n]` with n bytes behind it.
"""

from __future__ import annotations

import _thread
import json
import os
import pickle
import queue
import signal
import sys
import threading
import time
from typing import IO, Any

from onnxq.cluster.tasks import perform, reporting
from onnxq.runtime.process.lazy_imports import postpone

#: Seconds for a process to end by itself.
PATIENCE = 3.0


def main() -> None:
    """One process."""
    postpone()
    try:
        _work()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(128 + signal.SIGINT)  # nobody listens any more


def _work() -> None:
    tasks_in, out = _own(0, "rb", os.open(os.devnull, os.O_RDONLY)), _own(1, "wb", os.dup(2))
    sys.stdout = sys.stderr  # what the user's own data function prints is no message

    def send(*message: object, payload: bytes = b"") -> None:
        out.write(json.dumps(message).encode() + b"\n" + payload)
        out.flush()

    tasks: queue.Queue[tuple[Any, ...] | None] = queue.Queue()
    is_working = threading.Event()
    threading.Thread(target=_listen, args=(tasks_in, tasks, is_working), daemon=True).start()
    while (task := tasks.get()) is not None:
        is_working.set()
        threads, *what = task
        with reporting(lambda done: send("advance", done), threads):
            outcome = perform(*what)
        send("outcome", outcome.kind, outcome.digest, outcome.seconds, len(outcome.payload), payload=outcome.payload)
        is_working.clear()


def _own(number: int, mode: str, instead: int) -> IO[bytes]:
    """A stream as a file of this process alone, and `instead` in its place: programs that the user's own functions
    start, and libraries, write to 1 and read from 0."""
    kept = os.fdopen(os.dup(number), mode, closefd=False)  # it ends with the process, which is no mistake
    os.dup2(instead, number)
    os.close(instead)
    return kept


def _listen(tasks_in: IO[bytes], tasks: queue.Queue[tuple[Any, ...] | None], is_working: threading.Event) -> None:
    """Take tasks until stdin ends, as it does with the process that wrote to it; interrupt what is at work then, and
    end this process if it does not hear that."""
    try:
        while True:
            tasks.put(pickle.load(tasks_in))
    except (EOFError, pickle.UnpicklingError):
        tasks.put(None)
    if not is_working.is_set():
        return
    sys.unraisablehook = lambda _: None  # where a finalizer is interrupted, Python would print it for nobody
    _thread.interrupt_main()
    time.sleep(PATIENCE)
    os._exit(128 + signal.SIGINT)
