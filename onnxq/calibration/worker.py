"""One of several processes that calibrate: its task comes as a pickle from stdin, its messages go to stdout."""

from __future__ import annotations

import _thread
import json
import os
import pickle
import signal
import sys
import threading
import time

from onnxq.calibration.find_ranges import observe_shard
from onnxq.calibration.workers import PATIENCE, WorkerTask
from onnxq.errors import OnnxqError
from onnxq.job import open_job


def main() -> None:
    """One process."""
    try:
        _work()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(128 + signal.SIGINT)  # nobody listens any more


def _work() -> None:
    """The task from stdin, messages to stdout."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    sys.stdout = sys.stderr  # what the user's own data function prints is no message

    def send(kind: str, value: object) -> None:
        out.write(json.dumps([kind, value]) + "\n")

    task: WorkerTask = pickle.load(sys.stdin.buffer)
    is_over = threading.Event()
    threading.Thread(target=_end_with_parent, args=(is_over,), daemon=True).start()
    try:
        job = open_job(task.model, task.recipe, task.target, task.sampling)
        seen = observe_shard(job, task, lambda n: send("start", n), lambda n: send("progress", n))
        send("result", seen.to_dict())
    except OnnxqError as error:
        send("error", [type(error).__name__, str(error)])
    finally:
        is_over.set()


def _end_with_parent(is_over: threading.Event) -> None:
    """Interrupt this process when its stdin ends, and end it if it does not hear that."""
    while os.read(0, 1 << 16):
        pass
    if is_over.is_set():
        return
    sys.unraisablehook = lambda _: None  # where a finalizer is interrupted, Python would print it for nobody
    _thread.interrupt_main()
    time.sleep(PATIENCE)
    os._exit(128 + signal.SIGINT)
