"""Channels so much larger than others that 8 bits for all leave the others nothing, told from the weights before them.

Behind a normalization every channel has a known size: its weight and its bias, whatever the input was. So no data are
needed to see that one scale for a whole tensor of activations would not do (Wei et al., "Outlier Suppression", 2022).
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.plan import Method, Plan, in_float
from onnxq.quality import decibel

#: dB of contrast that a product must keep behind the rounding of its input.
LEAST_DB = 20.0
#: Standard deviations that the largest number of a normalized channel is taken to reach.
REACH = 4.0
#: Operators that normalize, and where their weight and their bias are among the inputs.
_NORMS = {
    "LayerNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1, None),
    "RMSNormalization": (1, None),
    "SkipLayerNormalization": (2, 3),
    "SkipSimplifiedLayerNormalization": (2, None),
    "EmbedLayerNormalization": (5, 6),
}


def without_outliers(model: ir.Model, plan: Plan) -> Plan:
    """`plan` with those products in float whose input, rounded to 8 bits in one scale, would lose too much."""
    dynamic = {choice.node: choice for choice in plan.those(Method.DYNAMIC)}
    back = []
    for node in graph.nodes(model):
        kept = _kept(node) if node.name in dynamic else math.inf
        if kept < LEAST_DB:
            reason = f"norm weights before it make outlier channels, beside which 8 bits leave the others {kept:.0f} dB"
            back.append(in_float(dynamic[node.name or ""], reason))
    return plan.replacing(back)


def _kept(node: ir.Node) -> float:
    """dB of contrast that a product keeps of its input rounded to 8 bits; infinite where nothing is known of it."""
    value = node.inputs[0]
    weight = graph.constant(node.inputs[1]) if node.op_type in ("MatMul", "Gemm") else None
    sizes = None if value is None else _sizes(value)
    if weight is None or sizes is None or len(weight.shape) != 2:
        return math.inf
    w = weight.numpy().astype(np.float64)
    rows = np.square(w.T if graph.attribute_int(node, "transB", 0) else w).sum(1)
    scale, shift = sizes
    if rows.shape != scale.shape:
        return math.inf
    high, low = float(np.max(shift + REACH * abs(scale))), float(np.min(shift - REACH * abs(scale)))
    step = (max(high, 0.0) - min(low, 0.0)) / 255
    signal, noise = float(np.square(scale) @ rows), step**2 / 12 * float(rows.sum())
    return decibel(signal, noise) if signal > 0 else math.inf


def _sizes(value: ir.Value) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """(spread, mean) of each channel of a value behind a normalization, or behind its weight and bias alone."""
    node = value.producer()
    if node is None:
        return None
    if node.op_type in _NORMS and value is node.outputs[0]:
        scale, shift = (_vector(node, index) for index in _NORMS[node.op_type])
        return None if scale is None else (scale, np.zeros_like(scale) if shift is None else shift)
    # Exported piece by piece: (normalized · weight) + bias.
    shift = _vector(node, 0, 1) if graph.is_op(node, "Add") else None
    inner = next((x for x in node.inputs if graph.constant(x) is None), None) if shift is not None else value
    before = graph.producer(inner)
    scale = _vector(before, 0, 1) if before is not None and graph.is_op(before, "Mul") else None
    if before is None or scale is None or not any(x is not None and _is_normalized(x) for x in before.inputs):
        return None
    return scale, np.zeros_like(scale) if shift is None else shift


def _is_normalized(value: ir.Value) -> bool:
    """Whether a value was just divided by its own size, as layer and RMS norms are written out."""
    node = value.producer()
    return graph.is_op(node, "Div", "Mul") and node is not None and all(graph.constant(x) is None for x in node.inputs)


def _vector(node: ir.Node, *indices: int | None) -> NDArray[np.float64] | None:
    """The constant vector among some inputs of a node."""
    for index in indices:
        tensor = graph.constant(node.inputs[index]) if index is not None and index < len(node.inputs) else None
        if tensor is not None and len(tensor.shape) == 1 and tensor.dtype in graph.FLOATS:
            return tensor.numpy().astype(np.float64)
    return None
