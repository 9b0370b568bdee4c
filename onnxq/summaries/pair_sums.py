"""Sums over the numbers of two arrays, the wanted ones and those that were got instead, piece by piece."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxq.quality import decibel

#: Numbers summed at a time, so that the float64 copies stay in the processor's cache.
CHUNK = 1 << 16


@dataclass
class PairSums:
    """Sums in float64 over any number of pieces. The error is what was got minus what was wanted."""

    count: int = 0
    signal: float = 0.0
    noise: float = 0.0
    quantized: float = 0.0
    product: float = 0.0
    total: float = 0.0
    absolute: float = 0.0
    largest: float = 0.0

    def add(self, wanted: NDArray, got: NDArray) -> None:
        """Take in numbers and what became of them.

        Args:
            wanted, got: arrays of one shape and any floating-point type.

        Raises:
            ValueError: the shapes differ, or a number is not finite: no error could be told of it.
        """
        if wanted.shape != got.shape:
            raise ValueError(f"shapes {wanted.shape} and {got.shape} differ")
        x, y = wanted.reshape(-1), got.reshape(-1)
        for start in range(0, x.size, CHUNK):
            a = x[start : start + CHUNK].astype(np.float64)
            b = y[start : start + CHUNK].astype(np.float64)
            error = b - a
            if not np.isfinite(error).all():
                _refuse(wanted, got)
            self.signal += float(a @ a)
            self.quantized += float(b @ b)
            self.product += float(a @ b)
            self.noise += float(error @ error) or math.ulp(0.0) * bool(error.any())  # squares of 1e-170 are 0
            self.total += float(error.sum())
            np.abs(error, out=error)
            self.absolute += float(error.sum())
            self.largest = max(self.largest, float(error.max()))
        self.count += x.size

    @property
    def sqnr(self) -> float:
        """Signal to noise in dB, within ±`MAX_DB`."""
        return decibel(self.signal, self.noise)

    @property
    def cosine(self) -> float:
        """Of the angle between both as vectors: 1 for two of zeros, 0 where one of them is."""
        if self.signal == 0 or self.quantized == 0:
            return float(self.signal == self.quantized)
        # The root of each, because the product of two sums of squares can overflow.
        return max(-1.0, min(1.0, self.product / math.sqrt(self.signal) / math.sqrt(self.quantized)))


def _refuse(wanted: NDArray, got: NDArray) -> None:
    """Say which number is not finite; where all are, float64 does not hold their difference, which is infinite."""
    for name, array in (("wanted", wanted), ("got", got)):
        bad = np.argwhere(~np.isfinite(array.astype(np.float64)))
        if len(bad):
            index = [int(i) for i in bad[0]]
            raise ValueError(f"array '{name}' holds {array[tuple(index)]} at {index}: its error is no number")
