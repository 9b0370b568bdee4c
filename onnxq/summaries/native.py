"""Summaries inside the compiled library, which nodes of a running model fill (custom_ops/cpu/summary.h)."""

from __future__ import annotations

import ctypes
import weakref

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq.runtime import native
from onnxq.summaries.histogram import Histogram
from onnxq.summaries.summary import Extremes, Summary

#: ONNX's numbers of the float types.
_TYPES = {np.dtype(t): n for t, n in ((np.float32, 1), (np.float16, 10), (np.float64, 11), (ml_dtypes.bfloat16, 16))}


class _Numbers(ctypes.Structure):
    """SummaryNumbers of summary.h, member by member."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("count", "zeros", "nans", "infinities")),
        *((name, ctypes.c_double) for name in ("low", "high", "total", "squares")),
        ("batches", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("average_low", "average_high")),
        *((name, ctypes.c_int64) for name in ("least_rank", "most_rank", "unlike")),
        *((name, ctypes.c_int64) for name in ("exponent", "first", "bins", "channels")),
    )


_SHARED = tuple(field[0] for field in _Numbers._fields_ if field[0] in Summary.__dataclass_fields__)


def available() -> bool:
    """Whether the library is there."""
    return native.library() is not None


class NativeSummary:
    """A `Summary` that the library keeps, under a number that a node refers to.

    Args:
        start: what it goes on from; decides what is kept (a histogram or not, channels or not).
    """

    def __init__(self, start: Summary) -> None:
        found = native.library()
        assert found is not None
        self._library = found
        self._axis, self._momentum, self._trail = start.axis, start.momentum, start.trail
        axis = None if start.axis is None else ctypes.byref(ctypes.c_int64(start.axis))
        self.number: int = found.onnxq_summary_new(start.histogram is not None, axis)
        weakref.finalize(self, found.onnxq_summary_free, self.number)
        h = start.histogram
        plain = _Numbers(**{name: getattr(start, name) for name in _SHARED})
        if start.trail is not None:  # of which averages are made
            self._trail = list(start.trail)
            plain.batches, plain.average_low, plain.average_high = 0, 0.0, 0.0
        plain.exponent, plain.first = (h.exponent, h.first) if h is not None else (0, 0)
        plain.bins, plain.channels = -1 if h is None else len(h.counts), start.channel_low.size
        counts = np.zeros(0, np.int64) if h is None else h.counts
        arrays = [np.ascontiguousarray(x) for x in (counts, start.channel_low, start.channel_high)]
        found.onnxq_summary_restore(self.number, ctypes.byref(plain), *arrays)

    def update(self, x: NDArray) -> None:
        """Take in one batch, as `Summary.update` does."""
        x = np.ascontiguousarray(x)
        shape = (ctypes.c_int64 * x.ndim)(*x.shape)
        self._library.onnxq_summary_update(self.number, x, _TYPES[x.dtype], shape, x.ndim)
        self.end_batch()

    def end_batch(self) -> None:
        """What came since the last call counts as one batch in the moving average."""
        self._library.onnxq_summary_end_batch(self.number, self._momentum)
        if self._trail is not None:
            self._trail.append(self._take_batch())

    def _take_batch(self) -> Extremes:
        """The extremes of the one batch that the library knows of; it goes on with none."""
        plain, *arrays = self._numbers()
        found = (plain.average_low, plain.average_high) if plain.batches else None
        plain.batches, plain.average_low, plain.average_high = 0, 0.0, 0.0
        self._library.onnxq_summary_restore(self.number, ctypes.byref(plain), *arrays)
        return found

    def _numbers(self) -> tuple[_Numbers, NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Everything that the library holds: counts of the histogram, and extremes of channels, behind the rest."""
        plain = _Numbers()
        self._library.onnxq_summary_numbers(self.number, ctypes.byref(plain))
        counts = np.zeros(max(plain.bins, 0), np.int64)
        low, high = np.zeros(plain.channels), np.zeros(plain.channels)
        self._library.onnxq_summary_arrays(self.number, counts, low, high)
        return plain, counts, low, high

    def read(self) -> Summary:
        """A copy of what has been seen. No session may be filling it meanwhile."""
        plain, counts, low, high = self._numbers()
        seen = Summary(**{name: getattr(plain, name) for name in _SHARED}, histogram=None)
        seen.axis, seen.momentum = self._axis, self._momentum
        seen.channel_low, seen.channel_high = low, high
        if self._trail is not None:
            seen.trail = list(self._trail)
            seen.follow(seen.trail)
        if plain.bins >= 0:
            seen.histogram = h = Histogram()
            h.exponent, h.first, h.counts, h.low, h.high = plain.exponent, plain.first, counts, seen.low, seen.high
        return seen
