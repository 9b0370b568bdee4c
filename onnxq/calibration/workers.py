"""Calibration in several processes on one machine: each takes a shard, and what they saw is merged.

A process runs `worker.py`: it reads its task as a pickle from stdin, and writes one JSON value a line. It ends when
stdin is closed, as the system does for a process that is killed.

`concurrent.futures` would be shorter, and cannot do it: started afresh, its processes import the caller's `__main__`,
which runs a script without an `if __name__ == "__main__"` again in each; forked, they stand still in onnxruntime's
threads. Nor do they end at once with a parent that is killed, but at the end of what they are at, which takes minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxq import errors
from onnxq.calibration.calibrate import Keep, Means
from onnxq.calibration.observations import Observations, from_table, merge
from onnxq.calibration.resume import parts
from onnxq.errors import BadData, BadRecipe, Bug, OnnxqError
from onnxq.job import Job
from onnxq.recipe import Recipe
from onnxq.runtime import native, supervisor
from onnxq.samples.sampling import Sampling

#: Seconds for a process to end by itself.
PATIENCE = 3.0


@dataclass(frozen=True)
class WorkerTask:
    """What one process is to do: everything that decides what it sees, and what it may spend."""

    model: Path
    recipe: Recipe
    target: str
    sampling: Sampling
    names: tuple[str, ...]
    keep: Keep
    means: Means
    shard: tuple[int, int] = (1, 1)


def task_of(job: Job, names: Sequence[str], keep: Keep, means: Means) -> WorkerTask:
    """The job as another process can open it.

    Raises:
        BadData: other processes cannot open its data.
    """
    sampling = replace(job.sampling, source=require_openable(job.sampling.source))
    return WorkerTask(job.path, job.recipe, job.target.name, sampling, tuple(names), keep, means)


def observe_in_processes(
    whole: WorkerTask, jobs: int, start: Callable[[int], None], progress: Callable[[int], None]
) -> Observations:
    """What `calibrate.observe` finds, from `jobs` processes that share the processor's cores and the memory.

    Raises:
        OnnxqError: what one of them raised; the others are stopped.
    """
    cores = native.cores()
    threads, memory = max(1, cores // jobs), None if whole.means.memory is None else whole.means.memory // jobs
    messages: queue.Queue[tuple[int, list[Any] | None]] = queue.Queue()
    processes: list[subprocess.Popen[bytes]] = []
    found: list[tuple[str, Observations]] = []
    totals: dict[int, int] = {}
    try:
        for i, path in enumerate(parts(whole.means.checkpoint, jobs), 1):
            means = replace(whole.means, threads=threads, memory=memory, checkpoint=path)
            processes.append(_start(replace(whole, means=means, shard=(i, jobs)), i, messages))
        running = jobs
        while running:
            number, message = messages.get()
            if message is None:
                running -= 1
                continue
            kind, value = message
            if kind == "start":
                totals[number] = value
                if len(totals) == jobs:
                    start(sum(totals.values()))
            elif kind == "progress":
                progress(value)
            elif kind == "error":
                raise _error(*value)
            else:
                found.append((f"process {number}", from_table(value)))
    finally:
        _end(processes)
    if len(found) < jobs:
        crashes = (supervisor.crash_of(process.returncode, "several processes calibrated") for process in processes)
        if crash := next(filter(None, crashes), ""):
            raise Bug(crash)
        raise BadRecipe(f"{jobs - len(found)} of {jobs} processes ended early: use fewer --jobs, or less --max-memory")
    return merge(found)


def _start(
    task: WorkerTask, number: int, messages: queue.Queue[tuple[int, list[Any] | None]]
) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # -P: unlike with a script, Python would look for every module in the working folder first, whoever wrote there.
    command = [sys.executable, "-P", "-c", "from onnxq.calibration.worker import main; main()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdin is not None and process.stdout is not None
    lines = process.stdout

    def listen() -> None:
        with lines:
            for line in lines:
                messages.put((number, json.loads(line)))
        messages.put((number, None))

    with contextlib.suppress(BrokenPipeError):  # it ended already, which is seen by its output
        process.stdin.write(pickle.dumps(task))
        process.stdin.flush()
    threading.Thread(target=listen, daemon=True).start()
    return process


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let each clean up behind itself, for a moment."""
    until = time.monotonic() + PATIENCE
    for process in processes:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _error(name: str, text: str) -> OnnxqError:
    """One of errors.py's."""
    kind: type[OnnxqError] = getattr(errors, name)
    return kind(text)


def require_openable(data: object) -> str:
    """`data` as other processes can open it.

    Raises:
        BadData: they cannot.
    """
    if isinstance(data, (str, Path)):
        return str(data)
    raise BadData("several processes can only share data that each can open: a file, a folder or module:function")
