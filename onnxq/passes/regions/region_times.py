"""The regions of a model that ran, their steps, and how long each of these took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.passes.regions.step_names import with_names
from onnxq.runtime.kernel_times import Kernel


@dataclass(frozen=True)
class StepTime:
    """A step: its word, the node that it computes (or the value that it converts), its quickest run."""

    does: str
    node: str
    ms: float


@dataclass(frozen=True)
class RegionTime:
    """A region with its steps, in order.

    Attributes:
        op: `Region` or `Bf16Region`.
        ms: of all steps in their quickest runs.
    """

    name: str
    op: str
    ms: float
    steps: tuple[StepTime, ...]

    def __str__(self) -> str:
        counts = Counter(step.does for step in self.steps)
        words = ", ".join(f"{count} {does}" for does, count in counts.most_common())
        slowest = max(self.steps, key=lambda step: step.ms)
        return f"{self.ms:.3g} ms: {words}; longest: {slowest.does} '{slowest.node}' {slowest.ms:.3g} ms"


def region_times(kernels: Iterable[Kernel], model: ir.Model) -> tuple[RegionTime, ...]:
    """Of the regions among `kernels`, which ran for `model`; the longest first."""
    steps: dict[str, list[Kernel]] = {}
    for kernel in with_names(kernels, model):
        if kernel.step is not None:
            steps.setdefault(kernel.region, []).append(kernel)
    found = []
    for name, each in steps.items():
        ordered = sorted(each, key=lambda kernel: kernel.step or 0)
        op = ordered[0].op.partition(".")[0]
        times = tuple(StepTime(k.op.partition(".")[2], k.name, 1e3 * k.seconds) for k in ordered)
        found.append(RegionTime(name, op, sum(step.ms for step in times), times))
    return tuple(sorted(found, key=lambda region: -region.ms))
