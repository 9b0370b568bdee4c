"""Weights in floats of 4 and 8 bits, and in blocks whose scales are codes, as the types that newer versions of ONNX
have for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np
import onnx_ir as ir

from onnxq import formats, layouts
from onnxq.encoding.lazy import Encoding
from onnxq.formats import E8M0, Granularity
from onnxq.layouts import Layout
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import Weight, weights_of
from onnxq.passes.quantize import PlanPass, Work
from onnxq.passes.quantize._weight_forms import WeightForms, owner_of
from onnxq.plan import Choice, Method, Plan

#: The versions of ONNX's file format that brought the types.
IR_VERSIONS = {ir.DataType.FLOAT4E2M1: 11, ir.DataType.FLOAT8E8M0: 12}


class SpellFloats(PlanPass):
    """Put a DequantizeLinear behind each weight of a STORED node whose format is one of `words`, or STATIC in blocks.

    1. float8: one scale a channel.
    2. e2m1: FLOAT4E2M1 in blocks; mxfp4 with scales in FLOAT8E8M0; nvfp4 with scales in FLOAT8E4M3FN behind a
       DequantizeLinear of their own.
    3. lpbq: INT4 in blocks, with scales in UINT8 behind a DequantizeLinear that has one factor a channel; zero points
       are written out, by which onnxruntime's QNN provider tells the type.
    4. Where the target wants blocks along the last axis, matrices lie the other way, and a Cast makes floats of the
       weight's type, as TensorRT's exporters have it; a Transpose stands behind.
    5. Only in the model that is written, where onnxruntime, by which plans are measured, has no kernels for the types.
    """

    #: What onnxruntime runs too.
    RUN = ("float8_e4m3", "float8_e5m2", "lpbq")

    def __init__(self, plan: Plan, words: tuple[str, ...], *, is_final: bool, blocks_last: bool = False) -> None:
        super().__init__(plan)
        self.blocks_last = blocks_last
        self.words = words if is_final else tuple(word for word in words if word in self.RUN)

    @classmethod
    def of(cls, work: Work) -> Self:
        return cls(work.plan, work.target.spelled, is_final=work.is_final, blocks_last=work.target.blocks_last)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants = WeightForms(Names(model), self.codes)
        those = self.plan.those(Method.STORED, Method.STATIC)
        chosen = {choice.node: choice for choice in those if choice.format in self.words}
        spelled = 0
        for node in list(graph.nodes(model)):
            choice = chosen.get(node.name or "")
            for weight in weights_of(node) if choice is not None else ():
                assert choice is not None
                if constants.rank(choice.node) or choice.granularity is not None:
                    continue  # what makes up for its codes is added to the other spelling
                node.replace_input_with(weight.role.index, self._spelled(weight, choice, constants))
                spelled += 1
        types = {value.dtype for each in graph.graphs(model) for value in each.initializers.values()}
        model.ir_version = max(
            model.ir_version, *(version for dtype, version in IR_VERSIONS.items() if dtype in types), 0
        )
        return ir.passes.PassResult(model, modified=spelled > 0)

    def _spelled(self, weight: Weight, choice: Choice, constants: WeightForms) -> ir.Value:
        format = formats.get(choice.format or "")
        axis = weight.role.channel if choice.block is None else weight.role.contraction
        granularity = Granularity(axis, choice.block)
        encoding = constants.encoding(weight.value, format, granularity, weight.node.op_type)
        is_turned = self.blocks_last and axis == 0
        turned = layouts.turned if is_turned else _as_it_lies
        key, owner = (format.name, granularity), owner_of(weight.node)
        attributes: dict[str, int] = {"axis": 1 if is_turned else axis}
        if not format.is_integer and not self.blocks_last:
            attributes["output_dtype"] = int(weight.tensor.dtype)
        short = ir.DataType.INT4 if format.is_integer else ir.DataType.FLOAT4E2M1
        written = encoding.part(turned(layouts.codes), short if format.bits == 4 else None)
        codes = constants.value(weight.value, f"_{format.name}", key, written, owner)
        name = constants.names.fresh(f"{weight.node.name}_weight")
        inputs: list[ir.Value | None] = [codes, _scales(weight, encoding, constants, owner, turned)]
        if format.is_integer:
            zeros = np.zeros(encoding.scale_shape, short.numpy())
            inputs.append(constants.array(owner, "int4_zero_points", zeros, short))
        attributes |= {} if choice.block is None else {"block_size": choice.block}
        w = graph.add_node(weight.node, "DequantizeLinear", inputs, name, name, attributes)
        if self.blocks_last and weight.tensor.dtype is not ir.DataType.FLOAT:
            cast = constants.names.fresh(f"{name}_cast")
            w = graph.add_node(weight.node, "Cast", [w], cast, cast, {"to": int(weight.tensor.dtype)})
        if is_turned:
            back = constants.names.fresh(f"{name}_transpose")
            w = graph.add_node(weight.node, "Transpose", [w], back, back, {"perm": [1, 0]})
        return w


def _as_it_lies(of: Layout) -> Layout:
    return of


def _scales(
    weight: Weight,
    encoding: Encoding,
    constants: WeightForms,
    owner: ir.Graph,
    turned: Callable[[Layout], Layout],
) -> ir.Value:
    """The scales as they are stored; behind a DequantizeLinear where they are codes."""
    key = (encoding.format.name, encoding.granularity)
    if encoding.format.stored_scales is None:
        dtype = None if encoding.format.scale_type == E8M0 else ir.DataType.FLOAT
        layout = layouts.flat(layouts.scales) if encoding.granularity.block is None else layouts.scales
        return constants.value(weight.value, "_scale", key, encoding.part(layout, dtype), owner)
    codes = constants.value(weight.value, "_scale", key, encoding.part(turned(layouts.stored_scales)), owner)
    if encoding.format.super_block is not None:
        factors = constants.value(weight.value, "_factors", key, encoding.part(layouts.channel_factors), owner)
        zeros = constants.array(owner, "uint8_zero_points", np.zeros(encoding.outline.rows, np.uint8))
        name = constants.names.fresh(f"{weight.node.name}_scales")
        along: graph.Attributes = {"axis": weight.role.channel}
        return graph.add_node(weight.node, "DequantizeLinear", [codes, factors, zeros], name, name, along)
    factor = constants.value(weight.value, "_factor", key, encoding.part(layouts.scale_factor), owner)
    name = constants.names.fresh(f"{weight.node.name}_scales")
    return graph.add_node(weight.node, "DequantizeLinear", [codes, factor], name, name)
