"""adaround: whether each weight is rounded up or down is learned, by gradients through a soft rounding.

Between the two codes next to a weight, a sigmoid with stretched ends says how far up it goes; Adam brings the layer's
outputs on the data to where they were in float, while a growing penalty drives every weight to one end. The error is
that of all rows at once: with their Gram matrix H it is the trace of Dᵀ·H·D, so no batch is drawn. Scales are those
that gptq has fitted, and its coordinate descent has the last word. Output channels for which held-back samples speak
against what was learned keep the codes of gptq.

Source: Nagel et al., Up or Down? Adaptive Rounding for Post-Training Quantization (ICML 2020).
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms import gptq
from onnxq.algorithms._base import base_first
from onnxq.algorithms._columns import Columns
from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor
from onnxq.summaries.evidence import Layer

#: Needs what data say of the layer, behind layers that are quantized.
NEEDS_DATA = FOLLOWS = True
#: Takes ten times as long as gptq.
SLOW = True
#: Where the sigmoid's ends are stretched to, so that it reaches 0 and 1.
LOW, HIGH = -0.1, 1.1
#: Steps of Adam, and how far each goes; fewer steps where all would take more multiplications than these.
STEPS, RATE, FEWEST, MOST_WORK = 1000, 0.03, 100, 4e11
#: What the penalty weighs beside the error of one weight, its first and last power, and the part of all steps without.
PENALTY, FIRST_POWER, LAST_POWER, FREE = 8.0, 20.0, 2.0, 0.2
#: Outputs that are worked on at a time.
OUTPUTS = 512


def suits(op_type: str, format: Format, granularity: Granularity) -> bool:
    return format.bits <= 4 and format.scale_type is not None and _is_even(format) and op_type == "Conv"


@base_first
def quantize(
    w: FloatArray,
    format: Format,
    granularity: Granularity,
    scales: FloatArray | None = None,
    zero_points: CodeArray | None = None,
    *,
    layer: Layer,
    half_scales: bool = False,
) -> QuantizedTensor:
    """`w` in `format`, chosen for the inputs that `layer` tells of; for parameters see `gptq.quantize`.

    Codebooks, whose codes are no evenly spaced numbers, get the codes of gptq.
    """
    if not _is_even(format):
        return gptq.quantize(w, format, granularity, scales, zero_points, layer=layer, half_scales=half_scales)
    further = gptq.Further("adaround", _learned)
    return gptq.solved(
        w, format, granularity, scales, zero_points, layer=layer, half_scales=half_scales, further=further
    )


def _is_even(format: Format) -> bool:
    return format.levels is None and format.code_type.kind in "iu" and not format.powers_of_two


def _learned(columns: Columns, gram: NDArray[np.float32]) -> Columns:
    """The same columns with codes that were learned."""
    found = columns.part(slice(None))
    for start in range(0, columns.w.shape[1], OUTPUTS):
        outputs = slice(start, start + OUTPUTS)
        part = columns.part(outputs)
        with np.errstate(all="ignore"):  # what comes of numbers out of all proportion is not chosen in the end
            soft = _Soft.of(part)
            up = _descended(soft, gram)
        found.codes[:, outputs] = (soft.below + up).astype(found.codes.dtype)
    return found.decoded()


class _Soft(NamedTuple):
    """[K, N] each.

    Attributes:
        step: what one code more adds.
        below: the code below each weight.
        rest: how far above it the weight lies, in codes; codes that clip are further away than one.
    """

    step: FloatArray
    below: FloatArray
    rest: FloatArray

    @classmethod
    def of(cls, columns: Columns) -> Self:
        step = columns.scales[columns.group].astype(np.float32)
        lowest, highest = _limits(columns.format)
        exact = columns.codes.astype(np.float32) + (columns.w - columns.values) / step
        below = np.clip(np.floor(exact), lowest, highest - 1)
        return cls(step, below, exact - below)


def _limits(format: Format) -> tuple[int, int]:
    """The lowest and the highest code."""
    far = np.array([[-1e6, 1e6]], np.float32)
    zeros = None if format.offset_type is None else np.zeros((), format.offset_type)
    codes = format.encode(far, Granularity(), np.ones((), format.scale_type), zeros).codes
    return int(codes.min()), int(codes.max())


def _descended(soft: _Soft, gram: NDArray[np.float32]) -> NDArray[np.bool_]:
    """[K, N]: which weights go up."""
    k, n = soft.step.shape
    steps = int(np.clip(MOST_WORK / (2 * k * k * n), FEWEST, STEPS))
    inside = np.clip(soft.rest, np.float32(0.02), np.float32(0.98))
    distance = soft.step * (np.rint(inside) - soft.rest)
    error = np.einsum("kn,kn->n", distance, gram @ distance)
    # The error that an output has by the nearest codes counts as much as it has weights.
    share = np.where(error > 0, k / np.where(error > 0, error, 1), 0).astype(np.float32) * soft.step
    v = -np.log((HIGH - LOW) / (inside - LOW) - 1).astype(np.float32)
    mean, square = np.zeros_like(v), np.zeros_like(v)
    for i in range(steps):
        sigmoid = 1 / (1 + np.exp(-v))
        h = np.clip(sigmoid * np.float32(HIGH - LOW) + np.float32(LOW), np.float32(0), np.float32(1))
        slope = 2 * share * (gram @ (soft.step * (h - soft.rest)))
        if i >= FREE * steps:
            slope += _penalty_slope(h, i / steps)
        slope *= np.float32(HIGH - LOW) * sigmoid * (1 - sigmoid) * ((h > 0) & (h < 1))
        mean += np.float32(0.1) * (slope - mean)
        square += np.float32(0.001) * (slope * slope - square)
        unbiased = np.sqrt(square / np.float32(1 - 0.999 ** (i + 1))) + np.float32(1e-8)
        v -= np.float32(RATE / (1 - 0.9 ** (i + 1))) * mean / unbiased
    return np.asarray(v > 0)


def _penalty_slope(h: NDArray, progress: float) -> FloatArray:
    """Of PENALTY · (1 − |2h − 1|^power), the power of which falls."""
    left = (1 - progress) / (1 - FREE)
    power = LAST_POWER + (FIRST_POWER - LAST_POWER) * (1 + np.cos(np.pi * (1 - left))) / 2
    far = np.abs(2 * h - 1)
    return np.asarray(-2 * PENALTY * power * np.sign(2 * h - 1) * far ** (power - 1), np.float32)
