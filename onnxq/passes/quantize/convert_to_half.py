"""float16 throughout: every node that can compute in it, the interface of the model staying as it was."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Self

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import fits_half
from onnxq.passes.normalize.change_float_type import ChangeFloatType, names_type
from onnxq.passes.quantize import PlanPass, Work
from onnxq.plan import Method, Plan
from onnxq.planning.counts.find_counts import REASON as COUNTS
from onnxq.planning.counts.raw_inputs import REASON as RAW
from onnxq.planning.rows.squares import REASON as LARGE
from onnxq.planning.rows.squares import large_in
from onnxq.runtime import known


class ConvertToHalf(PlanPass):
    """Let the nodes of a plan with HALF choices compute in float16.

    1. Only nodes of the model itself whose operator takes float16, in the model's opset (`known.takes_half`).
    2. Not those that the plan keeps in float, and not those that read a constant float16 cannot hold. Nor, unless the
       plan speaks of them, those between large numbers and the usual ones made of them: a square of 256 is infinite.
    3. Nodes that the plan does not speak of follow its scheme: if float16 was asked for single nodes only, they stay.
       Behind a node that the plan keeps in float they stay too, up to the next that it speaks of: what float16 rounded
       away there, they would round away again. Not behind those that count or scale inputs: the plan keeps all that do.
    4. In the model by which plans are measured, each of them is a float32 node between Casts to float16. onnxruntime
       has next to no float16 kernels on processors: it computes runs of such nodes in float32 and leaves out the
       rounding between them, where numbers that are too large or too small for the target would get lost. A model that
       was in float16 before is compared as that computes it.
    """

    def __init__(self, plan: Plan, originals: Collection[str], *, is_final: bool = True) -> None:
        super().__init__(plan)
        self.originals, self.is_final = originals, is_final

    @classmethod
    def of(cls, work: Work) -> Self:
        return cls(work.plan, work.nodes, is_final=work.is_final)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if not self.plan.those(Method.HALF):
            return ir.passes.PassResult(model, modified=False)
        version = graph.opset(model)
        converted = dict.fromkeys(
            node
            for node in self._in_half(model)
            if all(map(_fits, _constants_of(node))) and known.takes_half(node, version)
        )
        result = ChangeFloatType(ir.DataType.FLOAT, ir.DataType.FLOAT16, converted.__contains__)(model)
        if not self.is_final and self.plan.shortens_floats:
            names = Names(model)
            for node in converted:
                _round_around(node, names)
        return result

    def _in_half(self, model: ir.Model) -> Iterator[ir.Node]:
        """The nodes that the plan wants in float16, whatever they can take."""
        kept, large = set(), large_in(model)
        for node in graph.nodes(model):
            choice = self.plan.choices.get(node.name or "")
            if choice is not None:
                is_half = choice.method is Method.HALF
            else:
                makers = (value.producer() for value in node.inputs if value is not None)
                is_half = self.plan.scheme == "fp16" and not any(maker in kept for maker in makers)
            if not is_half and (choice is None or choice.reason not in (COUNTS, LARGE, RAW)):
                kept.add(node)
            elif is_half and node.name in self.originals and (choice is not None or node not in large):
                yield node


def _round_around(node: ir.Node, names: Names) -> None:
    """Let a node compute in float32 what it is given in float16, and round what it makes."""
    if any(names_type(attribute, ir.DataType.FLOAT16) for attribute in node.attributes.values()):
        return  # it makes the type, and computes nothing
    after = node
    for output in node.outputs:
        if output.dtype is not ir.DataType.FLOAT16:
            continue
        cast = ir.node(
            "Cast", [None], attributes={"to": int(ir.DataType.FLOAT16)}, name=names.fresh(f"{node.name}_round")
        )
        after.append(cast)
        after = cast
        graph.replace_value(output, cast.outputs[0])
        cast.replace_input_with(0, output)
        output.name, output.type = names.fresh(f"{node.name}_unrounded"), ir.TensorType(ir.DataType.FLOAT)
    for index, value in enumerate(node.inputs):
        if value is not None and _is_half(value):
            name = names.fresh(f"{node.name}_widened")
            wide = graph.add_node(node, "Cast", [value], name, name, {"to": int(ir.DataType.FLOAT)})
            wide.type = ir.TensorType(ir.DataType.FLOAT)
            node.replace_input_with(index, wide)


def _constants_of(node: ir.Node) -> Iterator[ir.TensorProtocol | None]:
    yield from (graph.constant(value) for value in node.inputs)
    yield from (a.as_tensor() for a in node.attributes.values() if a.type == ir.AttributeType.TENSOR)


def _is_half(value: ir.Value) -> bool:
    tensor = graph.constant(value)
    return (value.dtype if tensor is None else tensor.dtype) is ir.DataType.FLOAT16


def _fits(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is None or tensor.dtype is not ir.DataType.FLOAT or fits_half(tensor)
