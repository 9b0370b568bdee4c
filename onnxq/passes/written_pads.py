"""Transposed convolutions that say how large their output is say by which pads instead, and pools whose windows stand
out have none."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import infer_types


class WrittenPads(ir.passes.InPlacePass):
    """`output_shape` of a ConvTranspose becomes `pads` and `output_padding`, where the sizes of its input are known.

    1. What the output is smaller than all that the windows make is cut off, half before and half behind, an odd one
       behind with `auto_pad` SAME_UPPER, else before.
    2. What it is larger is behind, and holds the bias alone: `output_padding`, which must be less than the stride.

    Where windows of an AveragePool stand out behind the pads (`ceil_mode`) and those count (`count_include_pad`),
    onnxruntime's int8 kernel counts what lies behind them too (1.31, 1.32), float does not. So a Pad makes them, or
    nothing does where there are none, and none count. Where a window might begin in a pad, which is no window then, and
    before opset 11, all stays.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [n for n in graph.nodes(model) if graph.is_op(n, "ConvTranspose") and "output_shape" in n.attributes]
        pools = [node for node in graph.nodes(model) if _counts_beyond_pads(node)]
        if not found and not pools:
            return ir.passes.PassResult(model, modified=False)
        types, names, modified = infer_types(model) if found else None, Names(model), False
        for node in pools:
            modified = _padded(node, graph.opset(model), names) or modified
        for node in found:
            x = None if types is None or node.inputs[0] is None else types.of(node.inputs[0]).shape
            modified = _written(node, x or ()) or modified
        return ir.passes.PassResult(model, modified=modified)


def _counts_beyond_pads(node: ir.Node) -> bool:
    words = ("ceil_mode", "count_include_pad")
    return graph.is_op(node, "AveragePool") and all(graph.attribute_int(node, word, 0) for word in words)


def _padded(node: ir.Node, opset: int, names: Names) -> bool:
    auto = graph.attribute_string(node, "auto_pad", "NOTSET")
    kernel = list(node.attributes.get_ints("kernel_shape", []))
    pads = [] if auto == "VALID" else list(node.attributes.get_ints("pads", []))
    if any(pads) and not _may_be_apart(node, pads, kernel, opset):
        return False
    if auto not in ("NOTSET", "VALID") or not isinstance(node.graph, ir.Graph):
        return False
    if any(pads):
        rank = len(kernel)
        tensor = ir.tensor(np.array([0, 0, *pads[:rank], 0, 0, *pads[rank:]], np.int64))
        made = graph.add_constant(node.graph, names.fresh(f"{node.name}_pads"), tensor)
        x = graph.add_node(
            node, "Pad", [node.inputs[0], made], names.fresh(f"{node.name}_pad"), names.fresh(f"{node.name}_x")
        )
        node.replace_input_with(0, x)
        node.attributes.pop("pads")
    node.attributes.pop("count_include_pad")
    return True


def _may_be_apart(node: ir.Node, pads: list[int], kernel: list[int], opset: int) -> bool:
    """Whether a Pad in front of a pool makes the same: as no window begins in the pads behind the image."""
    strides = list(node.attributes.get_ints("strides", [1] * len(kernel)))
    dilations = list(node.attributes.get_ints("dilations", [1] * len(kernel)))
    is_plain = len(pads) == 2 * len(kernel) and len(strides) == len(kernel) and min(pads) >= 0
    if opset < 11 or not is_plain or {*dilations} != {1}:
        return False
    return all(pad + stride - 1 < k for pad, stride, k in zip(pads[len(kernel) :], strides, kernel, strict=True))


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
