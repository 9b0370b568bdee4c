"""MatMul and Gemm with packed weights: MatMulNBits, MatMulBnb4, or DequantizeLinear on blocks."""

from __future__ import annotations

import dataclasses
from typing import Self

import onnx_ir as ir

from onnxq import formats, layouts
from onnxq.encoding.lazy import Encoding
from onnxq.errors import BadRecipe
from onnxq.formats import Granularity
from onnxq.layouts import Layout
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import has_weights
from onnxq.passes.fusing.part_products import PartProducts
from onnxq.passes.low_rank import beside
from onnxq.passes.quantize import PlanPass, Work
from onnxq.passes.quantize._matmul import Product, read_product
from onnxq.passes.quantize._weight_forms import WeightForms, owner_of
from onnxq.plan import Choice, Method, Plan


class ReplaceMatMuls(PlanPass):
    """Give each PACKED MatMul and Gemm a kernel that reads the packed weight.

    1. contrib and an integer format: com.microsoft.MatMulNBits. Zero points are written out, never left to a default.
    2. contrib and a codebook: com.microsoft.MatMulBnb4.
    3. Otherwise: DequantizeLinear on blocks along K in front of MatMul, which onnxruntime fuses to MatMulNBits. The
       weight is stored as [K, N] with blocks along axis 0, because nothing else fuses.
    4. Gemm: transA becomes a Transpose, alpha goes into the scales, beta · C becomes the bias.
    """

    def __init__(self, plan: Plan, *, contrib: bool, accuracy_level: int) -> None:
        super().__init__(plan)
        self.contrib, self.accuracy_level = contrib, accuracy_level

    @classmethod
    def of(cls, work: Work) -> Self:
        contrib = graph.MICROSOFT in work.target.domains
        return cls(work.plan, contrib=contrib, accuracy_level=work.recipe.accuracy_level)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants = WeightForms(Names(model), self.codes)
        choices = {c.node: c for c in self.plan.those(Method.PACKED) if c.op in ("MatMul", "Gemm")}
        nodes = [node for node in graph.nodes(model) if node.name in choices and has_weights(node)]
        for node in nodes:
            self._replace(node, choices[node.name or ""], constants)
        if nodes and self.contrib:
            model.opset_imports.setdefault(graph.MICROSOFT, 1)
        elif nodes:
            PartProducts()(model)
        return ir.passes.PassResult(model, modified=bool(nodes))

    def _replace(self, node: ir.Node, choice: Choice, constants: WeightForms) -> None:
        product = read_product(node, constants, has_half_kernel=True)
        word = choice.format or ""
        assert choice.block is not None
        if not self.contrib:
            self._dequantize(product, choice, constants)
        elif formats.get(word).bnb4 is not None:
            self._bnb4(product, choice, constants)
        else:
            self._nbits(product, choice, constants)

    def _nbits(self, p: Product, choice: Choice, constants: WeightForms) -> None:
        encoding, format, block = _encoding(p, choice, constants)
        key, w = (format.name, block, p.k_axis), p.weight
        parts = {
            "_nbits": encoding.part(layouts.matmul_nbits),
            "_scale": encoding.part(layouts.scales_by_row, p.dtype),
            "_zero_point": encoding.part(layouts.matmul_nbits_zero_points),
        }
        packed = [constants.value(w, suffix, key, part) for suffix, part in parts.items()]
        attributes: graph.Attributes = {
            "K": p.k,
            "N": p.n,
            "bits": format.bits,
            "block_size": block,
            "accuracy_level": self.accuracy_level,
        }
        inputs: list[ir.Value | None] = [p.x, *packed]
        if p.bias is not None and p.bias_is_vector:
            inputs += [None, p.bias]
            p = p.without_bias()
        y = graph.add_node(p.node, "MatMulNBits", inputs, *p.new_names(), attributes, graph.MICROSOFT)
        p.finish(beside(p, y, encoding, constants.rank(choice.node), constants, p.k_axis))

    def _bnb4(self, p: Product, choice: Choice, constants: WeightForms) -> None:
        encoding, format, block = _flat_encoding(p, choice, constants)
        key, w = (format.name, block, p.k_axis), p.weight
        packed = [
            constants.value(w, f"_{format.name}", key, encoding.part(layouts.matmul_bnb4)),
            constants.value(w, "_absmax", key, encoding.part(layouts.flat(layouts.scales), p.dtype)),
        ]
        assert format.bnb4 is not None
        attributes: graph.Attributes = {
            "K": p.k,
            "N": p.n,
            "block_size": block,
            "quant_type": format.bnb4,
        }
        y = graph.add_node(p.node, "MatMulBnb4", [p.x, *packed], *p.new_names(), attributes, graph.MICROSOFT)
        p.finish(beside(p, y, encoding, constants.rank(choice.node), constants, 1))

    def _dequantize(self, p: Product, choice: Choice, constants: WeightForms) -> None:
        encoding, format, block = _encoding(p, choice, constants)
        key = (format.name, block, p.k_axis)

        def turned(layout: Layout) -> Layout:
            """[K, …] whatever way the weight lies."""
            return layouts.turned(layout) if p.k_axis == 1 else layout

        parts = {
            f"_{format.name}": encoding.part(turned(layouts.codes)),
            "_scale": encoding.part(turned(layouts.scales), p.dtype),
        }
        if format.offset_type is not None:
            parts["_zero_point"] = encoding.part(turned(layouts.zero_points))
        # In the subgraph that reads them: onnxruntime looks for what a DequantizeLinear reads in its own graph only.
        owner = owner_of(p.node)
        packed = [constants.value(p.weight, suffix, key, part, owner) for suffix, part in parts.items()]
        # One DequantizeLinear for each reader: a second reader would keep onnxruntime from fusing it.
        name = constants.names.fresh(f"{p.node.name}_weight")
        w = graph.add_node(p.node, "DequantizeLinear", list(packed), name, name, {"axis": 0, "block_size": block})
        y = graph.add_node(p.node, "MatMul", [p.x, w], *p.new_names())
        p.finish(beside(p, y, encoding, constants.rank(choice.node), constants, p.k_axis))


