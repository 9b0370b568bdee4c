"""Time by kernel, as onnxruntime's profiler tells it."""

from __future__ import annotations

import time
from pathlib import Path

from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.session import Feed, Session

#: Seconds for which a model is profiled, and runs at least and at most.
SECONDS, LEAST, MOST = 0.5, 3, 50


def kernels_of(model: str | Path, feed: Feed, threads: int, seconds: float = SECONDS) -> list[Kernel]:
    """Every kernel of a model that ran on `feed`, with the least time it took."""
    session = Session(model, threads=threads, profile=True)
    start = time.perf_counter()
    for run in range(MOST):
        session.run(feed)
        if run + 1 >= LEAST and time.perf_counter() - start > seconds:
            break
    return session.kernels()
