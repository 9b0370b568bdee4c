"""squant: round to nearest, then flip the few roundings that make the errors of each output add up to nothing.

Activations behind a ReLU are all positive, so rounding errors that do not cancel shift the mean of a whole channel.
Flipping the roundings that were closest calls anyway takes that shift away and needs no data.

Source: Guo et al., SQuant: On-the-Fly Data-Free Quantization via Diagonal Hessian Approximation (ICLR 2022), whose
kernel-wise and channel-wise steps these are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor


def quantize(
    w: FloatArray,
    format: Format,
    granularity: Granularity,
    scales: FloatArray | None = None,
    zero_points: CodeArray | None = None,
) -> QuantizedTensor:
    """`w` in an integer `format`, the rounding errors of each output channel adding up to at most half a step.

    Where a tensor has spatial axes (convolutions), errors are made to cancel within each kernel first. Only for one
    scale an index of `granularity.axis`; anything else is rounded to nearest.
    """
    q = format.encode(w, granularity, scales, zero_points)
    axis = q.granularity.axis
    if axis is None or q.granularity.block is not None or q.scales is None or not w.size:
        return q
    exact = np.moveaxis(w / q.granularity.spread(q.scales, w.shape), axis, 0)
    codes = np.moveaxis(q.codes, axis, 0).astype(np.int32)
    shape = codes.shape
    kernels = shape[1] if len(shape) > 2 else 1
    exact = exact.reshape(shape[0], kernels, -1)
    if q.zero_points is not None:
        exact = exact + q.zero_points.astype(np.float32).reshape(-1, 1, 1)
    flat = codes.reshape(exact.shape)
    if kernels > 1:
        flat = _flip(flat, exact)
    flat = _flip(flat.reshape(shape[0], 1, -1), exact.reshape(shape[0], 1, -1))
    lowest, highest = int(q.codes.min()), int(q.codes.max())
    codes = np.moveaxis(np.clip(flat, lowest, highest).reshape(shape), 0, axis)
    return QuantizedTensor(q.format, q.granularity, np.ascontiguousarray(codes, q.codes.dtype), q.scales, q.zero_points)


def _flip(codes: NDArray[np.int32], exact: FloatArray) -> NDArray[np.int32]:
    """Move codes by one where that costs least, until the errors along the last axis sum to at most a half.

    Both arrays are [N, kernels, weights of a kernel]. Only codes on the wrong side are moved, each once.
    """
    error = codes - exact
    surplus = np.rint(error.sum(axis=-1, keepdims=True))
    # Order by how little a flip towards the other side would cost: largest error of the surplus's sign first.
    direction = np.sign(surplus)
    order = np.argsort(-error * direction, axis=-1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape), axis=-1)
    chosen = (rank < np.abs(surplus)) & (error * direction > 0)
    return codes - (chosen * direction).astype(np.int32)
