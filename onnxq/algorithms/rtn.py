"""rtn: round to nearest."""

from __future__ import annotations

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor

QUICK = True


def suits(op_type: str, format: Format, granularity: Granularity) -> bool:
    return False  # it takes what nobody claims


def quantize(
    w: FloatArray,
    format: Format,
    granularity: Granularity,
    scales: FloatArray | None = None,
    zero_points: CodeArray | None = None,
) -> QuantizedTensor:
    """The nearest code for each weight."""
    return format.encode(w, granularity, scales, zero_points)
