"""What stands around a product of weights in blocks, spelled so that onnxruntime fuses the product."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names


class PartProducts(ir.passes.InPlacePass):
    """onnxruntime makes a MatMulNBits of a MatMul and the DequantizeLinear on blocks of constant codes that it reads.
    Some things keep it from that, and the weight is unpacked in every run, ten times slower (measured on 1.31.1). They
    are written in another way, which computes the same:

    1. A Relu or Clip directly behind, or behind the bias, is taken for one that rounding would do the work of. It
       becomes Max and Min, unless nothing reads its result but the caller of the model.
    2. An Add of something else than a vector, behind a product of matrices, makes a Gemm in float. It becomes a Sum.
    3. Scales that other nodes read too are copied: they are a small part of the codes.

    Codes that several nodes read are not fused either; copies would take what four bits have won.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names, parted = Names(model), 0
        for node in list(graph.nodes(model)):
            behind, unpack = in_the_way(node), unpacking(node)
            if behind is not None:
                spell(behind, node, names)
            shares = unpack is not None and shares_scales(unpack)
            if unpack is not None and shares:
                _copy_scales(unpack, names)
            parted += shares or behind is not None
        return ir.passes.PassResult(model, modified=parted > 0)


def unpacking(node: ir.Node) -> ir.Node | None:
    """The DequantizeLinear on blocks of constant codes that a MatMul reads as its weight."""
    weight = node.inputs[1] if graph.is_op(node, "MatMul") else None
    made = graph.producer(weight)
    if made is None or not graph.is_op(made, "DequantizeLinear") or graph.constant(made.inputs[0]) is None:
        return None
    return made if graph.attribute_int(made, "block_size", 0) > 0 else None


def in_the_way(product: ir.Node) -> ir.Node | None:
    """The Relu, Clip or Add behind a MatMul that keeps it from being fused with its weight."""
    if unpacking(product) is None:
        return None
    behind = graph.only_consumer(product.outputs[0])
    if behind is not None and graph.is_op(behind, "Add") and _is_of_matrices(product):
        if not _adds_vector(product, behind):
            return behind
        behind = graph.only_consumer(behind.outputs[0])
    is_clip = behind is not None and graph.is_op(behind, "Relu", "Clip") and bool(behind.outputs[0].uses())
    return behind if is_clip else None


def shares_codes(unpack: ir.Node) -> bool:
    """Whether other nodes read the codes of a DequantizeLinear too."""
    return unpack.inputs[0] is not None and graph.only_consumer(unpack.inputs[0]) is None


def shares_scales(unpack: ir.Node) -> bool:
    """Whether other nodes read the constant scales of a DequantizeLinear too, and its codes are its own."""
    scale = unpack.inputs[1]
    is_shared = scale is not None and graph.constant(scale) is not None and graph.only_consumer(scale) is None
    return is_shared and not shares_codes(unpack)


def _is_of_matrices(product: ir.Node) -> bool:
    x = product.inputs[0]
    return x is not None and (x.shape is None or len(x.shape) == 2)


def _adds_vector(product: ir.Node, add: ir.Node) -> bool:
    """Whether it is a bias that MatMulNBits takes: a constant vector, or one number for all."""
    bias = graph.constant(next((value for value in add.inputs if value is not product.outputs[0]), None))
    return bias is not None and (bias.size == 1 or len(bias.shape) == 1)


def spell(node: ir.Node, product: ir.Node, names: Names) -> None:
    """Sum, or Max and Min, in the place of an Add, Relu or Clip."""
    steps = [("Sum", list(node.inputs))] if node.op_type == "Add" else _bounds(node, product, names)
    y = node.inputs[0]
    for op_type, inputs in steps:
        fresh = names.fresh(f"{node.name or product.name}_{op_type.lower()}")
        y = graph.add_node(node, op_type, inputs if op_type == "Sum" else [y, *inputs], fresh, fresh)
    assert y is not None and isinstance(node.graph, ir.Graph)
    graph.replace_value(node.outputs[0], y)
    if not node.outputs[0].is_graph_output():
        node.graph.remove(node, safe=True)


def _bounds(clip: ir.Node, product: ir.Node, names: Names) -> list[tuple[str, list[ir.Value | None]]]:
    """Max with the lower bound, Min with the upper one."""
    if clip.op_type == "Clip":
        pairs = zip(("Max", "Min"), clip.inputs[1:], strict=False)
        return [(op_type, [bound]) for op_type, bound in pairs if bound is not None]
    assert isinstance(clip.graph, ir.Graph)
    zero = ir.tensor(np.zeros((), _type_of(product).numpy()))
    return [("Max", [graph.add_constant(clip.graph, names.fresh(f"{clip.name or product.name}_zero"), zero)])]


def _type_of(product: ir.Node) -> ir.DataType:
    """What a product is of: the type of the DequantizeLinear that makes its weight."""
    unpack = graph.producer(product.inputs[1])
    if not graph.is_op(unpack, "DequantizeLinear"):
        return ir.DataType.FLOAT
    assert unpack is not None
    scale = unpack.inputs[1]
    said = graph.attribute_int(unpack, "output_dtype", 0)  # since opset 23
    dtype = ir.DataType(said) if said else None if scale is None else scale.dtype
    return dtype if dtype in graph.FLOATS else ir.DataType.FLOAT


def _copy_scales(unpack: ir.Node, names: Names) -> None:
    scale = unpack.inputs[1]
    tensor = graph.constant(scale)
    assert scale is not None and tensor is not None and isinstance(unpack.graph, ir.Graph)
    copy = ir.tensor(tensor.numpy(), dtype=tensor.dtype)
    unpack.replace_input_with(1, graph.add_constant(unpack.graph, names.fresh(f"{scale.name}_of_its_own"), copy))
