"""A model run on stored samples: what it computes, how long it takes, by which kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from numpy.typing import NDArray

from onnxq.checking.models import quantized_kernels
from onnxq.runtime.session import Feed, Session
from onnxq.runtime.timing import race

#: For which the model is timed.
SECONDS = 1.0


@dataclass(frozen=True)
class Run:
    """What was found.

    Attributes:
        outputs: of each sample.
        milliseconds: of one run of the first sample, the least that was seen.
        kernels: that ran on integers or packed weights, by operator.
    """

    outputs: list[list[NDArray]]
    milliseconds: float
    kernels: dict[str, int]


def run(model: Path, feeds: Sequence[Feed], outputs: Sequence[str] | None, threads: int, library: bool | Path) -> Run:
    """Run the model at `model` on samples, of which there is at least one.

    Args:
        outputs: those that are wanted; None: all.
        library: as of `Session`.

    Raises:
        BadModel: onnxruntime refuses the model or a run.
    """
    session = Session(model, threads=threads, library=library)
    found = [session.run(feed, outputs) for feed in feeds]
    timing = race([session], [feeds[0]], seconds=SECONDS)
    profiled = Session(model, threads=threads, library=library, profile=True)
    for feed in feeds:
        profiled.run(feed)
    return Run(found, 1e3 * timing.seconds[0], quantized_kernels(profiled.kernels()))
