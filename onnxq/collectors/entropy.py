"""entropy: the range whose rounded histogram tells least apart from the histogram itself (Kullback-Leibler divergence).

Source: Migacz, 8-bit Inference with TensorRT (2017): one threshold on |x|, outliers counted at the threshold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.collectors import SummaryCollector
from onnxq.summaries.ranges import UINT8, Grid, Range

#: Thresholds tried, evenly spaced up to the largest magnitude.
CANDIDATES = 128


class Entropy(SummaryCollector):
    """Keeps the distribution's shape; meant for activations with many values, not for few or discrete ones."""

    def range(self, grid: Grid = UINT8) -> Range | None:
        h = self.histogram
        if h is None or not h.counts.size:
            return None
        start, whole = h.magnitudes()
        counts = whole.astype(np.float64)
        # Zeros are codes of every grid and would, after a Relu, outweigh everything else.
        if start == 0:
            counts[0] = max(counts[0] - self.summary.zeros, 0.0)
        used = start + len(counts)
        levels = grid.magnitudes(one_sided=h.low >= 0 or h.high <= 0)
        ends = sorted({int(end) for end in np.linspace(0, used, CANDIDATES + 1)[1:] if end >= max(levels, start + 1)})
        best = used
        if counts.sum() > 0 and len(ends) > 1:
            divergences = [_divergence(start, counts, end, levels) for end in ends]
            best = ends[int(np.argmin(divergences))]
        limit = best * h.width if best < used else max(abs(h.low), abs(h.high))
        low, high = max(h.low, -limit), min(h.high, limit)
        return Range(min(low, h.high), max(high, h.low))


def _divergence(start: int, counts: NDArray[np.float64], end: int, levels: int) -> float:
    """KL divergence between the first `end` bins, what lies beyond added to the last, and the same in `levels` steps.

    Args:
        start: the number of empty bins before `counts`.
    """
    inside = counts[: end - start]
    wanted = inside.copy()
    wanted[-1] += counts[end - start :].sum()
    # The bins of each step share its count evenly, the empty ones aside.
    step = (np.arange(start, end) * levels) // end
    step -= step[0]
    filled = inside > 0
    shared = np.bincount(step, inside) / np.maximum(np.bincount(step, filled), 1)
    got = np.where(filled, shared[step], 0.0)
    if not got.sum() > 0:
        return np.inf
    p, q = wanted / wanted.sum(), got / got.sum()
    some = p > 0
    return float(np.sum(p[some] * np.log(p[some] / np.maximum(q[some], _FLOOR))))


#: Stands for the probability of a bin that holds outliers only.
_FLOOR = 1e-9