def _encoding(p: Product, choice: Choice, constants: WeightForms) -> tuple[Encoding, formats.Format, int]:
    """The encoding by rows of a product, its format and its block."""
    format, block = formats.get(choice.format or ""), choice.block
    assert block is not None
    granularity, groups = Granularity(p.k_axis, block), choice.groups(2, p.k_axis)
    return constants.encoding(p.weight, format, granularity, "MatMul", groups=groups), format, block


def _flat_encoding(p: Product, choice: Choice, constants: WeightForms) -> tuple[Encoding, formats.Format, int]:
    """Blocks counted through the flattened [N, K] weight, as MatMulBnb4 reads it.

    Where no block crosses a row this is the ordinary encoding by rows, which is computed in slices; else the weight is
    flattened first.
    """
    tensor, format, block = graph.constant(p.weight), formats.get(choice.format or ""), choice.block
    assert tensor is not None and block is not None
    if p.k % block == 0 and p.k_axis == 1:
        return _encoding(p, choice, constants)
    rows = (p.n, p.k) if p.k % block == 0 else (p.n * p.k,)
    if len(rows) == 1 and choice.granularity == "channel":
        raise BadRecipe(
            f"the plan: '{choice.node}' cannot have one scale a channel in blocks of {block} over {p.k} inputs"
        )

    flat = graph.flattened(tensor, rows, is_turned=p.k_axis == 0)
    granularity = Granularity(len(rows) - 1, block)
    channel, groups = 0 if len(rows) == 2 else None, choice.groups(len(rows), len(rows) - 1)
    made = constants.new_encoding(p.weight, format, granularity, "MatMul", tensor=flat, channel=channel, groups=groups)
    return dataclasses.replace(made, is_turned=p.k_axis == 0), format, block
