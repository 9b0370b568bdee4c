"""The runtime that a plan is for, where it is another one than onnxruntime on a processor, and installed here."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import BadModel
from onnxq.job import Job
from onnxq.output import write
from onnxq.plan import Plan
from onnxq.runtime.consumers import Consumer, in_order, kernels_in, open_in
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.profile import PlanTime
from onnxq.runtime.session import Feed
from onnxq.runtime.timing import race
from onnxq.summaries.ranges import Ranges

#: Seconds for which plans are timed there, each, and for which the kernels of one are.
SECONDS, KERNEL_SECONDS = 0.5, 1.0


@dataclass(frozen=True)
class There:
    """Runs the float model, and plans, in that runtime.

    Attributes:
        run: gives the float model's outputs, in its order.
        in_float: the float model, opened there.
    """

    consumer: str
    threads: int
    rewrite: Callable[[Plan], ir.Model]
    run: Callable[[Feed], Sequence[NDArray]]
    in_float: Consumer | None = None

    def ratios(self, plans: Sequence[Plan], feed: Feed) -> list[PlanTime] | None:
        """The least time of a run of each of these plans as they would be written, by that of the float model, in
        turns; None if one does not run there."""
        if self.in_float is None:
            return None
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(BadModel):
            sessions: list[Consumer] = [self.in_float]
            for number, plan in enumerate(plans):
                path = Path(folder) / f"{number}.onnx"
                write.save(self.rewrite(plan), path)
                session = open_in(self.consumer, path, self.threads)
                if session is None:
                    return None
                sessions.append(session)
            found = race(sessions, [feed] * len(sessions), seconds=SECONDS)
            return [PlanTime(found.ratio(index), found.spreads[index]) for index in range(1, len(sessions))]
        return None

    def kernels(self, plan: Plan, feed: Feed) -> list[Kernel] | None:
        """The kernels that run for a plan as it would be written, with their times; None where that is not known."""
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(BadModel):
            path = Path(folder) / "profiled.onnx"
            write.save(self.rewrite(plan), path)
            return kernels_in(self.consumer, path, self.threads, feed, KERNEL_SECONDS)
        return None


def there_of(job: Job, ranges: Ranges) -> There | None:
    """Where the job's target is run; None: in onnxruntime, or nowhere on this machine."""
    consumer = job.target.consumer
    if not consumer:
        return None
    with contextlib.suppress(BadModel):
        session = job.open_there()
        if session is not None:
            run = in_order(session, [value.name or "" for value in job.model.graph.outputs])
            return There(consumer, job.threads, lambda plan: job.rewritten(plan, ranges, is_final=True), run, session)
    return None
