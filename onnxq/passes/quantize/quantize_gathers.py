"""Embedding tables that stay packed in memory: only the rows that are looked up become floats."""

from __future__ import annotations

from typing import Self

import onnx_ir as ir

from onnxq import formats, layouts
from onnxq.formats import Granularity
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import APART
from onnxq.model.weights import Weight, has_weights, weights_of
from onnxq.passes.quantize import PlanPass, Work
from onnxq.passes.quantize._weight_forms import WeightForms
from onnxq.plan import Choice, Method, Plan


class QuantizeGathers(PlanPass):
    """Replace each PACKED Gather on a [rows, K] table by com.microsoft.GatherBlockQuantized.

    Zero points are always written out: where they are absent, processors and GPUs assume different ones.

    Args:
        apart: whether codes are constants also where a product reads the same ones (`share_codes.py`).
    """

    def __init__(self, plan: Plan, *, apart: bool = False) -> None:
        super().__init__(plan)
        self.apart = apart

    @classmethod
    def of(cls, work: Work) -> Self:
        return cls(work.plan, apart=not work.target.shares_tables)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants = WeightForms(Names(model), self.codes)
        choices = {c.node: c for c in self.plan.those(Method.PACKED) if c.op == "Gather"}
        nodes = [node for node in graph.nodes(model) if node.name in choices and has_weights(node)]
        for node in nodes:
            choice = choices[node.name or ""]
            (weight,) = weights_of(node)
            data = _replace(weight, choice, constants)
            if self.apart:
                data.meta[APART] = True
        if nodes:
            model.opset_imports.setdefault(graph.MICROSOFT, 1)
        return ir.passes.PassResult(model, modified=bool(nodes))


def _replace(weight: Weight, choice: Choice, constants: WeightForms) -> ir.Value:
    """What looks rows up instead; its codes."""
    format, block = formats.get(choice.format or ""), choice.block
    assert block is not None
    encoding = constants.encoding(weight.value, format, Granularity(1, block), "Gather", groups=choice.groups(2, 1))
    dtype = weight.tensor.dtype if weight.tensor.dtype is ir.DataType.FLOAT16 else ir.DataType.FLOAT
    parts = {
        f"_rows_{format.name}": encoding.part(layouts.gather_block),
        "_scale": encoding.part(layouts.scales_by_row, dtype),
        "_zero_point": encoding.part(layouts.matmul_nbits_zero_points),
    }
    key = (format.name, block, 1)
    data, scales, zeros = (constants.value(weight.value, s, key, part) for s, part in parts.items())
    node, old = weight.node, weight.node.outputs[0]
    name, node.name = node.name or "", constants.names.fresh(f"{node.name}_float")
    y = graph.add_node(
        node,
        "GatherBlockQuantized",
        [data, node.inputs[1], scales, zeros],
        name,
        constants.names.fresh(f"{name}_out"),
        {"bits": format.bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1},
        graph.MICROSOFT,
    )
    if dtype is not weight.tensor.dtype:
        cast = constants.names.fresh(f"{name}_cast")
        y = graph.add_node(node, "Cast", [y], cast, cast, {"to": int(weight.tensor.dtype)})
    graph.replace_value(old, y)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return data
