"""importance: scales of least squared error, each weight counted by how large its input is on the data.

Of all that data say of a layer, only the mean square of each input is used, as llama.cpp's importance matrix has it. So
it wants far fewer rows than gptq, and codes stay the nearest ones of their scales. A few factors of the format's own
scale are tried, then the scale of weighted least squares for the codes of the best.

Source: llama.cpp's imatrix and its quantize_row_q4_0_impl (I. Kawrakow, 2023-2024).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms import mse
from onnxq.algorithms._base import base_first
from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor
from onnxq.formats.kinds.affine import in_half_scales
from onnxq.summaries.evidence import Layer

#: Needs what data say of the layer.
NEEDS_DATA = True
#: Times that the scale is fitted to the codes, and those chosen for it.
TURNS = 2


def suits(op_type: str, format: Format, granularity: Granularity) -> bool:
    return False  # with as many data gptq is better


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
    """`w` in `format`, each group with the best of the scales tried, for inputs as large as `layer` tells.

    Args:
        w: of shape [K, N], [N, K] or that of a convolution's kernel; `layer.channel` is the axis of its outputs.
        scales, zero_points: to be kept as they are, each weight with the nearest code.
        half_scales: round scales to float16.
    """
    granularity = granularity.within(w.ndim)
    found = format.encode(w, granularity, scales, zero_points)
    if scales is None and found.scales is not None and w.size:
        weights = importance(layer, w.shape)
        found = _fitted(w, mse.best_scales(w, format, granularity, weights=weights), weights)
    layer.chosen.update({"importance": w.shape[layer.channel]})
    return in_half_scales(w, found) if half_scales and scales is None else found


def importance(layer: Layer, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Of the weight's shape: the mean square of the input that each number multiplies, 1 on average."""
    squares = np.diagonal(layer.gram().sums, axis1=1, axis2=2).astype(np.float64)  # [groups, K]
    mean = squares.mean()
    even = squares / mean if np.isfinite(mean) and mean > 0 else np.ones_like(squares)
    outputs = shape[layer.channel]
    rest = [size for axis, size in enumerate(shape) if axis != layer.channel]
    every = np.repeat(even, outputs // layer.groups, axis=0).reshape(outputs, *rest)
    return np.moveaxis(every, 0, layer.channel).astype(np.float32)


def _fitted(w: FloatArray, q: QuantizedTensor, weights: NDArray[np.float32]) -> QuantizedTensor:
    """The same with scales fitted to the codes, where that makes the weighted error less."""
    if q.format.powers_of_two or q.format.has_minimum:
        return q
    for _ in range(TURNS):
        values, scales = q.dequantize(), q.scales
        assert scales is not None
        with np.errstate(all="ignore"):  # what is no number to divide by is left out below
            top, below = (_sums(weights * each * values, q.granularity) for each in (w, values))
            new = (scales * (top / below)).astype(scales.dtype)
        usable = np.isfinite(new) & (np.abs(new) >= np.finfo(scales.dtype).tiny) & (top > 0)
        tried = q.format.encode(w, q.granularity, np.where(usable, new, scales), q.zero_points)
        errors = [mse.squared_errors(w, each, weights) for each in (tried, q)]
        assert tried.scales is not None
        kept = np.where(errors[0] < errors[1], tried.scales, scales)
        q = q.format.encode(w, q.granularity, kept, q.zero_points)
    return q


def _sums(x: NDArray, granularity: Granularity) -> NDArray[np.float64]:
    groups, axes = granularity.groups(x)
    return np.asarray(groups.sum(axis=axes, dtype=np.float64))
