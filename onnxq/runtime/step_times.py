"""How long each step of regions took, as the compiled library writes it where ONNXQ_PROFILE names a file."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_VARIABLE = "ONNXQ_PROFILE"
_NODE = re.compile(r"onnxq node '(.*)', (\w*), (\d+) runs, least us of each step")
_STEP = re.compile(r" *(\d+\.\d+)  (\d+) (\w+)")


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
