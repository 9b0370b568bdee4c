"""Relu and Clip right behind a product of weights in blocks, spelled so that onnxruntime fuses the product."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names


class PartClips(ir.passes.InPlacePass):
    """Where a MatMul reads DequantizeLinear on blocks of constant codes, a Relu behind it becomes Max(x, 0), and a Clip
    becomes Max and Min.

    onnxruntime takes a Relu or Clip behind such a product for one that rounding would do the work of, finds no
    QuantizeLinear there, and fuses nothing: the weight is unpacked in every run, ten times slower (measured on 1.31.1).
    Behind Max and Min, which compute the same, it makes a MatMulNBits of the product.

    1. Directly behind, unless nothing reads the result but the caller of the model.
    2. Behind a bias too, if the product is one of matrices: the two are a Gemm by then.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names = Names(model)
        found = [(node, clip) for node in graph.nodes(model) if (clip := clip_behind(node)) is not None]
        for node, clip in found:
            _spell(clip, _scale(node), names)
        return ir.passes.PassResult(model, modified=bool(found))


def clip_behind(node: ir.Node) -> ir.Node | None:
    """The Relu or Clip that keeps the MatMul `node` from being fused with the DequantizeLinear of its weight."""
    if not graph.is_op(node, "MatMul") or _scale(node) is None:
        return None
    behind = graph.only_consumer(node.outputs[0])
    if graph.is_op(behind, "Add") and behind is not None and _is_gemm(node, behind):
        behind = graph.only_consumer(behind.outputs[0])
    is_clip = behind is not None and graph.is_op(behind, "Relu", "Clip") and bool(behind.outputs[0].uses())
    return behind if is_clip else None


def _scale(product: ir.Node) -> ir.Value | None:
    """Of the weight that a product reads, if that is constant codes in blocks."""
    weight = product.inputs[1]
    made = None if weight is None else weight.producer()
    if made is None or not graph.is_op(made, "DequantizeLinear") or graph.constant(made.inputs[0]) is None:
        return None
    return made.inputs[1] if graph.attribute_int(made, "block_size", 0) > 0 else None


def _is_gemm(product: ir.Node, add: ir.Node) -> bool:
    """Whether onnxruntime makes a Gemm of both: of matrices, with a constant vector for all rows."""
    bias = graph.constant(next((value for value in add.inputs if value is not product.outputs[0]), None))
    is_vector = bias is not None and sum(size > 1 for size in bias.shape.numpy()) <= 1
    x = product.inputs[0]
    return is_vector and x is not None and (x.shape is None or len(x.shape) == 2)


def _spell(clip: ir.Node, scale: ir.Value | None, names: Names) -> None:
    """Max and Min in the place of a Relu or Clip; of the type that scales are of, the product is of."""
    assert isinstance(clip.graph, ir.Graph)
    y, name = clip.inputs[0], clip.name or clip.op_type.lower()
    if clip.op_type == "Relu":
        dtype = ir.DataType.FLOAT if scale is None or scale.dtype is None else scale.dtype
        zero = ir.tensor(np.zeros((), dtype.numpy()))
        bounds = [graph.add_constant(clip.graph, names.fresh(f"{name}_zero"), zero)]
    else:
        bounds = [value for value in clip.inputs[1:] if value is not None]
    for op_type, bound in zip(_ops(clip), bounds, strict=True):
        fresh = names.fresh(f"{name}_{op_type.lower()}")
        y = graph.add_node(clip, op_type, [y, bound], fresh, fresh)
    assert y is not None
    if y is clip.inputs[0]:  # without bounds it does nothing
        clip.outputs[0].replace_all_uses_with(y)
    else:
        graph.replace_value(clip.outputs[0], y)
    if not clip.outputs[0].is_graph_output():
        clip.graph.remove(clip, safe=True)


def _ops(clip: ir.Node) -> list[str]:
    """Max where there is a lower bound, Min where there is an upper one."""
    if clip.op_type == "Relu":
        return ["Max"]
    return [op for op, value in zip(("Max", "Min"), clip.inputs[1:], strict=False) if value is not None]
