"""What the columns of a product are multiplied with goes into its weight and bias: a LayerScale, as of ConvNeXt and
DINOv2 (Touvron et al. 2021, "Going deeper with Image Transformers", section 2)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import inherit_type

#: Factors beyond these would take weights to where scales and halves have no digits left, as those of a LayerScale that
#: was never trained (1e-6).
SMALLEST, LARGEST = 2.0**-10, 2.0**10


class FoldLayerScales(ir.passes.InPlacePass):
    """Fold (x · W + b) · g into x · (W · g) + b · g, for MatMul and Gemm.

    1. W and b are constants that nobody else reads, g one with a number for each column.
    2. Nobody else reads what lies between.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names = Names(model)
        made = [_folded(node, names) for node in list(graph.nodes(model)) if graph.is_op(node, "Mul")]
        return ir.passes.PassResult(model, modified=any(made))


def _folded(mul: ir.Node, names: Names) -> bool:
    for x, factors in (mul.inputs, mul.inputs[::-1]):
        below = _made_for(x, mul)
        scale = graph.constant(factors)
        if below is None or scale is None or factors is None:
            continue
        product, biases = _product(below)
        columns = None if product is None else _columns(product)
        if product is None or columns is None or not _is_row(scale, columns):
            continue
        if not all(_is_own(owner, i, columns) for owner, i in biases):
            continue
        numbers = scale.numpy().astype(np.float64).reshape(-1)
        turned = product.op_type == "Gemm" and graph.attribute_int(product, "transB", 0) == 1
        _multiply(product, 1, numbers[:, None] if turned else numbers, names)
        for owner, i in biases:
            _multiply(owner, i, numbers, names)
        last = below.outputs[0]
        mul.outputs[0].replace_all_uses_with(last, replace_graph_outputs=True)
        last.name, mul.outputs[0].name = mul.outputs[0].name, None
        assert mul.graph is not None
        mul.graph.remove(mul, safe=True)
        return True
    return False


def _made_for(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """The node that makes `value` for `reader` alone, in its graph."""
    made = None if value is None else value.producer()
    is_own = value is not None and made is not None and graph.only_consumer(value) is reader
    return made if is_own and made is not None and made.graph is reader.graph else None


def _product(node: ir.Node) -> tuple[ir.Node | None, list[tuple[ir.Node, int]]]:
    """The product that `node` is, or adds a constant to, and where its summands lie."""
    if graph.is_op(node, "Add"):
        for i in (0, 1):
            below = _made_for(node.inputs[1 - i], node)
            if (
                below is not None
                and graph.constant(node.inputs[i]) is not None
                and graph.is_op(below, "MatMul", "Gemm")
            ):
                product, inside = _product(below)
                return product, [*inside, (node, i)]
        return None, []
    if not graph.is_op(node, "MatMul", "Gemm"):
        return None, []
    return node, [(node, 2)] if len(node.inputs) > 2 and node.inputs[2] is not None else []


def _columns(product: ir.Node) -> int | None:
    """How many a product has, by a weight that is its own."""
    weight = product.inputs[1]
    tensor = graph.constant(weight)
    if weight is None or tensor is None or len(tensor.shape) != 2 or tensor.dtype not in graph.FLOATS:
        return None
    turned = graph.attribute_int(product, "transB", 0) == 1
    return int(tensor.shape.numpy()[0 if turned else 1]) if _reads(weight) == 1 else None


def _reads(value: ir.Value) -> int:
    return len(list(value.uses())) + value.is_graph_output()


def _is_own(node: ir.Node, i: int, columns: int) -> bool:
    value = node.inputs[i]
    tensor = graph.constant(value)
    if value is None or tensor is None or _reads(value) != 1 or tensor.dtype not in graph.FLOATS:
        return False
    shape = tuple(tensor.shape.numpy())
    return bool(shape) and shape[-1] in (1, columns)


def _is_row(scale: ir.TensorProtocol, columns: int) -> bool:
    shape = tuple(scale.shape.numpy())
    if columns < 2 or scale.dtype not in graph.FLOATS or shape != (columns,):
        return False
    sizes = np.abs(scale.numpy().astype(np.float64))
    return bool(np.all((sizes >= SMALLEST) & (sizes <= LARGEST)))


def _multiply(node: ir.Node, i: int, by: NDArray[np.float64], names: Names) -> None:
    value = node.inputs[i]
    tensor = graph.constant(value)
    assert value is not None and tensor is not None and isinstance(node.graph, ir.Graph)
    shape = np.broadcast_shapes(tuple(tensor.shape.numpy()), by.shape)
    scaled = graph.lazily(tensor, lambda w: w.astype(np.float64) * by, shape=shape)
    made = graph.add_constant(node.graph, names.fresh(f"{value.name}_scaled"), scaled)
    inherit_type(made, value)
    node.replace_input_with(i, made)
