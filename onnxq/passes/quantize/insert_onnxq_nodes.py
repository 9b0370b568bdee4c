"""MatMul, Gemm and Gather on packed weights as operators of the onnxq domain, in subgraphs too."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxq import formats, layouts, own_ops
from onnxq.formats import Granularity
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import has_weights, weights_of
from onnxq.own_ops import KERNEL_FORMATS, Variant
from onnxq.passes.quantize._matmul import read_product
from onnxq.passes.quantize._onnxq_scales import is_nested, nested_scales, scale_type
from onnxq.passes.quantize.weight_forms import WeightForms
from onnxq.plan import Choice, Method, Plan

_ROWS = 16


class InsertOnnxqNodes(ir.passes.InPlacePass):
    """Give each PACKED node an operator whose kernel reads tiles of 16 rows (`layouts.onnxq_tiles`).

    1. MatMul and Gemm: onnxq.MatMulNBits. transA becomes a Transpose, alpha goes into the scales, beta · C becomes the
       bias: inside the node if it is a constant vector, else an Add behind it.
    2. The same with a format of `own_ops.DENSE_FORMATS`: onnxq.DenseMatMul.
    3. Gather on a [rows, K] table: onnxq.GatherNBits. A table that is also multiplied by is stored once.
    4. The model gets a function body for each variant that its nodes need.
    """

    def __init__(self, plan: Plan, *, exact: bool) -> None:
        super().__init__()
        self.plan, self.exact = plan, exact

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants = WeightForms(Names(model))
        choices = {c.node: c for c in self.plan.those(Method.PACKED)}
        nodes = [node for node in graph.nodes(model) if node.name in choices and has_weights(node)]
        for node in nodes:
            choice = choices[node.name or ""]
            is_dense = choice.format in own_ops.DENSE_FORMATS
            insert = self._gather if node.op_type == "Gather" else self._dense if is_dense else self._matmul
            constants.called.add(insert(node, choice, constants))
        own_ops.add_functions(model, constants.called)
        return ir.passes.PassResult(model, modified=bool(nodes))

    def _matmul(self, node: ir.Node, choice: Choice, constants: WeightForms) -> Variant:
        p = read_product(node, constants, has_half_kernel=True)
        packed, variant = _pack(constants, p.weight, p.k_axis, choice, own_ops.MATMUL, exact=self.exact)
        inputs: list[ir.Value | None] = [p.x, *packed]
        if p.bias is not None and p.bias_is_vector:
            inputs += [None] * (4 - len(inputs)) + [p.bias]
            p, variant = p.without_bias(), dataclasses.replace(variant, bias=True)
        attributes = {**_attributes(p.k, p.n, choice, variant), "activations": "exact" if self.exact else "fast"}
        name, out = p.new_names()
        p.finish(graph.add_node(node, own_ops.MATMUL, inputs, name, out, attributes, own_ops.DOMAIN, variant.overload))
        return variant

    def _dense(self, node: ir.Node, choice: Choice, constants: WeightForms) -> Variant:
        p = read_product(node, constants, has_half_kernel=True)
        word = choice.format or ""
        encoding = constants.encoding(p.weight, formats.get(word), Granularity(), "MatMul")
        shape = (-(-p.n // _ROWS), -(-p.k // layouts.DENSE_BLOCK) * layouts.DENSE_BLOCK // 2, _ROWS, 2)
        turned, dtype = p.k_axis == 0, ir.DataType.from_numpy(encoding.format.code_type)
        tiles = encoding.part(lambda q: layouts.dense_tiles(q.codes.T if turned else q.codes), dtype, shape)
        inputs: list[ir.Value | None] = [p.x, constants.value(p.weight, f"_{word}", (word, p.k_axis), tiles)]
        variant = Variant(own_ops.DENSE, word, exact=self.exact)
        if p.bias is not None and p.bias_is_vector:
            inputs.append(p.bias)
            p, variant = p.without_bias(), dataclasses.replace(variant, bias=True)
        attributes: graph.Attributes = {"K": p.k, "N": p.n, "activations": "exact" if self.exact else "fast"}
        name, out = p.new_names()
        p.finish(graph.add_node(node, own_ops.DENSE, inputs, name, out, attributes, own_ops.DOMAIN, variant.overload))
        return variant

    def _gather(self, node: ir.Node, choice: Choice, constants: WeightForms) -> Variant:
        (weight,) = weights_of(node)
        (n, k), dtype = weight.shape, weight.tensor.dtype
        packed, variant = _pack(constants, weight.value, 1, choice, own_ops.GATHER)
        inputs = [*packed, *[None] * (3 - len(packed)), node.inputs[1]]
        attributes = {**_attributes(k, n, choice, variant), "dtype": int(ir.DataType.FLOAT)}
        name, node.name = node.name or "", constants.names.fresh(f"{node.name}_float")
        out = constants.names.fresh(f"{name}_out")
        y = graph.add_node(node, own_ops.GATHER, inputs, name, out, attributes, own_ops.DOMAIN, variant.overload)
        if dtype is not ir.DataType.FLOAT:  # onnxruntime before 1.24 takes float32 alone from this operator
            cast = constants.names.fresh(f"{name}_cast")
            y = graph.add_node(node, "Cast", [y], cast, cast, {"to": int(dtype)})
        graph.replace_value(node.outputs[0], y)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
        return variant


def _attributes(k: int, n: int, choice: Choice, variant: Variant) -> graph.Attributes:
    assert choice.block is not None
    return {"K": k, "N": n, "block_size": choice.block, "format": variant.format}


def _pack(
    constants: WeightForms, weight: ir.Value, k_axis: int, choice: Choice, op: str, *, exact: bool = False
) -> tuple[list[ir.Value], Variant]:
    """The packed [N, K] weight: codes, scales and zero points, if the format has them."""
    format, block = formats.get(choice.format or ""), choice.block
    assert block is not None
    # The same algorithm for products and tables, so that a table which is both has one form.
    encoding = constants.encoding(weight, format, Granularity(k_axis, block), "MatMul", prefer_half=True)
    n, k = encoding.shape[1 - k_axis], encoding.shape[k_axis]
    tiles, blocks = -(-n // _ROWS), -(-k // block)
    key = (format.name, block, k_axis)
    variant = Variant(op, KERNEL_FORMATS[format.name], own_ops.offset_type(format) is not None, exact=exact)
    groups = blocks * block // (8 // variant.bits * 4)
    codes = encoding.part(layouts.onnxq_tiles, ir.DataType.UINT8, (tiles, groups, _ROWS, 4))
    packed = [constants.value(weight, f"_{format.name}", key, codes)]
    if is_nested(format):
        packed.append(nested_scales(constants, weight, encoding, n, blocks))
    else:
        part = encoding.part(layouts.onnxq_scales, scale_type(encoding), (tiles, blocks, _ROWS))
        packed.append(constants.value(weight, "_scale", key, part))
    if variant.zero_points:
        part = encoding.part(layouts.onnxq_zero_points, ir.DataType.UINT8, (tiles, blocks, _ROWS))
        packed.append(constants.value(weight, "_zero_point", key, part))
    return packed, variant
