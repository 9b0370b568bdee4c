"""Weights that a model holds as codes, whatever operator reads them, with the axes that mean something to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph

#: Where operators on codes read: the activation, the weight, its scales and its zero points; -1: scales come later.
_PLACES = {
    "QLinearConv": (0, 3, 4, 5),
    "QLinearMatMul": (0, 3, 4, 5),
    "QGemm": (0, 3, 4, 5),
    "MatMulInteger": (0, 1, -1, 3),
    "ConvInteger": (0, 1, -1, 3),
    "MatMulIntegerToFloat": (0, 1, 3, 5),
    "DynamicQuantizeMatMul": (0, 1, 2, 3),
}


@dataclass(frozen=True)
class StoredWeight:
    """One place where a node reads constant codes.

    Attributes:
        node: that computes with them.
        codes: as they are stored; `order` says which of their axes is each axis that `node` sees.
        scales, zeros: as they are stored; None where they are computed or there are none.
        dequantize: the DequantizeLinear between, if there is one.
        channel: the axis of `codes` along which scales lie; None where there is one for all, or blocks.
        block: weights that share a scale along that axis; 0: no blocks.
        contraction: the axes of `codes` that `node` sums over.
        activation: the other input of `node`, as codes or floats.
    """

    node: ir.Node
    value: ir.Value
    codes: ir.TensorProtocol
    scales: ir.TensorProtocol | None
    zeros: ir.TensorProtocol | None
    dequantize: ir.Node | None
    channel: int | None
    block: int
    contraction: tuple[int, ...]
    activation: ir.Value | None

    @property
    def place(self) -> str:
        return self.node.name or ""

    def numbers(self) -> NDArray[np.int32]:
        """The codes, minus nothing: zero points are not taken off."""
        return self.codes.numpy().astype(np.int32)


def stored_weights(model: ir.Model) -> Iterator[StoredWeight]:
    """All of them, in the order of execution."""
    for node in graph.nodes(model):
        if node.op_type in _PLACES:
            yield from _of_codes(node)
        elif graph.is_op(node, "MatMul", "Gemm", "Conv", "ConvTranspose"):
            for index in (1,) if node.op_type.startswith("Conv") else (1, 0):
                yield from _of_floats(node, index)


def _of_codes(node: ir.Node) -> Iterator[StoredWeight]:
    x, w, s, z = _PLACES[node.op_type]
    codes = constant_of(node, w)
    if codes is None:
        return
    value = node.inputs[w]
    assert value is not None
    scales = constant_of(node, s) if s >= 0 else None
    rank, is_conv = len(codes.shape), "Conv" in node.op_type
    turned = node.op_type == "QGemm" and graph.attribute_int(node, "transB", 0)
    several = scales is not None and scales.size > 1
    channel = (0 if is_conv or turned else rank - 1) if several else None
    contraction = tuple(range(1, rank)) if is_conv else ((rank - 1,) if turned else (rank - 2,))
    yield StoredWeight(node, value, codes, scales, constant_of(node, z), None, channel, 0, contraction, node.inputs[x])


def _of_floats(node: ir.Node, index: int) -> Iterator[StoredWeight]:
    """Of a DequantizeLinear, perhaps turned, in front of an operator on floats."""
    value = node.inputs[index] if index < len(node.inputs) else None
    between = graph.producer(value)
    order: list[int] | None = None
    if between is not None and graph.is_op(between, "Transpose") and between.inputs[0] is not None:
        order = list(between.attributes["perm"].as_ints()) if "perm" in between.attributes else None
        between = between.inputs[0].producer()
        if between is None or constant_of(between, 0) is None:
            return
        order = order or list(range(len(_codes(between).shape)))[::-1]
    if between is None or not graph.is_op(between, "DequantizeLinear") or constant_of(between, 0) is None:
        return
    codes, scales = _codes(between), constant_of(between, 1)
    rank = len(codes.shape)
    source = between.inputs[0]
    if rank < 2 or source is None:
        return
    order = order or list(range(rank))
    block = graph.attribute_int(between, "block_size", 0)
    several = scales is not None and (scales.size > 1 or block > 0)
    axis = graph.attribute_int(between, "axis", 1)
    other = node.inputs[0] if index == 1 else node.inputs[1]
    yield StoredWeight(
        node,
        source,
        codes,
        scales,
        constant_of(between, 2),
        between,
        (axis % rank if -rank <= axis < rank else None) if several else None,
        block,
        tuple(order[each] for each in _summed(node, index, rank)),
        other,
    )


def _codes(dequantize: ir.Node) -> ir.TensorProtocol:
    found = constant_of(dequantize, 0)
    assert found is not None
    return found


def _summed(node: ir.Node, index: int, rank: int) -> tuple[int, ...]:
    """The axes that a node sums its input `index` over."""
    if node.op_type == "Conv":
        return tuple(range(1, rank))
    if node.op_type == "ConvTranspose":
        return (0,)
    if node.op_type == "Gemm":
        is_turned = bool(graph.attribute_int(node, ("transA", "transB")[index], 0))
        return ((0 if index == 1 else 1) if not is_turned else index,)
    return (rank - 2 if index == 1 else rank - 1,)


def constant_of(node: ir.Node, index: int) -> ir.TensorProtocol | None:
    """The constant that a node reads there, if it is one."""
    return graph.constant(node.inputs[index]) if index < len(node.inputs) else None
