"""What a profile tells of each kernel that ran; of regions each step, as the compiled library writes it where
ONNXQ_PROFILE names a file."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

#: Operators of our own that compute in steps.
REGIONS = ("Region", "Bf16Region")
_VARIABLE = "ONNXQ_PROFILE"
_lock = threading.Lock()
_NODE = re.compile(r"onnxq node '(.*)', (\w*), (\d+) runs, least us of each step")
_STEP = re.compile(r" *(\d+\.\d+)  (\d+) (\w+)")


@dataclass(frozen=True)
class Kernel:
    """One node of the optimized graph: operator, name of the node or value it came from, least seconds, runs.

    The least of many runs, because whatever else the machine does only adds to it.

    Attributes:
        region, step: of a step of a region: which one.
        others: further nodes whose work it does, where the runtime tells.
    """

    op: str
    name: str
    seconds: float
    runs: int
    region: str = ""
    step: int | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepTime:
    """The quickest run of one step.

    Attributes:
        node: the region.
        number: of the step, from 0 on.
        does: its word.
        runs: of the region.
    """

    node: str
    number: int
    does: str
    seconds: float
    runs: int


@contextlib.contextmanager
def written_to(path: Path) -> Iterator[None]:
    """Regions of sessions opened in this block add their times to the file at `path` when the sessions end."""
    with _lock:  # the variable is the process's; other threads open sessions too
        before = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = str(path)
        try:
            yield
        finally:
            if before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = before


def read(path: Path) -> list[StepTime]:
    """What was written; nothing where there is no file, as where no region ran."""
    found: list[StepTime] = []
    node, runs = "", 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        if head := _NODE.match(line):
            node, runs = head[1], int(head[3])
        elif step := _STEP.match(line):
            found.append(StepTime(node, int(step[2]), step[3], float(step[1]) * 1e-6, runs))
    return found


def with_steps(kernels: Sequence[Kernel], steps: Sequence[StepTime]) -> list[Kernel]:
    """The kernels and the steps of the regions among them, which keep what they took besides."""
    ops = {kernel.name: kernel.op for kernel in kernels if kernel.op in REGIONS}
    inside: dict[str, float] = {}
    found = []
    for step in steps:
        if step.node not in ops:
            continue
        inside[step.node] = inside.get(step.node, 0.0) + step.seconds
        op = f"{ops[step.node]}.{step.does}"
        found.append(Kernel(op, f"{step.node}/{step.number}", step.seconds, step.runs, step.node, step.number))
    outside = [
        replace(kernel, seconds=max(0.0, kernel.seconds - inside[kernel.name])) if kernel.name in inside else kernel
        for kernel in kernels
    ]
    return [*outside, *found]


def original_name(name: str) -> str:
    """The name before onnxruntime decorated it: fused nodes keep the name of their main node or of its output."""
    return re.sub(r"(/\w+Fusion/?|_nchwc|_token_\d+)+$", "", name).removeprefix("fused ")
