"""Weights in floats of 4 and 8 bits as the types that newer versions of ONNX have for them."""

from __future__ import annotations

from typing import Self

import onnx_ir as ir

from onnxq import formats, layouts
from onnxq.encoding.lazy import Encoding
from onnxq.formats import E8M0, Granularity
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import Weight, weights_of
from onnxq.passes.quantize import PlanPass, Work
from onnxq.passes.quantize._weight_forms import WeightForms, owner_of
from onnxq.plan import Choice, Method, Plan


class SpellFloats(PlanPass):
    """Put a DequantizeLinear behind each weight of a STORED node whose format is one of `words`.

    1. float8: one scale a channel.
    2. e2m1: FLOAT4E2M1 in blocks; mxfp4 with scales in FLOAT8E8M0; nvfp4 with scales in FLOAT8E4M3FN behind a
       DequantizeLinear of their own.
    3. Only in the model that is written, where onnxruntime, by which plans are measured, has no kernels for the types.
    """

    #: What onnxruntime runs too.
    RUN = ("float8_e4m3", "float8_e5m2")

    def __init__(self, plan: Plan, words: tuple[str, ...], *, is_final: bool) -> None:
        super().__init__(plan)
        self.words = words if is_final else tuple(word for word in words if word in self.RUN)

    @classmethod
    def of(cls, work: Work) -> Self:
        return cls(work.plan, work.target.spelled, is_final=work.is_final)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants = WeightForms(Names(model), self.codes)
        chosen = {choice.node: choice for choice in self.plan.those(Method.STORED) if choice.format in self.words}
        spelled = 0
        for node in list(graph.nodes(model)):
            choice = chosen.get(node.name or "")
            for weight in weights_of(node) if choice is not None else ():
                assert choice is not None
                if constants.rank(choice.node) or choice.granularity is not None:
                    continue  # what makes up for its codes is added to the other spelling
                node.replace_input_with(weight.role.index, _spelled(weight, choice, constants))
                spelled += 1
        return ir.passes.PassResult(model, modified=spelled > 0)


def _spelled(weight: Weight, choice: Choice, constants: WeightForms) -> ir.Value:
    format = formats.get(choice.format or "")
    axis = weight.role.channel if choice.block is None else weight.role.contraction
    granularity = Granularity(axis, choice.block)
    encoding = constants.encoding(weight.value, format, granularity, weight.node.op_type)
    key, owner = (format.name, granularity), owner_of(weight.node)
    attributes: dict[str, int] = {"axis": axis, "output_dtype": int(weight.tensor.dtype)}
    is_short = format.bits == 4
    written = encoding.part(layouts.codes, ir.DataType.FLOAT4E2M1 if is_short else None)
    codes = constants.value(weight.value, f"_{format.name}", key, written, owner)
    name = constants.names.fresh(f"{weight.node.name}_weight")
    inputs: list[ir.Value | None] = [codes, _scales(weight, encoding, constants, owner)]
    attributes |= {} if choice.block is None else {"block_size": choice.block}
    return graph.add_node(weight.node, "DequantizeLinear", inputs, name, name, attributes)


def _scales(weight: Weight, encoding: Encoding, constants: WeightForms, owner: ir.Graph) -> ir.Value:
    """The scales as they are stored; behind a DequantizeLinear where they are codes."""
    key = (encoding.format.name, encoding.granularity)
    if encoding.format.stored_scales is None:
        dtype = None if encoding.format.scale_type == E8M0 else ir.DataType.FLOAT
        layout = layouts.flat(layouts.scales) if encoding.granularity.block is None else layouts.scales
        return constants.value(weight.value, "_scale", key, encoding.part(layout, dtype), owner)
    codes = constants.value(weight.value, "_scale", key, encoding.part(layouts.stored_scales), owner)
    factor = constants.value(weight.value, "_factor", key, encoding.part(layouts.scale_factor), owner)
    name = constants.names.fresh(f"{weight.node.name}_scales")
    return graph.add_node(weight.node, "DequantizeLinear", [codes, factor], name, name)
