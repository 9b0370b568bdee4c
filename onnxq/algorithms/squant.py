"""squant: round to nearest, then flip the few roundings that make the errors of each output add up to nothing.

Activations behind a ReLU are all positive, so rounding errors that do not cancel shift the mean of a whole channel.
Flipping the roundings that were closest calls anyway takes that shift away and needs no data. It gains 1 to 14 dB at
the outputs of convolutional networks; for matrix products, whose inputs are centred by a normalization, it changes
nothing.

Source: Guo et al., SQuant: On-the-Fly Data-Free Quantization via Diagonal Hessian Approximation (ICLR 2022), whose
kernel-wise and channel-wise steps these are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms._base import base_first
from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor

QUICK = True


def suits(op_type: str, format: Format, granularity: Granularity) -> bool:
    return op_type in ("Conv", "ConvTranspose") and format.bits == 8 and granularity.block is None


@base_first
def quantize(
    w: FloatArray,
    format: Format,
    granularity: Granularity,
    scales: FloatArray | None = None,
    zero_points: CodeArray | None = None,
) -> QuantizedTensor:
    """`w` in an integer `format`, the rounding errors of each output channel adding up to at most half a step.

    Where a tensor has spatial axes (convolutions), errors are made to cancel within each kernel first, to half a step;
    the channel then moves at most one more code of each kernel. Only for integers with one scale an index of
    `granularity.axis`; anything else is rounded to nearest.
    """
    q = format.encode(w, granularity, scales, zero_points)
    axis = q.granularity.axis
    if axis is None or q.granularity.block is not None or not w.size or not _is_affine(q):
        return q
    assert q.scales is not None
    signed = q.codes.dtype.kind == "i"
    highest = (1 << (format.bits - signed)) - 1
    lowest = -highest if signed else 0
    divisor = np.where(q.scales == 0, np.float32(1), q.scales)
    exact = np.moveaxis(w / q.granularity.spread(divisor, w.shape), axis, 0)
    codes = np.moveaxis(q.codes, axis, 0).astype(np.int32)
    shape = codes.shape
    kernels = shape[1] if len(shape) > 2 else 1
    exact = exact.reshape(shape[0], kernels, -1)
    if q.zero_points is not None:
        exact = exact + q.zero_points.astype(np.float32).reshape(-1, 1, 1)
    # What a scale clips on purpose is no rounding error: it counts as the half step that rounding may cost.
    exact = np.clip(exact, lowest - 0.5, highest + 0.5)
    flat, limits = codes.reshape(exact.shape), (lowest, highest)
    error = flat - exact
    surplus = np.rint(error.sum(axis=2, keepdims=True))
    flat = _flip(flat, _gain(flat, error, surplus, limits), surplus)
    if kernels > 1:
        error = flat - exact
        of_kernel = error.sum(axis=2, keepdims=True)
        surplus = np.rint(of_kernel.sum(axis=1, keepdims=True))
        gain = np.where(of_kernel * surplus > 0, _gain(flat, error, surplus, limits), np.float32(0))
        closest = np.argmax(gain, axis=2, keepdims=True)
        candidates, gains = (np.take_along_axis(each, closest, axis=2)[..., 0] for each in (flat, gain))
        np.put_along_axis(flat, closest, _flip(candidates, gains, surplus[..., 0])[..., None], axis=2)
    codes = np.moveaxis(flat.reshape(shape), 0, axis)
    return QuantizedTensor(q.format, q.granularity, np.ascontiguousarray(codes, q.codes.dtype), q.scales, q.zero_points)


def _is_affine(q: QuantizedTensor) -> bool:
    """Whether numbers are the products of a float32 scale and integers."""
    if q.scales is None or q.scales.dtype != np.float32 or q.codes.dtype.kind not in "iu":
        return False
    return not q.format.has_minimum and q.format.levels is None


def _flip(codes: NDArray[np.int32], gain: FloatArray, surplus: FloatArray) -> NDArray[np.int32]:
    """Move |surplus| codes of each row (the last axis) by one against the surplus's sign, those of most gain first.

    Codes without gain stay.
    """
    order = np.argsort(-gain, axis=-1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape), axis=-1)
    chosen = (rank < np.abs(surplus)) & (gain > 0)
    return codes - (chosen * np.sign(surplus)).astype(np.int32)


def _gain(codes: NDArray[np.int32], error: FloatArray, surplus: FloatArray, limits: tuple[int, int]) -> FloatArray:
    """How far each code lies on the surplus's side of the exact number; 0 where moving it would leave the limits."""
    direction = np.sign(surplus)
    moved = codes - direction
    return np.where((moved >= limits[0]) & (moved <= limits[1]), error * direction, np.float32(0))
