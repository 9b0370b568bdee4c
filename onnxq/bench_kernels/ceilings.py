"""What the machine can do at most, sampled while kernels are timed on it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from onnxq.bench_kernels.contenders import CPUS


def run_on(cpus: Set[int]) -> None:
    """This thread, and those it starts. Not before the library has counted the processors: at its first product."""
    if cpus:
        os.sched_setaffinity(0, cpus)


class Ceilings:
    """Bytes and operations per second. Medians for reading, the best for arithmetic."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self.library, self.threads = library, threads
        self.reads: dict[int, list[float]] = {}
        self.buffers: dict[int, NDArray[np.uint8]] = {}
        self.peaks = {what: self._peak(what) for what in ("fma", "vnni", "amx")}

    def _peak(self, what: str) -> float:
        return float(self.library.onnxq_peak(what.encode(), self.threads))

    def start(self, sizes: Set[int]) -> None:
        self.buffers = {size: np.ones(size, np.uint8) for size in sizes}
        self.reads = {size: [] for size in sizes}

    def sample(self) -> None:
        run_on(CPUS)
        for size, buffer in self.buffers.items():
            seconds = self.library.onnxq_read_seconds(buffer, size, self.threads)
            self.reads[size].append(seconds)
        if max(len(reads) for reads in self.reads.values()) % 8 == 0:
            self.peaks = {what: max(peak, self._peak(what)) for what, peak in self.peaks.items()}
        run_on(set(sorted(CPUS)[:1]))

    def read(self, size: int) -> float:
        seconds = float(np.median(self.reads[size]))
        return size / seconds if seconds else 0.0
