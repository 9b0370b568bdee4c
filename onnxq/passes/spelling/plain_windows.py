"""Windows in the words that all runtimes have: pads in the place of an output's size, no dilations of ones."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import infer_types


class PlainWindows(ir.passes.InPlacePass):
    """`output_shape` of a ConvTranspose becomes `pads` and `output_padding`, where its input has known sizes; and
    what says nothing goes.

    1. What the output is smaller than all that the windows make is cut off, half before and half behind, an odd one
       behind with `auto_pad` SAME_UPPER, else before.
    2. What it is larger is behind, and holds the bias alone: `output_padding`, which must be less than the stride.
    3. `dilations` of ones of an AveragePool go: the operator that onnxruntime makes of it between codes has no such
       word.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [n for n in graph.nodes(model) if graph.is_op(n, "ConvTranspose") and "output_shape" in n.attributes]
        types = infer_types(model) if found else None
        modified = False
        for node in graph.nodes(model):
            if graph.is_op(node, "AveragePool") and {*node.attributes.get_ints("dilations", [])} == {1}:
                node.attributes.pop("dilations")
                modified = True
        for node in found:
            x = None if types is None or node.inputs[0] is None else types.of(node.inputs[0]).shape
            modified = _written(node, x or ()) or modified
        return ir.passes.PassResult(model, modified=modified)


def _written(node: ir.Node, x: tuple[int | str | None, ...]) -> bool:
    weight = node.inputs[1]
    kernel = list(node.attributes.get_ints("kernel_shape", []))
    if not kernel and weight is not None and weight.shape is not None and weight.shape.is_static():
        kernel = [int(size) for size in weight.shape.numpy()[2:]]
    sizes = [size for size in x[2:] if isinstance(size, int)]
    wanted = list(node.attributes.get_ints("output_shape", []))
    if not kernel or len(sizes) != len(kernel) or len(x) != 2 + len(kernel) or len(wanted) != len(kernel):
        return False
    rest = len(kernel)
    strides, dilations, more = (
        list(node.attributes.get_ints(name, [default] * rest))
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    before, behind, added = [], [], []
    is_upper = graph.attribute_string(node, "auto_pad", "NOTSET") == "SAME_UPPER"
    for size, k, s, d, a, want in zip(sizes, kernel, strides, dilations, more, wanted, strict=True):
        total = s * (size - 1) + a + (k - 1) * d + 1 - want
        if total < 0 and a - total >= s:
            return False
        half = max(total, 0) // 2
        rest_of = max(total, 0) - half
        before.append(half if is_upper else rest_of)
        behind.append(rest_of if is_upper else half)
        added.append(a + max(-total, 0))
    for name in ("output_shape", "auto_pad", "pads", "output_padding"):
        node.attributes.pop(name, None)
    node.attributes["pads"] = ir.AttrInt64s("pads", before + behind)
    node.attributes["output_padding"] = ir.AttrInt64s("output_padding", added)
    return True
