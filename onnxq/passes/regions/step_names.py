"""Which nodes of the float model the steps of regions stand for, as their metadata say it, and how long they took."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.files import limits
from onnxq.model import graph
from onnxq.runtime.kernel_times import Kernel

_KEY = "onnxq.steps"


def name_steps(node: ir.Node, names: Sequence[str]) -> None:
    """Note down whose steps those of a region are, in their order."""
    node.metadata_props[_KEY] = json.dumps(list(names), ensure_ascii=False)


def forget_steps(node: ir.Node) -> None:
    """Of a region whose body takes its place: each node of that would say the same list."""
    node.metadata_props.pop(_KEY, None)


def names_of(model: ir.Model) -> dict[str, list[str]]:
    """By region, a name for each of its steps: of the node that it computes, or of a conversion. Those that say none
    are left out."""
    found = {}
    for node in graph.nodes(model):
        try:
            names = limits.parse_json(node.metadata_props.get(_KEY, ""))
        except ValueError:  # a file may say anything
            continue
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            found[node.name or ""] = names
    return found


def with_names(kernels: Iterable[Kernel], model: ir.Model) -> list[Kernel]:
    """`kernels`, in which those of steps are called as `names_of` says."""
    names = names_of(model)
    found = []
    for kernel in kernels:
        of_region = names.get(kernel.region, [])
        known = kernel.step is not None and kernel.step < len(of_region)
        found.append(dataclasses.replace(kernel, name=of_region[kernel.step or 0]) if known else kernel)
    return found


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
