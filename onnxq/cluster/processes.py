"""Tasks done by processes on this machine, each driven by a thread of `concurrent.futures`.

Its own pool of processes would be shorter, and cannot do it: started afresh, its processes import the caller's
`__main__`, which runs a script without an `if __name__ == "__main__"` again in each; forked, they stand still in
onnxruntime's threads. Nor do they end at once with a parent that is killed, but at the end of what they are at, which
takes minutes. These end when their stdin is closed, as the system does for a process that is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from onnxq.cluster.tasks import DONE, REFUSED, Outcome, Task, refusal_of, versions
from onnxq.cluster.worker import PATIENCE
from onnxq.errors import BadRecipe, Bug
from onnxq.files.cache import Cache
from onnxq.runtime import native, supervisor

#: Processes that a task may cost.
ATTEMPTS = 2


class Processes:
    """An `Engine` of so many processes, which share the processor's cores. Started when there are tasks.

    Args:
        doing: what they do, for messages: "calibrated".
    """

    dashboard, is_here = "", True

    def __init__(self, count: int, doing: str = "worked", cache: Cache | None = None) -> None:
        self.count, self.doing, self.cache = count, doing, cache
        self._threads = ThreadPoolExecutor(count)
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []
        self._lock, self._is_closed = threading.Lock(), False
        self._needed: dict[str, Future[Outcome]] = {}

    @property
    def workers(self) -> int:
        return self.count

    def begin(self) -> None:
        """Each is started with its first task."""

    def submit(self, task: Task, progress: Callable[[int], None]) -> Future[Outcome]:
        return self._threads.submit(self._done, task, progress)

    def check(self) -> None:
        """Nothing can be lost but what a task's future tells."""

    def unseen(self, *paths: str | Path) -> str:
        """They see what this process sees."""
        return ""

    def close(self) -> None:
        """Stop what is under way; let each process clean up behind itself, for a moment."""
        with self._lock:
            self._is_closed = True
        until = time.monotonic() + PATIENCE
        for process in self._all:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._all:
            _end(process, max(0.0, until - time.monotonic()))
        self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            assert process.stdout is not None
            process.stdout.close()

    def _done(self, task: Task, progress: Callable[[int], None]) -> Outcome:
        needed = [self._once(need) for need in task.needs]
        if wrong := next((outcome for outcome in needed if outcome.kind != DONE), None):
            return wrong
        arguments = task.given() + ((tuple(outcome.payload for outcome in needed),) if needed else ())
        for _ in range(ATTEMPTS):
            process = self._process()
            outcome = _ask(process, task.function, arguments, max(1, native.cores() // self.count), progress)
            if outcome is not None:
                self._idle.put(process)
                if outcome.kind == REFUSED:  # of another version since this process was started
                    raise refusal_of(outcome)
                return outcome
            code = process.wait()
            if crash := supervisor.crash_of(code, f"several processes {self.doing}"):
                raise Bug(crash)
            if self._is_closed or -code != signal.SIGKILL:
                break
        raise BadRecipe(f"processes ended early while they did {task.what}: use fewer --jobs, or less --max-memory")

    def _once(self, task: Task) -> Outcome:
        """What becomes of a task that others need: done by whoever needs it first."""
        with self._lock:
            is_first = task.name not in self._needed
            future = self._needed.setdefault(task.name, Future())
        if is_first:
            try:
                future.set_result(self._done(task, lambda done: None))
            except BaseException as error:
                future.set_exception(error)
        return future.result()

    def _process(self) -> subprocess.Popen[bytes]:
        with contextlib.suppress(queue.Empty):
            return self._idle.get_nowait()
        with self._lock:
            if self._is_closed:
                raise BadRecipe("interrupted")
            process = _started()
            self._all.append(process)
        return process


def _started() -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # -P: unlike with a script, Python would look for every module in the working folder first, whoever wrote there.
    command = [sys.executable, "-P", "-c", "from onnxq.cluster.worker import main; main()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _ask(
    process: subprocess.Popen[bytes],
    function: Callable[..., bytes],
    arguments: tuple[Any, ...],
    threads: int,
    progress: Callable[[int], None],
) -> Outcome | None:
    """What becomes of a task; None if the process ends before."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError, ValueError):  # it ended already, which is seen by its output
        process.stdin.write(pickle.dumps((threads, function, arguments, versions())))
        process.stdin.flush()
    for kind, *values in _messages(process):
        if kind == "advance":
            progress(values[0])
            continue
        word, digest, seconds, length = values
        payload = process.stdout.read(length)
        return None if len(payload) < length else Outcome(word, payload, digest, seconds, "a process on this machine")
    return None


def _messages(process: subprocess.Popen[bytes]) -> Iterator[list]:
    assert process.stdout is not None
    while line := process.stdout.readline():
        yield json.loads(line)


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
