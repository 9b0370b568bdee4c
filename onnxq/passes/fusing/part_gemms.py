"""A Relu or Clip behind a Gemm of codes, spelled so that onnxruntime computes the Gemm in integers."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.passes.fusing.part_products import spell


class PartGemms(ir.passes.InPlacePass):
    """onnxruntime takes a Relu or Clip behind a Gemm for one that rounding does the work of. Where nothing rounds its
    result, or others read it too, the two become a Gemm in float (measured on 1.31 and 1.32). As Max and Min, which
    compute the same, they leave the Gemm alone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [(node, clip) for node in graph.nodes(model) if (clip := unrounded(node))]
        if not found:
            return ir.passes.PassResult(model, modified=False)
        names = Names(model)
        for gemm, clip in found:
            spell(clip, gemm, names)
        return ir.passes.PassResult(model, modified=bool(found))


def unrounded(node: ir.Node) -> ir.Node | None:
    """The Relu or Clip behind a Gemm of codes whose result is not rounded, and which would be in integers without."""
    if not graph.is_op(node, "Gemm") or not all(_is_of_codes(value) for value in node.inputs):
        return None
    if any(graph.attribute_float(node, name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return None
    clip = graph.only_consumer(node.outputs[0])
    if clip is None or not graph.is_op(clip, "Relu", "Clip") or clip.graph is not node.graph or clip.attributes:
        return None  # bounds are attributes before opset 11
    out = clip.outputs[0]  # what only the caller of the model reads does not matter
    return clip if out.uses() and not graph.is_op(graph.only_consumer(out), "QuantizeLinear") else None


def _is_of_codes(value: ir.Value | None) -> bool:
    return value is None or graph.is_op(value.producer(), "DequantizeLinear")
