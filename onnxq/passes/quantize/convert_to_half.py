"""float16 throughout: every node that can compute in it, the interface of the model staying as it was."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

import onnx
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.weights import fits_half
from onnxq.passes.normalize.change_float_type import ChangeFloatType
from onnxq.passes.quantize import PlanPass, Work
from onnxq.plan import Method, Plan
from onnxq.runtime import known


class ConvertToHalf(PlanPass):
    """Let the nodes of a plan with HALF choices compute in float16.

    1. Only nodes of the model itself whose operator takes float16, in the model's opset, and is not in
       `known.IN_FLOAT`.
    2. Not those that the plan keeps in float, and not those that read a constant float16 cannot hold.
    3. Nodes that the plan does not speak of follow its scheme: if float16 was asked for single nodes only, they stay.
    """

    def __init__(self, plan: Plan, originals: Collection[str]) -> None:
        super().__init__(plan)
        self.originals = originals

    @classmethod
    def of(cls, work: Work) -> Self:
        return cls(work.plan, work.nodes)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if not self.plan.those(Method.HALF):
            return ir.passes.PassResult(model, modified=False)
        version = graph.opset(model)

        def converts(node: ir.Node) -> bool:
            choice = self.plan.choices.get(node.name or "")
            is_half = self.plan.scheme == "fp16" if choice is None else choice.method is Method.HALF
            if node.name not in self.originals or not is_half:
                return False
            tensors = [graph.constant(value) for value in node.inputs]
            tensors += [a.as_tensor() for a in node.attributes.values() if a.type == ir.AttributeType.TENSOR]
            fits = all(map(_fits, tensors))
            return fits and _takes_half(node, version) and not known.crashes_in_half(node)

        return ChangeFloatType(ir.DataType.FLOAT, ir.DataType.FLOAT16, converts)(model)


def _takes_half(node: ir.Node, version: int) -> bool:
    if node.domain != "" or node.op_type in known.IN_FLOAT:
        return False
    try:
        schema = onnx.defs.get_schema(node.op_type, version)
    except onnx.defs.SchemaError:
        return False
    if any(each.type_str == "tensor(float)" for each in (*schema.inputs, *schema.outputs)):
        return False  # written out, as the scales of Resize are
    floating = [c.allowed_type_strs for c in schema.type_constraints if "tensor(float)" in c.allowed_type_strs]
    return bool(floating) and all("tensor(float16)" in allowed for allowed in floating)


def _fits(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is None or tensor.dtype is not ir.DataType.FLOAT or fits_half(tensor)
