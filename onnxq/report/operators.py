"""Time by kernel and by operator, as onnxruntime's profiler tells it, the least of several runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxq.report.document import Node, Operator
from onnxq.runtime.session import Feed, Kernel, Session

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


def by_operator(before: Sequence[Kernel], after: Sequence[Kernel]) -> list[Operator]:
    """Kernels of an operator together, those that take the most time first.

    Args:
        before, after: of the float and of the quantized model; one of them may be empty.
    """
    found: dict[str, Operator] = {}
    for kernel in before:
        row = found.setdefault(kernel.op, Operator(kernel.op))
        row.before += 1
        row.float_ms += 1e3 * kernel.seconds
    for kernel in after:
        row = found.setdefault(kernel.op, Operator(kernel.op))
        row.after += 1
        row.quantized_ms += 1e3 * kernel.seconds
    return sorted(found.values(), key=lambda row: -max(row.float_ms, row.quantized_ms))


def add_times(
    nodes: Sequence[Node], owners: Mapping[str, str], before: Sequence[Kernel], after: Sequence[Kernel]
) -> None:
    """Give nodes the time of their kernels. A kernel of several nodes has the name of one, or of what it makes.

    Args:
        owners: the node of a kernel, by the kernel's name.
    """
    for kernels, field in ((before, "float_ms"), (after, "quantized_ms")):
        times: dict[str, float] = {}
        for kernel in kernels:
            owner = owners.get(kernel.name, kernel.name)
            times[owner] = times.get(owner, 0.0) + 1e3 * kernel.seconds
        for node in nodes:
            if node.name in times:
                setattr(node, field, times[node.name])
