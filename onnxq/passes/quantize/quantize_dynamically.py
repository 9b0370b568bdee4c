"""int8 MatMul, Gemm and LSTM whose activation range is measured in every run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq import formats, layouts
from onnxq.formats import Granularity
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import has_weights, weights_of
from onnxq.passes.quantize import PlanPass
from onnxq.passes.quantize._matmul import Product, read_product
from onnxq.passes.quantize._weight_forms import WeightForms
from onnxq.plan import Method

#: (codes, scale, zero point) of an activation, by the ids of the value and of the graph that reads it.
Shared = dict[tuple[int, int], tuple[ir.Value, ...]]


class QuantizeDynamically(PlanPass):
    """Give each DYNAMIC node an int8 kernel.

    1. MatMul and Gemm: DynamicQuantizeLinear, MatMulInteger, Cast, Mul and the bias, in standard operators. onnxruntime
       fuses them to DynamicQuantizeMatMul. Nodes that read the same x share its DynamicQuantizeLinear.
    2. LSTM: com.microsoft.DynamicQuantizeLSTM, whose weights are [directions, input, 4 · hidden].
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants = WeightForms(Names(model), self.codes)
        chosen = {choice.node: choice for choice in self.plan.those(Method.DYNAMIC)}
        quantized: Shared = {}
        nodes = [node for node in graph.nodes(model) if node.name in chosen and has_weights(node)]
        for node in nodes:
            if node.op_type == "LSTM":
                _replace_lstm(node, constants)
                model.opset_imports.setdefault(graph.MICROSOFT, 1)
            else:
                of_all = chosen[node.name or ""].granularity == "tensor"
                _replace_product(read_product(node, constants, has_half_kernel=False), constants, quantized, of_all)
        return ir.passes.PassResult(model, modified=bool(nodes))


def _replace_product(p: Product, constants: WeightForms, quantized: Shared, of_all: bool) -> None:
    codes, scales = _int8_columns(p, constants, of_all)
    node, names = p.node, constants.names
    xq, xs, xz = _quantize(p, constants, quantized)
    name, result = p.new_names()
    product = graph.add_node(node, "MatMulInteger", [xq, codes, xz], name, names.fresh(f"{name}_int32"))
    wide = names.fresh(f"{name}_cast")
    as_float = graph.add_node(node, "Cast", [product], wide, wide, {"to": int(ir.DataType.FLOAT)})
    both = names.fresh(f"{name}_scales")
    scale = graph.add_node(node, "Mul", [xs, scales], both, both)
    p.finish(graph.add_node(node, "Mul", [as_float, scale], names.fresh(f"{name}_rescale"), result))


def _int8_columns(p: Product, constants: WeightForms, of_all: bool) -> tuple[ir.Value, ir.Value]:
    """int8 [K, N] and scales [N], or one scale for all."""
    granularity = Granularity() if of_all else Granularity(1 - p.k_axis)
    encoding = constants.encoding(p.weight, formats.get("int8"), granularity, "MatMul")
    columns = encoding.part(layouts.turned(layouts.codes) if p.k_axis == 1 else layouts.codes)
    steps = encoding.part(layouts.scales)
    return (
        constants.value(p.weight, "_int8", p.k_axis, columns),
        constants.value(p.weight, "_scale", p.k_axis, steps),
    )


def _quantize(p: Product, constants: WeightForms, quantized: Shared) -> tuple[ir.Value, ...]:
    """uint8 codes, scale and zero point of x; the same ones for every reader of x in the same graph."""
    key = (id(p.x), id(p.node.graph))
    if key not in quantized:
        name = constants.names.fresh(f"{p.x.name}_quantize")
        node = ir.node("DynamicQuantizeLinear", [p.x], num_outputs=3, name=name)
        for output, suffix in zip(node.outputs, ("codes", "scale", "zero_point"), strict=True):
            output.name = constants.names.fresh(f"{p.x.name}_{suffix}")
        p.node.prepend(node)
        quantized[key] = tuple(node.outputs)
    return quantized[key]


def _replace_lstm(node: ir.Node, constants: WeightForms) -> None:
    inputs = list(node.inputs) + [None] * (8 - len(node.inputs))
    parameters: list[ir.Value | None] = []
    for weight in weights_of(node):
        directions, outputs, k = weight.shape
        # One scale for each direction and output: rows of the flattened weight.
        rows = graph.flattened(weight.tensor, (directions * outputs, k))
        encoding = constants.new_encoding(
            weight.value, formats.get("int8"), Granularity(0), node.op_type, tensor=rows, channel=0
        )
        parts = {
            "_int8": encoding.part(layouts.turned(layouts.stacked(layouts.codes, directions))),
            "_scale": encoding.part(layouts.stacked(layouts.scales, directions)),
            "_zero_point": ir.tensor(np.zeros((directions, outputs), np.int8)),
        }
        made = [constants.value(weight.value, suffix, "lstm", part) for suffix, part in parts.items()]
        inputs[weight.role.index] = made[0]
        parameters += made[1:]
    name = node.name or ""
    node.name = constants.names.fresh(f"{name}_float")
    new = ir.node(
        "DynamicQuantizeLSTM",
        [*inputs, *parameters],
        attributes=dict(node.attributes.items()),
        domain=graph.MICROSOFT,
        num_outputs=len(node.outputs),
        name=name,
    )
    node.prepend(new)
    for old, output in zip(node.outputs, new.outputs, strict=True):
        graph.replace_value(old, output)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
