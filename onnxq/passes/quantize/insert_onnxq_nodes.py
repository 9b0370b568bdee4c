"""MatMul, Gemm and Gather on packed weights as operators of the onnxq domain, in subgraphs too."""

from __future__ import annotations

import dataclasses
from typing import Self

import onnx_ir as ir

from onnxq import formats, layouts, own_ops
from onnxq.encoding.lazy import Encoding
from onnxq.formats import Granularity
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import has_weights, weights_of
from onnxq.own_ops import Variant
from onnxq.passes.low_rank import beside
from onnxq.passes.quantize import PlanPass, Work
from onnxq.passes.quantize._matmul import read_product
from onnxq.passes.quantize._onnxq_weights import nested_scales, widened_tiles
from onnxq.passes.quantize._weight_forms import WeightForms, owner_of
from onnxq.plan import Choice, Method, Plan
from onnxq.planning.shared_weights import in_company

#: Accuracy levels below this one leave activations as they are.
EXACT_BELOW = 2


class InsertOnnxqNodes(PlanPass):
    """Give each PACKED node an operator whose kernel reads tiles of 16 rows (`layouts.onnxq_tiles`).

    1. MatMul and Gemm: onnxq.MatMulNBits. transA becomes a Transpose, alpha goes into the scales, beta · C becomes the
       bias: inside the node if it is a constant vector, else an Add behind it.
    2. The same with a format without scales (`Format.is_dense`): onnxq.DenseMatMul.
    3. Gather on a [rows, K] table: onnxq.GatherNBits. A table that is also multiplied by is stored once.
    4. ONNX's Attention of rows reads v behind a Reshape that says how long these are, where a function made them.
    5. The model gets a function body for each variant that its nodes need.
    """

    def __init__(self, plan: Plan, *, exact: bool) -> None:
        super().__init__(plan)
        self.exact = exact
        self._in_company: set[ir.Node] = set()

    @classmethod
    def of(cls, work: Work) -> Self:
        return cls(work.plan, exact=work.recipe.accuracy_level < EXACT_BELOW)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants = WeightForms(Names(model), self.codes)
        choices = {c.node: c for c in self.plan.those(Method.PACKED)}
        nodes = [node for node in graph.nodes(model) if node.name in choices and has_weights(node)]
        self._in_company = in_company(node for node in nodes if node.op_type != "Gather")
        for node in nodes:
            choice = choices[node.name or ""]
            is_dense = formats.get(choice.format or "").is_dense
            insert = self._gather if node.op_type == "Gather" else self._dense if is_dense else self._matmul
            constants.called.add(insert(node, choice, constants))
        for node in list(graph.nodes(model)) if nodes else ():
            _tell_width(node, constants)
        own_ops.add_functions(model, constants.called)
        return ir.passes.PassResult(model, modified=bool(nodes))

    def _matmul(self, node: ir.Node, choice: Choice, constants: WeightForms) -> Variant:
        p = read_product(node, constants, has_half_kernel=True)
        packed, variant, encoding = _pack(constants, p.weight, p.k_axis, choice, own_ops.MATMUL, exact=self.exact)
        is_fused = variant.decoded.is_integer and not variant.exact
        variant = dataclasses.replace(variant, shared=is_fused and node in self._in_company)
        inputs: list[ir.Value | None] = [p.x, *packed]
        if p.bias is not None and p.bias_is_vector:
            inputs += [None] * (4 - len(inputs)) + [p.bias]
            p, variant = p.without_bias(), dataclasses.replace(variant, bias=True)
        attributes = {**_attributes(p.k, p.n, choice, variant), "activations": "exact" if self.exact else "fast"}
        name, out = p.new_names()
        y = graph.add_node(node, own_ops.MATMUL, inputs, name, out, attributes, own_ops.DOMAIN, variant.overload)
        p.finish(beside(p, y, encoding, constants.rank(choice.node), constants, p.k_axis))
        return variant

    def _dense(self, node: ir.Node, choice: Choice, constants: WeightForms) -> Variant:
        p = read_product(node, constants, has_half_kernel=True)
        word = choice.format or ""
        encoding = constants.encoding(p.weight, formats.get(word), Granularity(), "MatMul")
        tiles = encoding.part(layouts.dense(p.k_axis))
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
        packed, variant, _ = _pack(constants, weight.value, 1, choice, own_ops.GATHER)
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


def _tell_width(node: ir.Node, constants: WeightForms) -> None:
    """Where ONNX does not know how long rows of v are, as behind a function, it infers that those of the result have no
    numbers at all; then onnxruntime refuses what multiplies them."""
    has_rows = graph.is_op(node, "Attention") and "kv_num_heads" in node.attributes
    v = node.inputs[2] if has_rows else None
    maker = graph.producer(v)
    while maker is not None and graph.is_op(maker, "Cast") and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    if maker is None or maker.domain != own_ops.DOMAIN or "N" not in maker.attributes:
        return
    sizes = constants.array(owner_of(node), "rows_of_v", [0, 0, graph.attribute_int(maker, "N", 0)])
    name = constants.names.fresh(f"{node.name}_v")
    node.replace_input_with(2, graph.add_node(node, "Reshape", [v, sizes], name, name))


def _attributes(k: int, n: int, choice: Choice, variant: Variant) -> graph.Attributes:
    assert choice.block is not None
    return {"K": k, "N": n, "block_size": choice.block, "format": variant.format}


def _pack(
    constants: WeightForms, weight: ir.Value, k_axis: int, choice: Choice, op: str, *, exact: bool = False
) -> tuple[list[ir.Value], Variant, Encoding]:
    """The packed [N, K] weight: codes, scales and zero points, if the format has them; and its encoding."""
    format, block = formats.get(choice.format or ""), choice.block
    assert block is not None
    # The same algorithm for products and tables, so that a table which is both has one form.
    granularity, groups = Granularity(k_axis, block), choice.groups(2, k_axis)
    encoding = constants.encoding(weight, format, granularity, "MatMul", groups=groups, prefer_half=True)
    key = (format.name, block, k_axis)
    assert format.multiplied_as is not None
    variant = Variant(op, format.multiplied_as, format.offset_type is not None, exact=exact)
    if format.kernel is None:
        packed = [widened_tiles(constants, weight, encoding)]
    else:
        packed = [constants.value(weight, f"_{format.name}", key, encoding.part(layouts.onnxq_tiles))]
    if format.base is not None:
        packed.append(nested_scales(constants, weight, encoding))
    else:
        packed.append(constants.value(weight, "_scale", key, encoding.part(layouts.onnxq_scales)))
    if variant.zero_points:
        packed.append(constants.value(weight, "_zero_point", key, encoding.part(layouts.onnxq_zero_points)))
    return packed, variant, encoding
